// Our linear beside other libraries' on the same matrices, in one process, in windows that take
// turns: oneDNN in BF16, OpenBLAS in FP32, ggml's MXFP4 (plain and repacked) and Q8_0.
//
// Every contender multiplies [rows, k] activations with its own stored form of an [n, k] matrix and
// goes round copies that leave the caches. Ours is exact in bf16 activations; ggml rounds the
// activations to 8 bits, which is less work than ours. One JSON line a matrix, rows and contender.
// Built and run by run.sh; no part of the product.
#include <cblas.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "ops/backend.h"

extern "C" void openblas_set_num_threads(int);

namespace {

using namespace deepinfer;

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

struct Matrix {
    const char* name;
    DType dtype;
    int64_t n, k;
};

/// One way to multiply: run(rows) does `copies` products and leaves when they are done.
struct Contender {
    std::string name;
    int64_t copies = 1;
    double bytes = 0;  ///< of one stored matrix
    std::function<void(int64_t rows)> run;
    std::vector<double> seconds;  ///< of one product, by window
};

std::mt19937 generator(1);

std::vector<float> random_floats(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> block(65536), out(static_cast<size_t>(count));
    for (float& v : block) v = normal(generator);
    for (size_t i = 0; i < out.size(); ++i) out[i] = block[(i * 2654435761u >> 7) % block.size()];
    return out;
}

constexpr int64_t kBeyondCache = int64_t{160} << 20;
int64_t copies_of(double bytes) {
    return std::clamp<int64_t>(static_cast<int64_t>(kBeyondCache / bytes) + 1, 2, 16);
}

Contender ours(Backend& backend, const Matrix& m, int64_t most_rows) {
    struct State {
        std::vector<WeightMatrix> weights;
        std::vector<std::vector<uint8_t>> memory;
        std::vector<uint16_t> x, out;
    };
    auto s = std::make_shared<State>();
    WeightMatrix size;
    size.dtype = m.dtype;
    size.n = m.n;
    size.k = m.k;
    Contender c{"deepinfer " + std::string(m.dtype == DType::kFP4       ? "fp4"
                                           : m.dtype == DType::kFP8E4M3 ? "fp8"
                                                                        : "bf16"),
                copies_of(static_cast<double>(size.bytes())),
                static_cast<double>(size.bytes()),
                {},
                {}};
    for (int64_t i = 0; i < c.copies; ++i) {
        WeightMatrix w = size;
        const auto fill = [&](int64_t bytes, uint8_t mask, uint8_t base) {
            s->memory.emplace_back(static_cast<size_t>(bytes));
            for (uint8_t& b : s->memory.back())
                b = static_cast<uint8_t>(base + (generator() >> 9 & mask));
            return s->memory.back().data();
        };
        if (m.dtype == DType::kBF16) {
            const std::vector<float> v = random_floats(m.n * m.k);
            s->memory.emplace_back(v.size() * 2);
            for (size_t j = 0; j < v.size(); ++j) {
                const uint16_t bits = to_bf16(v[j]).bits;
                std::memcpy(&s->memory.back()[2 * j], &bits, 2);
            }
            w.weight = s->memory.back().data();
        } else if (m.dtype == DType::kFP4) {
            w.weight = fill(m.n * m.k / 2, 0xFF, 0);
            w.scale = fill(m.n * m.k / 32, 3, 118);
        } else {
            uint8_t* codes = fill(m.n * m.k, 0xFF, 0);
            for (int64_t j = 0; j < m.n * m.k; ++j) codes[j] &= 0xBF;  // no NaN
            w.weight = codes;
            w.scale = fill((m.n + 31) / 32 * (m.k / 32), 3, 118);
        }
        if (!backend.prepare(w).ok() || backend.reads_stored(w)) std::abort();
        s->weights.push_back(w);
        s->memory.clear();
    }
    s->x.resize(static_cast<size_t>(most_rows * m.k));
    s->out.resize(static_cast<size_t>(most_rows * m.n));
    const std::vector<float> v = random_floats(most_rows * m.k);
    for (size_t j = 0; j < v.size(); ++j) s->x[j] = to_bf16(v[j]).bits;
    c.run = [s, &backend, m](int64_t rows) {
        const Tensor x(s->x.data(), DType::kBF16, {rows, m.k}),
            out(s->out.data(), DType::kBF16, {rows, m.n});
        for (const WeightMatrix& w : s->weights)
            backend.ops().linear(backend.device().stream(), x, w, out);
    };
    return c;
}

Contender onednn(const Matrix& m, int64_t most_rows, int64_t rows) {
    using dnnl::memory;
    struct State {
        dnnl::engine engine{dnnl::engine::kind::cpu, 0};
        dnnl::stream stream{engine};
        dnnl::matmul op;
        std::vector<memory> weights;
        memory x, out;
    };
    auto s = std::make_shared<State>();
    const double bytes = 2.0 * static_cast<double>(m.n * m.k);
    Contender c{"oneDNN bf16", copies_of(bytes), bytes, {}, {}};
    const auto bf16_type = memory::data_type::bf16;
    const memory::desc x({rows, m.k}, bf16_type, memory::format_tag::ab),
        any({m.k, m.n}, bf16_type, memory::format_tag::any),
        plain({m.k, m.n}, bf16_type, memory::format_tag::ba),
        out({rows, m.n}, bf16_type, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x, any, out), s->engine);
    s->op = dnnl::matmul(desc);
    memory source(plain, s->engine);
    std::memset(source.get_data_handle(), 0x3C, plain.get_size());
    for (int64_t i = 0; i < c.copies; ++i) {
        s->weights.emplace_back(desc.weights_desc(), s->engine);
        dnnl::reorder(source, s->weights.back()).execute(s->stream, source, s->weights.back());
    }
    s->x = memory(x, s->engine);
    s->out = memory(out, s->engine);
    std::memset(s->x.get_data_handle(), 0x3C, x.get_size());
    (void)most_rows;
    c.run = [s](int64_t) {
        for (memory& w : s->weights)
            s->op.execute(s->stream,
                          {{DNNL_ARG_SRC, s->x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, s->out}});
        s->stream.wait();
    };
    return c;
}

