// Times the device ops at the released dimensions: one JSON line a measurement, a table at the end.
//
//   op_bench [--copy GB/s] [--read GB/s] [--bf16 TFLOP/s] [--only substring] [--rows 64,256]
//            [--commit text]
//
// A CUDA graph of many launches rotates over enough weight sets that no set stays in L2 and is
// replayed; times are per launch. floor_us = max(bytes / read, flops / bf16) with the ceilings of
// the same run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/packed_weight.h"
#include "ops/backend.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

double g_read = 4300e9, g_bf16 = 790e12;
std::string g_only, g_rows, g_commit = "working tree";
std::vector<std::string> g_table;

class Bench {
  public:
    explicit Bench(Backend& b)
        : backend_(b),
          device_(b.device()),
          stream_(cuda::cuda_stream(b.device().stream())),
          rng_(7) {}

    Stream& stream() { return stream_; }
    const OpTable& ops() { return backend_.ops(); }
    std::mt19937_64& rng() { return rng_; }

    Tensor bytes(int64_t n, uint64_t mask = ~0ull) {
        std::vector<uint64_t> host(static_cast<size_t>(n / 8 + 1));
        for (auto& v : host) v = rng_() & mask;
        return put(host.data(), DType::kU8, {n});
    }
    Tensor normal(std::initializer_list<int64_t> dims, float scale = 1.0f) {
        Tensor shape(nullptr, DType::kBF16, dims);
        std::vector<bf16> host(static_cast<size_t>(shape.numel()));
        std::normal_distribution<float> d;
        // A repeated pattern of odd length is as good as fresh numbers here and much faster to
        // make.
        std::vector<bf16> pattern(99991);
        for (auto& v : pattern) v = to_bf16(d(rng_) * scale);
        for (size_t i = 0; i < host.size(); ++i) host[i] = pattern[i % pattern.size()];
        return put(host.data(), DType::kBF16, dims);
    }
    Tensor floats(std::initializer_list<int64_t> dims, float scale = 1.0f) {
        Tensor shape(nullptr, DType::kF32, dims);
        std::vector<float> host(static_cast<size_t>(shape.numel()));
        std::normal_distribution<float> d;
        for (auto& v : host) v = d(rng_) * scale;
        return put(host.data(), DType::kF32, dims);
    }
    Tensor ints(const std::vector<int32_t>& v, std::initializer_list<int64_t> dims) {
        return put(v.data(), DType::kI32, dims);
    }
    Tensor empty(DType t, std::initializer_list<int64_t> dims) { return put(nullptr, t, dims); }

    /// `sets` copies of one random packed matrix.
    std::vector<WeightMatrix> weights(DType t, int64_t n, int64_t k, int sets) {
        std::vector<uint8_t> codes(static_cast<size_t>(n * k * dtype_bits(t) / 8)), scales;
        auto* words = reinterpret_cast<uint64_t*>(codes.data());
        for (size_t i = 0; i < codes.size() / 8; ++i) {
            words[i] = rng_();
            if (t == DType::kFP8E4M3) words[i] &= 0xF7F7F7F7F7F7F7F7ull;  // no NaN codes
            if (t == DType::kBF16)
                words[i] = (words[i] & 0x80FF80FF80FF80FFull) | 0x3C003C003C003C00ull;
        }
        if (t == DType::kFP8E4M3)
            scales.assign(static_cast<size_t>((n + 31) / 32 * ((k + 31) / 32)), 115);
        if (t == DType::kFP4) scales.assign(static_cast<size_t>(n * k / 32), 120);
        WeightMatrix w;
        w.dtype = t;
        w.n = n;
        w.k = k;
        w.weight = codes.data();
        w.scale = scales.empty() ? nullptr : scales.data();
        const Status s = backend_.prepare(w);
        DI_CHECK_MSG(s.ok(), s.message());
        std::vector<WeightMatrix> all{w};
        const auto size = static_cast<size_t>(cuda::packed_bytes(t, n, k));
        for (int i = 1; i < sets; ++i) {
            WeightMatrix c = w;
            void* copy = raw(size);
            cudaMemcpy(copy, w.packed, size, cudaMemcpyDeviceToDevice);
            c.packed = c.weight = copy;
            all.push_back(c);
        }
        return all;
    }

