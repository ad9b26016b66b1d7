// The vision tower's ops on the device against the twins, and a picture alone against the same
// picture in a batch.
#include <cmath>
#include <limits>

#include "gpu/gpu_support.h"

namespace deepinfer::gpu_test {
namespace {

using VisionGpu = GpuTest;

TEST_F(VisionGpu, LinearWithBiasMatchesTwin) {
    struct Shape {
        int64_t m, n, k, pad;
    };
    // The released tower's and aligner's shapes, then odd ones.
    const Shape shapes[] = {{9, 1024, 592, 0},
                            {70, 3072, 1024, 0},
                            {16, 512, 9216, 0},
                            {0, 64, 64, 0},
                            {1, 17, 40, 0},
                            {3, 33, 33, 5},
                            {8, 64, 592, 8},
                            {65, 100, 160, 0},
                            {130, 64, 96, 0}};
    for (DType t : {DType::kBF16, DType::kF32}) {
        for (const Shape& s : shapes) {
            if (t == DType::kF32 && s.n * s.k > 1 << 20) continue;
            const HostWeight w = random_weight(rng, t, s.n, s.k);
            const WeightMatrix d = on_device(w);
            Case c;
            const Arg x = c.input(normal_bf16(rng, {s.m, s.k}, 1.0f, s.pad)),
                      bias = c.input(normal_f32(rng, {s.n}, 3.0f)),
                      out = c.output(DType::kBF16, {s.m, s.n}, s.pad);
            c.run(
                [&](const OpTable& ops, Stream& st, const Args& a) {
                    ops.linear_bias(st, a[x], w.view, a[bias], a[out]);
                },
                [&](const OpTable& ops, Stream& st, const Args& a) {
                    ops.linear_bias(st, a[x], d, a[bias], a[out]);
                });
            c.expect_close(out, 1e-3, std::string(dtype_name(t)) + " m " + std::to_string(s.m));
        }
    }
}

TEST_F(VisionGpu, RowStepsMatchTwins) {
    for (int64_t rows : {0, 1, 5, 130}) {
        for (int64_t n : {4, 12, 64, 352}) {
            for (int64_t pad : {0, 3, 8}) {
                const std::string what = std::to_string(rows) + " rows of " + std::to_string(n);
                Case c;
                const Arg gate_up = c.input(normal_bf16(rng, {rows, 2 * n}, 2.0f, pad)),
                          gated = c.output(DType::kBF16, {rows, n}, pad),
                          sum = c.inout(normal_bf16(rng, {rows, n}, 1.0f, pad)),
                          y = c.input(normal_bf16(rng, {rows, n}, 1.0f, pad)),
                          bent = c.inout(normal_bf16(rng, {rows, n}, 3.0f, pad));
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.vit_swiglu(s, a[gate_up], a[gated]);
                    ops.add_bf16(s, a[sum], a[y]);
                    ops.gelu(s, a[bent]);
                });
                c.expect_close(gated, 1e-3, "vit_swiglu " + what);
                c.expect_equal(sum, "add_bf16 " + what);
                c.expect_close(bent, 1e-3, "gelu " + what);
            }
        }
    }
}

TEST_F(VisionGpu, RotationMatchesTwinAndLeavesTheValuesAlone) {
    for (int64_t rows : {1, 6, 100}) {
        for (const auto& [heads, d] :
             {std::pair<int64_t, int64_t>{1, 4}, {4, 16}, {16, 64}, {3, 24}}) {
            HostTensor qkv = normal_bf16(rng, {rows, 3 * heads * d});
            Case c;
            const Arg x = c.inout(qkv), angles = c.input(normal_f32(rng, {rows, d / 2, 2}));
            c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                Tensor q_and_k(a[x].data, DType::kBF16, {rows, 2 * heads, d});
                q_and_k.stride[0] = 3 * heads * d;
                ops.vit_rope(s, q_and_k, a[angles]);
            });
            c.expect_equal(x, std::to_string(heads) + " heads of " + std::to_string(d));
        }
    }
}

/// One run of pictures with the given patches: q, k, v from `rng`, or from `qkv`.
void attend(
    Case& c, const HostTensor& qkv, std::vector<int32_t> cu, int64_t heads, int64_t dh, Arg* out) {
    const int64_t rows = cu.back();
    const Arg x = c.input(qkv), ends = c.input(ints(cu, {static_cast<int64_t>(cu.size())}));
    *out = c.output(DType::kBF16, {rows, heads * dh});
    c.run([&](const OpTable& ops, Stream& s, const Args& a) {
        ops.vit_attention(s,
                          Tensor(a[x].data, DType::kBF16, {rows, 3, heads, dh}),
                          a[ends],
                          1.0 / std::sqrt(static_cast<double>(dh)),
                          a[*out]);
    });
}