Contender openblas(const Matrix& m, int64_t most_rows) {
    struct State {
        std::vector<std::vector<float>> weights;
        std::vector<float> x, out;
    };
    auto s = std::make_shared<State>();
    const double bytes = 4.0 * static_cast<double>(m.n * m.k);
    Contender c{"OpenBLAS fp32", 2, bytes, {}, {}};
    for (int64_t i = 0; i < c.copies; ++i) s->weights.push_back(random_floats(m.n * m.k));
    s->x = random_floats(most_rows * m.k);
    s->out.resize(static_cast<size_t>(most_rows * m.n));
    c.run = [s, m](int64_t rows) {
        for (const std::vector<float>& w : s->weights)
            cblas_sgemm(CblasRowMajor,
                        CblasNoTrans,
                        CblasTrans,
                        static_cast<int>(rows),
                        static_cast<int>(m.n),
                        static_cast<int>(m.k),
                        1.0f,
                        s->x.data(),
                        static_cast<int>(m.k),
                        w.data(),
                        static_cast<int>(m.k),
                        0.0f,
                        s->out.data(),
                        static_cast<int>(m.n));
    };
    return c;
}

/// ggml's matrix product; a contender without a run function if this layout is not there.
Contender ggml(ggml_backend_t cpu, const Matrix& m, ggml_type type, bool repacked, int64_t rows) {
    struct State {
        ggml_context* ctx = nullptr;
        ggml_context* weights_ctx = nullptr;
        ggml_backend_buffer_t weights = nullptr, rest = nullptr;
        ggml_cgraph* graph = nullptr;
        ~State() {
            ggml_backend_buffer_free(weights);
            ggml_backend_buffer_free(rest);
            ggml_free(weights_ctx);
            ggml_free(ctx);
        }
    };
    auto s = std::make_shared<State>();
    const double bytes = static_cast<double>(ggml_row_size(type, m.k) * static_cast<size_t>(m.n));
    Contender c{std::string("ggml ") + ggml_type_name(type) + (repacked ? " repacked" : ""),
                copies_of(bytes),
                bytes,
                {},
                {}};
    ggml_backend_buffer_type_t buffer_type = ggml_backend_cpu_buffer_type();
    if (repacked) {
        ggml_backend_dev_t dev = ggml_backend_get_device(cpu);
        auto get =
            reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
                ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts"));
        buffer_type = nullptr;
        for (ggml_backend_buffer_type_t* b = get(dev); b != nullptr && *b != nullptr; ++b) {
            if (std::strcmp(ggml_backend_buft_name(*b), "CPU_REPACK") == 0) buffer_type = *b;
        }
        if (buffer_type == nullptr) return c;
    }
    const ggml_init_params params{
        64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true};
    s->weights_ctx = ggml_init(params);
    s->ctx = ggml_init(params);
    std::vector<ggml_tensor*> w;
    for (int64_t i = 0; i < c.copies; ++i)
        w.push_back(ggml_new_tensor_2d(s->weights_ctx, type, m.k, m.n));
    s->weights = ggml_backend_alloc_ctx_tensors_from_buft(s->weights_ctx, buffer_type);
    if (repacked && w[0]->extra == nullptr) return c;
    ggml_tensor* x = ggml_new_tensor_2d(s->ctx, GGML_TYPE_F32, m.k, rows);
    s->graph = ggml_new_graph(s->ctx);
    for (ggml_tensor* t : w) ggml_build_forward_expand(s->graph, ggml_mul_mat(s->ctx, t, x));
    s->rest = ggml_backend_alloc_ctx_tensors(s->ctx, cpu);
    const std::vector<float> v = random_floats(m.n * m.k);
    std::vector<uint8_t> stored(static_cast<size_t>(bytes));
    ggml_quantize_chunk(type, v.data(), stored.data(), 0, m.n, m.k, nullptr);
    for (ggml_tensor* t : w) ggml_backend_tensor_set(t, stored.data(), 0, stored.size());
    ggml_backend_tensor_set(x, v.data(), 0, ggml_nbytes(x));
    c.run = [s, cpu](int64_t) {
        if (ggml_backend_graph_compute(cpu, s->graph) != GGML_STATUS_SUCCESS) std::abort();
    };
    return c;
}

