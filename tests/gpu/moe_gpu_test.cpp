// Router and experts on the device against the twins.
#include <cmath>
#include <limits>
#include <numeric>

#include "gpu/gpu_support.h"

namespace deepinfer::gpu_test {
namespace {

using MoeGpu = GpuTest;

struct HostExpert {
    HostWeight w1, w3, w2;
};
HostExpert random_expert(std::mt19937_64& rng, DType t, int64_t d, int64_t inter) {
    return {random_weight(rng, t, inter, d),
            random_weight(rng, t, inter, d),
            random_weight(rng, t, d, inter)};
}
ExpertWeights host_view(const HostExpert& e) {
    return {e.w1.view, e.w3.view, e.w2.view};
}
ExpertWeights device_view(const HostExpert& e) {
    return {on_device(e.w1), on_device(e.w3), on_device(e.w2)};
}

/// k distinct ascending experts a row. mode 0: uniform, 1: all rows the same, 2: only the last k
/// experts.
HostTensor pick_experts(std::mt19937_64& rng, int64_t rows, int64_t k, int64_t experts, int mode) {
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < rows; ++t) {
        std::vector<int32_t> all(static_cast<size_t>(experts));
        std::iota(all.begin(), all.end(), 0);
        if (mode == 0) std::shuffle(all.begin(), all.end(), rng);
        if (mode == 2) std::reverse(all.begin(), all.end());
        std::sort(all.begin(), all.begin() + k);
        ids.insert(ids.end(), all.begin(), all.begin() + k);
    }
    return ints(ids, {rows, k});
}

TEST_F(MoeGpu, RouterMatchesTwin) {
    for (int64_t rows : {0, 1, 5, 66}) {
        for (int64_t experts : {3, 12, 48, 384}) {
            for (ScoringFunc f :
                 {ScoringFunc::kSqrtSoftplus, ScoringFunc::kSigmoid, ScoringFunc::kSoftmax}) {
                const int64_t d = 256, k = std::min<int64_t>(6, experts);
                const HostWeight gate = random_weight(rng, DType::kBF16, experts, d);
                const WeightMatrix g = on_device(gate);
                std::vector<uint8_t> image;
                for (int64_t i = 0; i < rows; ++i) image.push_back(i % 3 == 1);
                Case c;
                const Arg u = c.input(normal_bf16(rng, {rows, d}, 2.0f)),
                          scores = c.output(DType::kF32, {rows, experts});
                c.run(
                    [&](const OpTable& ops, Stream& s, const Args& a) {
                        ops.router_scores(s, a[u], gate.view, 0.7f, f, a[scores]);
                    },
                    [&](const OpTable& ops, Stream& s, const Args& a) {
                        ops.router_scores(s, a[u], g, 0.7f, f, a[scores]);
                    });
                c.expect_close(scores, 1e-5, "scores");
                // Choices and weights from the same scores: exact ids, ties and NaN included.
                HostTensor tied = c.twin(scores);
                for (int64_t i = 0; i < tied.view.numel(); ++i) {
                    float& v = reinterpret_cast<float*>(tied.memory.data())[i];
                    v = std::round(v * 8) / 8;
                    if (i % 11 == 10) v = std::numeric_limits<float>::quiet_NaN();
                }
                Case p;
                const Arg s = p.input(tied), bias = p.input(normal_f32(rng, {experts}, 0.25f)),
                          vl = p.input(normal_f32(rng, {experts}, 1.0f)),
                          rows_vl = p.input(bytes_of(image, {rows})), none = p.none(),
                          ids = p.output(DType::kI32, {rows, k}),
                          ids_vl = p.output(DType::kI32, {rows, k}),
                          zero = p.input(make_tensor(DType::kF32, {experts}));
                (void)zero;
                p.run([&](const OpTable& ops, Stream& st, const Args& a) {
                    ops.router_topk(st, a[s], a[bias], a[vl], a[none], a[ids]);
                    ops.router_topk(st, a[s], a[bias], a[vl], a[rows_vl], a[ids_vl]);
                });
                p.expect_equal(ids, "ids");
                p.expect_equal(ids_vl, "ids with image rows");
                for (bool normalize : {true, false}) {
                    Case w;
                    const Arg sc = w.input(c.twin(scores)), id = w.input(p.twin(ids)),
                              out = w.output(DType::kF32, {rows, k});
                    w.run([&](const OpTable& ops, Stream& st, const Args& a) {
                        ops.router_weights(st, a[sc], a[id], normalize, 1.5f, a[out]);
                    });
                    w.expect_close(out, 1e-6, "weights");
                }
            }
        }
    }
}

TEST_F(MoeGpu, SwigluMatchesTwin) {
    for (float limit : {0.0f, 1.5f, 10.0f}) {
        for (int64_t rows : {0, 1, 7}) {
            Case c;
            const Arg g = c.input(normal_bf16(rng, {rows, 96}, 3.0f, 2)),
                      u = c.input(normal_bf16(rng, {rows, 96}, 3.0f)),
                      w = c.input(normal_f32(rng, {rows})), n = c.none(),
                      out = c.output(DType::kBF16, {rows, 96}),
                      plain = c.output(DType::kBF16, {rows, 96});
            c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.swiglu(s, a[g], a[u], a[w], limit, a[out]);
                ops.swiglu(s, a[g], a[u], a[n], limit, a[plain]);
            });
            c.expect_close(out, 1e-3, "swiglu");
            c.expect_close(plain, 1e-3, "swiglu without weight");
        }
    }
}