    /// Times run(i), i = 0 .. launches − 1, in one graph.
    void measure(const std::string& kernel,
                 const std::string& shape,
                 int64_t b,
                 double bytes,
                 double flops,
                 int launches,
                 const std::function<void(int)>& run) {
        if (!g_only.empty() && kernel.find(g_only) == std::string::npos) return;
        if (!g_rows.empty() && g_rows.find("," + std::to_string(b) + ",") == std::string::npos)
            return;
        for (int i = 0; i < std::min(launches, 5); ++i) run(i);
        stream_.synchronize();
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal);
        for (int i = 0; i < launches; ++i) run(i);
        cudaStreamEndCapture(stream_.get(), &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaEvent_t start, stop;
        cudaEventCreate(&start);
        cudaEventCreate(&stop);
        std::vector<float> times;
        for (int r = 0; r < 23; ++r) {
            cudaEventRecord(start, stream_.get());
            cudaGraphLaunch(exec, stream_.get());
            cudaEventRecord(stop, stream_.get());
            const cudaError_t e = cudaEventSynchronize(stop);
            if (e != cudaSuccess) stream_.record(e, "cudaEventSynchronize", kernel.c_str(), shape);
            float ms = 0;
            cudaEventElapsedTime(&ms, start, stop);
            if (r >= 3) times.push_back(ms * 1000.0f / static_cast<float>(launches));
        }
        std::sort(times.begin(), times.end());
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        if (!stream_.status().ok()) {
            std::printf("{\"kernel\":\"%s\",\"error\":\"%s\"}\n",
                        kernel.c_str(),
                        stream_.status().message().c_str());
            std::fflush(stdout);
            std::exit(1);
        }
        const double floor_us = std::max(bytes / g_read, flops / g_bf16) * 1e6,
                     med = times[times.size() / 2];
        std::printf(
            "{\"kernel\":\"%s\",\"shape\":\"%s\",\"b\":%ld,\"bytes\":%.0f,\"flops\":%.0f,\"floor_"
            "us\":%.2f,\"min_us\":%.2f,\"med_us\":%.2f,"
            "\"p90_us\":%.2f,\"ratio\":%.3f,\"gb_s\":%.0f,\"tflop_s\":%.1f,\"commit\":\"%s\"}\n",
            kernel.c_str(),
            shape.c_str(),
            static_cast<long>(b),
            bytes,
            flops,
            floor_us,
            static_cast<double>(times.front()),
            med,
            static_cast<double>(times[times.size() * 9 / 10]),
            floor_us / med,
            bytes / med / 1e3,
            flops / med / 1e6,
            g_commit.c_str());
        std::fflush(stdout);
        char line[160];
        std::snprintf(line,
                      sizeof line,
                      "%-16s %-18s %6ld  floor %8.1f  med %8.1f us  %5.1f %%",
                      kernel.c_str(),
                      shape.c_str(),
                      static_cast<long>(b),
                      floor_us,
                      med,
                      100 * floor_us / med);
        g_table.push_back(line);
    }

    void forget() {
        stream_.synchronize();
        for (void* p : owned_) cudaFree(p);
        owned_.clear();
    }

  private:
    void* raw(size_t bytes) {
        void* p = nullptr;
        const cudaError_t e = cudaMalloc(&p, bytes + 256);
        DI_CHECK_MSG(e == cudaSuccess, cudaGetErrorString(e));
        owned_.push_back(p);
        return p;
    }
    Tensor put(const void* host, DType t, std::initializer_list<int64_t> dims) {
        Tensor v(nullptr, t, dims);
        v.data = raw(static_cast<size_t>(v.bytes()));
        if (host != nullptr)
            cudaMemcpy(v.data, host, static_cast<size_t>(v.bytes()), cudaMemcpyHostToDevice);
        return v;
    }

    Backend& backend_;
    Device& device_;
    cuda::CudaStream& stream_;
    std::mt19937_64 rng_;
    std::vector<void*> owned_;
};

std::string dims_text(int64_t n, int64_t k) {
    return std::to_string(n) + "x" + std::to_string(k);
}
double nd(int64_t v) {
    return static_cast<double>(v);
}