void race(
    const Matrix& m, int64_t rows, std::vector<Contender>& all, int windows, double window_s) {
    for (int w = 0; w < windows; ++w) {
        for (Contender& c : all) {
            if (!c.run) continue;
            // Another library's threads spin for a while after its last product (OpenBLAS 20 ms).
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            for (const double begin = now_s(); now_s() - begin < 0.01;) c.run(rows);
            int64_t times = 0;
            const double begin = now_s();
            double t = 0;
            do {
                c.run(rows);
                ++times;
                t = now_s() - begin;
            } while (t < window_s);
            c.seconds.push_back(t / static_cast<double>(times * c.copies));
        }
    }
    const double own = median(all[0].seconds);
    for (const Contender& c : all) {
        if (!c.run) {
            std::fprintf(stderr, "NOT RUN: %s has no kernel for this machine\n", c.name.c_str());
            continue;
        }
        const double t = median(c.seconds);
        std::printf(
            "{\"bench\":\"rivals\",\"matrix\":\"%s\",\"n\":%lld,\"k\":%lld,\"rows\":%lld,"
            "\"contender\":\"%s\",\"med_us\":%.2f,\"gb_s\":%.2f,\"gflop_s\":%.1f,"
            "\"times_ours\":%.3f}\n",
            m.name,
            static_cast<long long>(m.n),
            static_cast<long long>(m.k),
            static_cast<long long>(rows),
            c.name.c_str(),
            t * 1e6,
            c.bytes / t / 1e9,
            2e-9 * static_cast<double>(rows * m.n * m.k) / t,
            t / own);
    }
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
    const int windows = argc > 2 ? std::atoi(argv[2]) : 5;
    const double window_s = (argc > 3 ? std::atof(argv[3]) : 30) / 1000;
    std::vector<int64_t> rows;
    for (int i = 4; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
    if (rows.empty()) rows = {1, 2, 4, 8, 512};
    if (threads < 1 || windows < 1 || !(window_s > 0)) {
        std::fprintf(stderr, "usage: matrix_rivals [threads [windows [window_ms [rows...]]]]\n");
        return 2;
    }
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // a line a tensor else
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, threads);
    register_cpu_backend();
    BackendOptions options;
    options.num_threads = threads;
    auto backend = create_backend("cpu", options);
    if (!backend.ok()) {
        std::fprintf(stderr, "%s\n", backend.status().message().c_str());
        return 1;
    }
    std::fprintf(stderr, "%s\n", backend.value()->description().c_str());
    const Matrix matrices[] = {
        {"expert w1", DType::kFP4, 2304, 5120},
        {"expert w2", DType::kFP4, 5120, 2304},
        {"wo_b", DType::kFP8E4M3, 5120, 8192},
        {"wq_b", DType::kFP8E4M3, 32768, 1280},
        {"head", DType::kBF16, 8192, 5120},
    };
    for (const Matrix& m : matrices) {
        for (const int64_t r : rows) {
            std::vector<Contender> all;
            all.push_back(ours(*backend.value(), m, r));
            if (m.dtype == DType::kFP4) {
                all.push_back(ggml(cpu, m, GGML_TYPE_MXFP4, false, r));
                all.push_back(ggml(cpu, m, GGML_TYPE_MXFP4, true, r));
            } else if (m.dtype == DType::kFP8E4M3) {
                all.push_back(ggml(cpu, m, GGML_TYPE_Q8_0, false, r));
                all.push_back(ggml(cpu, m, GGML_TYPE_Q8_0, true, r));
            }
            all.push_back(onednn(m, r, r));
            all.push_back(openblas(m, r));
            race(m, r, all, windows, window_s);
        }
    }
    ggml_backend_free(cpu);
    return 0;
}