TEST_F(MoeGpu, FeedForwardMatchesTwin) {
    struct Size {
        int64_t d, inter, experts, k;
        DType routed;
    };
    for (const Size& z : {Size{256, 64, 12, 3, DType::kFP4},
                          Size{384, 128, 16, 3, DType::kFP4},
                          Size{1024, 320, 8, 2, DType::kFP4},
                          Size{256, 96, 5, 5, DType::kFP8E4M3}}) {
        std::vector<HostExpert> experts;
        for (int64_t e = 0; e < z.experts; ++e)
            experts.push_back(random_expert(rng, z.routed, z.d, z.inter));
        const HostExpert shared = random_expert(rng, DType::kFP8E4M3, z.d, z.inter);
        std::vector<ExpertWeights> on_host, on_gpu;
        for (const HostExpert& e : experts) {
            on_host.push_back(host_view(e));
            on_gpu.push_back(device_view(e));
        }
        const ExpertWeights shared_host = host_view(shared), shared_gpu = device_view(shared);
        for (int64_t rows : {0, 1, 2, 9, 33, 70, 120, 300}) {
            for (int mode : {0, 1, 2}) {
                Case c;
                const Arg u = c.input(normal_bf16(rng, {rows, z.d}, 1.0f, 8)),
                          ids = c.input(pick_experts(rng, rows, z.k, z.experts, mode));
                HostTensor weights = normal_f32(rng, {rows, z.k});
                for (int64_t i = 0; i < rows * z.k; ++i)
                    weights.view.ptr<float>()[i] = 0.1f + std::fabs(weights.view.ptr<float>()[i]);
                const Arg w = c.input(weights), out = c.output(DType::kBF16, {rows, z.d}, 8);
                c.run(
                    [&](const OpTable& ops, Stream& s, const Args& a) {
                        ops.moe_ffn(s, a[u], a[ids], a[w], on_host, shared_host, 10.0f, a[out]);
                    },
                    [&](const OpTable& ops, Stream& s, const Args& a) {
                        ops.moe_ffn(s, a[u], a[ids], a[w], on_gpu, shared_gpu, 10.0f, a[out]);
                    });
                // q8 of the hidden row turns a last-bit difference into a step of the code: wider
                // than one product.
                c.expect_close(out,
                               3e-3,
                               "moe d " + std::to_string(z.d) + " rows " + std::to_string(rows) +
                                   " mode " + std::to_string(mode));
            }
        }
    }
}

TEST_F(MoeGpu, RowIgnoresItsBatch) {
    const int64_t d = 2560, inter = 512, num = 24, k = 6, most = 2048;
    std::vector<HostExpert> experts;
    std::vector<ExpertWeights> on_gpu;
    for (int64_t e = 0; e < num; ++e) {
        experts.push_back(random_expert(rng, DType::kFP4, d, inter));
        on_gpu.push_back(device_view(experts.back()));
    }
    const HostExpert shared = random_expert(rng, DType::kFP8E4M3, d, inter);
    const ExpertWeights shared_gpu = device_view(shared);
    const HostTensor u_all = normal_bf16(rng, {most, d}),
                     ids_all = pick_experts(rng, most, k, num, 0),
                     w_all = normal_f32(rng, {most, k});
    auto first_rows = [](const HostTensor& t, int64_t begin, int64_t rows) {
        HostTensor p = t;
        p.view = t.view.rows(0, rows);
        const int64_t bytes = t.view.bytes() / t.view.dim(0);
        p.memory.assign(t.memory.begin() + begin * bytes,
                        t.memory.begin() + (begin + rows) * bytes);
        return p;
    };
    std::vector<std::vector<uint8_t>> first;
    for (int64_t rows : {2048, 1, 2, 3, 7, 8, 16, 33, 64, 100, 130, 256, 700}) {
        for (int64_t begin : {0, 11}) {
            if (begin + rows > most) continue;
            Case c;
            const Arg u = c.input(first_rows(u_all, begin, rows)),
                      ids = c.input(first_rows(ids_all, begin, rows)),
                      w = c.input(first_rows(w_all, begin, rows)),
                      out = c.output(DType::kBF16, {rows, d});
            c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.moe_ffn(s, a[u], a[ids], a[w], on_gpu, shared_gpu, 10.0f, a[out]);
            });
            for (int64_t r = 0; r < rows; ++r) {
                if (rows == most) first.push_back(row_bytes(c.gpu(out), r));
                ASSERT_EQ(row_bytes(c.gpu(out), r), first[static_cast<size_t>(begin + r)])
                    << "row " << begin + r << " of " << rows;
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::gpu_test