void bench_linear(Bench& b) {
    struct Shape {
        DType t;
        int64_t n, k;
        bool f32;
    };
    const Shape shapes[] = {{DType::kFP8E4M3, 1792, 5120, false},
                            {DType::kFP8E4M3, 32768, 1280, false},
                            {DType::kFP8E4M3, 5120, 8192, false},
                            {DType::kFP8E4M3, 4608, 5120, false},
                            {DType::kFP8E4M3, 5120, 2304, false},
                            {DType::kFP8E4M3, 25600, 6144, false},
                            {DType::kBF16, 384, 5120, true},
                            {DType::kBF16, 129280, 5120, true}};
    for (const Shape& s : shapes) {
        const int64_t packed = cuda::packed_bytes(s.t, s.n, s.k);
        const int sets =
            static_cast<int>(std::min<int64_t>(40, std::max<int64_t>(8, (700 << 20) / packed + 1)));
        const auto w = b.weights(s.t, s.n, s.k, sets);
        for (int64_t m : {1, 4, 8, 16, 32, 64, 128, 256, 1024, 4096}) {
            if (s.n > 100000 && m != 1 && m != 64) continue;
            const Tensor x = b.normal({m, s.k}),
                         y = b.empty(s.f32 ? DType::kF32 : DType::kBF16, {m, s.n});
            const double stored = nd(s.n * s.k * dtype_bits(s.t) / 8);
            b.measure(
                s.t == DType::kBF16 ? "linear_bf16" : "linear_fp8",
                dims_text(s.n, s.k),
                m,
                stored + nd(m * (2 * s.k + (s.f32 ? 4 : 2) * s.n)),
                2.0 * nd(m * s.n * s.k),
                m > 256 ? 8 : sets,
                [&](int i) { b.ops().linear(b.stream(), x, w[static_cast<size_t>(i % sets)], y); });
        }
        b.forget();
    }
    const auto w = b.weights(DType::kFP8E4M3, 8192, 4096, 20);
    for (int64_t m : {1, 8, 16, 64, 256, 4096}) {
        const Tensor x = b.normal({m, 32768}), y = b.empty(DType::kBF16, {m, 8192});
        b.measure("grouped_o",
                  "8x1024x4096",
                  m,
                  8192.0 * 4096 + nd(m) * 2 * (32768 + 8192),
                  2.0 * nd(m) * 8192 * 4096,
                  m > 256 ? 8 : 20,
                  [&](int i) {
                      b.ops().grouped_o_proj(b.stream(), x, w[static_cast<size_t>(i % 20)], 8, y);
                  });
    }
    b.forget();
}

void bench_moe(Bench& b) {
    const int64_t d = 5120, inter = 2304, k = 6;
    const int experts = 48;
    std::vector<ExpertWeights> all(static_cast<size_t>(experts));
    const auto w1 = b.weights(DType::kFP4, inter, d, 2 * experts),
               w2 = b.weights(DType::kFP4, d, inter, experts);
    for (size_t e = 0; e < all.size(); ++e)
        all[e] = {w1[e], w1[e + static_cast<size_t>(experts)], w2[e]};
    const auto s1 = b.weights(DType::kFP8E4M3, inter, d, 2),
               s2 = b.weights(DType::kFP8E4M3, d, inter, 1);
    const ExpertWeights shared{s1[0], s1[1], s2[0]};
    constexpr int kLaunches = 8;
    for (int64_t m : {1, 6, 16, 64, 96, 256, 1024, 4096}) {
        std::vector<Tensor> ids;
        double used = 0;
        for (int l = 0; l < kLaunches; ++l) {
            std::vector<int32_t> v;
            std::vector<bool> hit(static_cast<size_t>(experts));
            for (int64_t t = 0; t < m; ++t) {
                std::vector<int32_t> order(static_cast<size_t>(experts));
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), b.rng());
                std::sort(order.begin(), order.begin() + k);
                for (int64_t i = 0; i < k; ++i) {
                    v.push_back(order[static_cast<size_t>(i)]);
                    hit[static_cast<size_t>(v.back())] = true;
                }
            }
            used += nd(std::count(hit.begin(), hit.end(), true)) / kLaunches;
            ids.push_back(b.ints(v, {m, k}));
        }
        const Tensor u = b.normal({m, d}), weights = b.floats({m, k}),
                     out = b.empty(DType::kBF16, {m, d});
        const double expert_bytes = 3.0 * nd(d * inter) * 17 / 32,
                     shared_bytes = 3.0 * nd(d * inter);
        // Routed experts with the shared one: the op as the model calls it.
        b.measure(
            "moe_ffn",
            "48 experts+shared",
            m,
            used * expert_bytes + shared_bytes +
                nd(m) * (4 * nd(d) + nd(k) * (3 * nd(inter) + 2 * nd(d))),
            6.0 * nd(m * d * inter * (k + 1)),
            kLaunches,
            [&](int i) {
                b.ops().moe_ffn(
                    b.stream(), u, ids[static_cast<size_t>(i)], weights, all, shared, 10.0f, out);
            });
    }
    b.forget();
}