TEST_F(VisionGpu, AttentionMatchesTwin) {
    // Around the tiles of 64 rows and the key blocks of 64; every kernel (32, 64, 128, plain).
    for (int64_t n : {1, 2, 31, 63, 64, 65, 128, 129, 300}) {
        for (const auto& [heads, dh] : {std::pair<int64_t, int64_t>{2, 16},
                                        {1, 64},
                                        {3, 8},
                                        {1, 12},
                                        {2, 80},
                                        {1, 128},
                                        {1, 160},
                                        {2, 20}}) {
            Case c;
            Arg out;
            attend(c,
                   normal_bf16(rng, {n, 3 * heads * dh}),
                   {0, static_cast<int32_t>(n)},
                   heads,
                   dh,
                   &out);
            c.expect_close(out,
                           2e-3,
                           std::to_string(n) + " patches, " + std::to_string(heads) + " heads of " +
                               std::to_string(dh));
        }
    }
    Case c;  // peaked rows: the running maximum moves from block to block
    Arg out;
    attend(c, normal_bf16(rng, {200, 3 * 2 * 64}, 6.0f), {0, 7, 7, 200}, 2, 64, &out);
    c.expect_close(out, 2e-3, "peaked");
}

TEST_F(VisionGpu, APictureIgnoresItsBatch) {
    for (int64_t dh : {16, 64, 160}) {
        const int64_t width = 3 * 2 * dh;
        const HostTensor all = normal_bf16(rng, {375, width});
        Case packed, alone;
        Arg many, one;
        attend(packed, all, {0, 300, 370, 370, 375}, 2, dh, &many);
        HostTensor part = normal_bf16(rng, {70, width});
        for (int64_t r = 0; r < 70; ++r)
            std::copy_n(all.view.row<bf16>(300 + r), width, part.view.row<bf16>(r));
        attend(alone, part, {0, 70}, 2, dh, &one);
        for (int64_t r = 0; r < 70; ++r)
            ASSERT_EQ(row_bytes(alone.gpu(one), r), row_bytes(packed.gpu(many), 300 + r))
                << "row " << r << " of heads of " << dh;
    }
}

TEST_F(VisionGpu, NanStaysInItsPicture) {
    for (int64_t dh : {16, 64, 160}) {
        for (int part : {0, 1, 2}) {  // in q, k, v
            HostTensor qkv = normal_bf16(rng, {110, 3 * dh});
            Case clean, poisoned;
            Arg before, after;
            attend(clean, qkv, {0, 70, 110}, 1, dh, &before);
            qkv.view.row<bf16>(75)[part * dh] = to_bf16(std::numeric_limits<float>::quiet_NaN());
            attend(poisoned, qkv, {0, 70, 110}, 1, dh, &after);
            poisoned.expect_close(after, 2e-3, "NaN in part " + std::to_string(part));
            for (int64_t r = 0; r < 70; ++r)
                ASSERT_EQ(row_bytes(clean.gpu(before), r), row_bytes(poisoned.gpu(after), r))
                    << "row " << r;
        }
    }
}

TEST_F(VisionGpu, RowMovesAreExact) {
    for (int64_t d : {1, 7, 64, 130}) {
        Case c;
        std::vector<int32_t> cells;
        for (int32_t i = 0; i < 5 * 9; ++i) cells.push_back(i % 7 == 3 ? -1 : i % 20);
        const Arg x = c.input(normal_bf16(rng, {20, d}, 1.0f, d % 2 == 0 ? 0 : 3)),
                  picks = c.input(ints(cells, {5, 9})), wide = c.output(DType::kBF16, {5, 9 * d});
        const Arg src = c.input(normal_bf16(rng, {3, d})), rows = c.input(ints({6, 0, 2}, {3})),
                  streams = c.inout(normal_bf16(rng, {8, 4 * d}));
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.pixel_unshuffle(s, a[x], a[picks], a[wide]);
            ops.place_rows(s, a[src], a[rows], Tensor(a[streams].data, DType::kBF16, {8, 4, d}));
        });
        c.expect_equal(wide, "pixel_unshuffle");
        c.expect_equal(streams, "place_rows");
    }
}

}  // namespace
}  // namespace deepinfer::gpu_test