struct Batch {
    BatchView view;
    int64_t rows;
};
/// b sequences of one row each at position `ctx`, block tables over one pool.
Batch decode_batch(
    Bench& b, int64_t rows, int64_t ctx, int64_t tokens_per_block, int64_t pool_blocks) {
    const int64_t blocks = ctx / tokens_per_block + 1;
    std::vector<int32_t> pos(static_cast<size_t>(rows), static_cast<int32_t>(ctx)), seq, first,
        zero(static_cast<size_t>(rows), 0), table;
    for (int64_t i = 0; i < rows; ++i) seq.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i <= rows; ++i) first.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i < rows * blocks; ++i)
        table.push_back(static_cast<int32_t>(b.rng()() % static_cast<uint64_t>(pool_blocks)));
    Batch r;
    r.rows = rows;
    r.view.positions = b.ints(pos, {rows});
    r.view.row_seq = b.ints(seq, {rows});
    r.view.seq_rows = b.ints(first, {rows + 1});
    r.view.seq_start = b.ints(pos, {rows});
    r.view.seq_slot = b.ints(seq, {rows});
    r.view.window_floor = b.ints(zero, {rows});
    r.view.block_table = b.ints(table, {rows, blocks});
    return r;
}

void bench_attention(Bench& b) {
    const int64_t heads = 64, dh = 512, pool_blocks = 40000, epb = 64;
    // Random codes; every scale byte is kept small by the masks (0x3f: E4M3 scales below 2, UE8M0
    // below 1).
    Tensor pool = b.bytes(pool_blocks * epb * kv_entry_bytes(dh), 0x3737373737373737ull);
    pool = pool.cols(0, pool_blocks * epb * kv_entry_bytes(dh))
               .reshaped({pool_blocks * epb, kv_entry_bytes(dh)});
    for (int64_t m : {1, 6, 24, 64, 128, 256, 2048}) {
        Batch batch = decode_batch(b, m, 32000, epb, pool_blocks);
        const Tensor q = b.normal({m, heads, dh}), sink = b.floats({heads}),
                     out = b.empty(DType::kBF16, {m, heads, dh});
        Tensor step = b.bytes(m * window_row_bytes(dh), 0x3737373737373737ull)
                          .reshaped({m, window_row_bytes(dh)});
        Tensor ring = b.bytes(m * 140 * window_row_bytes(dh), 0x3737373737373737ull)
                          .reshaped({m, 140, window_row_bytes(dh)});
        std::vector<Tensor> lists;
        for (int l = 0; l < 4; ++l) {
            std::vector<int32_t> v;
            for (int64_t t = 0; t < m; ++t) {
                int32_t at = static_cast<int32_t>(b.rng()() % 60);
                for (int i = 0; i < 512; ++i) {
                    v.push_back(at);
                    at += 1 + static_cast<int32_t>(b.rng()() % 60);
                }
            }
            lists.push_back(b.ints(v, {m, 512}));
        }
        AttentionCache cache{step, ring, pool, static_cast<int>(epb), 128};
        b.measure("attention",
                  "64h 128+512 rows",
                  m,
                  nd(m) * (512.0 * 288 + 128 * 528 + 64 * 512 * 4),
                  4.0 * nd(m) * 64 * 512 * 640,
                  8,
                  [&](int i) {
                      b.ops().sparse_attention(b.stream(),
                                               q,
                                               batch.view,
                                               cache,
                                               lists[static_cast<size_t>(i % 4)],
                                               sink,
                                               0.0442f,
                                               out);
                  });
    }
    b.forget();
}

void bench_rows(Bench& b) {
    const int64_t d = 5120, hc = 4;
    const Tensor base = b.floats({24}), scale = b.floats({3}), norm = b.floats({d});
    std::vector<Tensor> fn;
    for (int i = 0; i < 8; ++i) fn.push_back(b.floats({24, hc * d}, 0.01f));
    for (int64_t m : {1, 6, 64, 256, 1024, 4096}) {
        const Tensor x = b.normal({m, hc, d}), y = b.normal({m, d}), pre = b.floats({m, hc}),
                     post = b.floats({m, hc}), comb = b.floats({m, hc, hc}),
                     next = b.empty(DType::kBF16, {m, hc, d}), u = b.empty(DType::kBF16, {m, d});
        // One site as the model runs it: expand, then mixes, collapse and norm of the new streams.
        b.measure("mhc_site",
                  "expand mixes norm",
                  m,
                  nd(m) * (4.0 * nd(d) * 4 + nd(d) * 4) + 24.0 * 4 * nd(d) * 4,
                  2.0 * 24 * 4 * nd(d * m),
                  16,
                  [&](int i) {
                      b.ops().mhc_expand(b.stream(), y, x, post, comb, next);
                      b.ops().mhc_mixes(b.stream(),
                                        next,
                                        fn[static_cast<size_t>(i % 8)],
                                        base,
                                        scale,
                                        20,
                                        1e-6f,
                                        1e-20f,
                                        pre,
                                        post,
                                        comb);
                      b.ops().mhc_collapse(b.stream(), next, pre, u);
                      b.ops().rms_norm(b.stream(), u, norm, 1e-20f, u);
                  });
        b.measure("quant_q8", "5120", m, nd(m * d) * 4, 0, 16, [&](int) {
            b.ops().quant_q8(b.stream(), y, u);
        });
    }
    b.forget();
}

void bench_indexer(Bench& b) {
    const int64_t di = 128, hi = 32, epb = 32, pool_blocks = 20000;
    Tensor pool = b.bytes(pool_blocks * epb * index_key_bytes(di), 0x7777777777777777ull)
                      .reshaped({pool_blocks * epb, index_key_bytes(di)});
    for (int64_t m : {1, 6, 64}) {
        for (int64_t n : {16384, 65536}) {
            Batch batch = decode_batch(b, m, 2 * n - 1, 2 * epb, pool_blocks);
            const Tensor q = b.normal({m, hi, di}), hw = b.normal({m, hi}),
                         scores = b.empty(DType::kF32, {m, n}),
                         lists = b.empty(DType::kI32, {m, 512});
            IndexCache cache{pool, static_cast<int>(epb), 2};
            b.measure("index_scores",
                      std::to_string(n) + " keys",
                      m,
                      nd(m * n) * (68 + 4),
                      2.0 * nd(m * n * hi * di),
                      8,
                      [&](int) {
                          b.ops().index_scores(
                              b.stream(), q, hw, batch.view, cache, Tensor(), 8, scores);
                      });
            const Tensor random = b.floats({m, n});
            b.measure("topk_512", std::to_string(n) + " keys", m, nd(m * n) * 4, 0, 8, [&](int) {
                b.ops().topk_select(b.stream(), random, lists);
            });
        }
    }
    b.forget();
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
    using namespace deepinfer;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i], value = argv[i + 1];
        if (key == "--read")
            g_read = std::atof(value.c_str()) * 1e9;
        else if (key == "--bf16")
            g_bf16 = std::atof(value.c_str()) * 1e12;
        else if (key == "--only")
            g_only = value;
        else if (key == "--rows")
            g_rows = "," + value + ",";
        else if (key == "--commit")
            g_commit = value;
        else {
            std::fprintf(stderr, "op_bench: unknown option %s\n", key.c_str());
            return 2;
        }
    }
    register_cuda_backend();
    Result<std::unique_ptr<Backend>> backend = create_backend("cuda", BackendOptions{});
    if (!backend.ok()) {
        std::printf("SKIP: %s\n", backend.status().to_string().c_str());
        return 0;
    }
    Bench b(*backend.value());
    auto wanted = [&](const char* names) {
        return g_only.empty() || std::string(names).find(g_only) != std::string::npos;
    };
    if (wanted("linear_fp8 linear_bf16 grouped_o")) bench_linear(b);
    if (wanted("moe_ffn")) bench_moe(b);
    if (wanted("attention")) bench_attention(b);
    if (wanted("mhc_site quant_q8")) bench_rows(b);
    if (wanted("index_scores topk_512")) bench_indexer(b);
    std::printf("\n");
    for (const std::string& line : g_table) std::printf("%s\n", line.c_str());
    return 0;
}
