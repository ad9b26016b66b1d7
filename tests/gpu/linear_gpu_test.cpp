// Matrix products on the device against the fp32 twin, and a row alone against the same row in a
// batch.
#include "gpu/gpu_support.h"

namespace deepinfer::gpu_test {
namespace {

struct Shape {
    int64_t m, n, k, pad;
};

class LinearGpu : public GpuTest {
  protected:
    void check(DType t, const Shape& s, DType out_type) {
        const HostWeight w = random_weight(rng, t, s.n, s.k);
        const WeightMatrix d = on_device(w);
        Case c;
        const Arg x = c.input(normal_bf16(rng, {s.m, s.k}, 1.0f, s.pad)),
                  out = c.output(out_type, {s.m, s.n}, s.pad);
        c.run(
            [&](const OpTable& ops, Stream& st, const Args& a) {
                ops.linear(st, a[x], w.view, a[out]);
            },
            [&](const OpTable& ops, Stream& st, const Args& a) {
                ops.linear(st, a[x], d, a[out]);
            });
        c.expect_close(out,
                       out_type == DType::kBF16 ? 1e-3 : 1e-5,
                       std::string(dtype_name(t)) + " m " + std::to_string(s.m) + " n " +
                           std::to_string(s.n) + " k " + std::to_string(s.k));
    }
};

TEST_F(LinearGpu, MatchesTwinInEveryFormat) {
    const Shape shapes[] = {{0, 64, 64, 0},
                            {1, 1, 32, 0},
                            {1, 17, 96, 0},
                            {2, 32, 64, 8},
                            {3, 64, 256, 3},
                            {7, 96, 128, 0},
                            {8, 100, 160, 0},
                            {9, 128, 320, 0},
                            {16, 384, 384, 16},
                            {17, 130, 1280, 0},
                            {33, 512, 512, 0},
                            {64, 256, 2304, 0},
                            {65, 64, 1056, 1},
                            {5, 48, 5120, 0}};
    for (DType t : {DType::kFP8E4M3, DType::kFP4, DType::kBF16, DType::kF32}) {
        for (const Shape& s : shapes) {
            check(t, s, DType::kBF16);
            check(t, s, DType::kF32);
        }
    }
    for (const Shape& s : {Shape{3, 40, 100, 0}, Shape{12, 20, 7, 0}, Shape{4, 33, 33, 5}}) {
        check(DType::kBF16, s, DType::kF32);
        check(DType::kF32, s, DType::kF32);
    }
}

TEST_F(LinearGpu, MatchesTwinOnReleasedShapes) {
    check(DType::kFP8E4M3, {4, 1792, 5120, 0}, DType::kBF16);
    check(DType::kFP8E4M3, {40, 5120, 8192, 0}, DType::kBF16);
    check(DType::kFP8E4M3, {8, 32768, 1280, 0}, DType::kBF16);
    check(DType::kFP4, {9, 2304, 5120, 0}, DType::kBF16);
    check(DType::kFP4, {20, 5120, 2304, 0}, DType::kBF16);
    check(DType::kBF16, {6, 384, 5120, 0}, DType::kF32);
    check(DType::kBF16, {70, 512, 5120, 0}, DType::kF32);
    check(DType::kFP8E4M3, {260, 1792, 1280, 8}, DType::kBF16);
}

TEST_F(LinearGpu, RowIgnoresItsBatch) {
    struct Matrix {
        DType t;
        int64_t n, k;
    };
    const Matrix matrices[] = {{DType::kFP8E4M3, 1792, 5120},
                               {DType::kFP8E4M3, 4096, 1280},
                               {DType::kFP8E4M3, 32768, 1280},
                               {DType::kFP4, 320, 5120},
                               {DType::kFP4, 512, 2304},
                               {DType::kBF16, 384, 5120},
                               {DType::kF32, 24, 512}};
    for (const Matrix& m : matrices) {
        const HostWeight w = random_weight(rng, m.t, m.n, m.k);
        const WeightMatrix d = on_device(w);
        const HostTensor all = normal_bf16(rng, {1100, m.k});
        std::vector<std::vector<uint8_t>> alone;
        for (int64_t rows : {1, 2, 3, 7, 8, 16, 33, 64, 65, 128, 129, 200, 256, 289, 1100}) {
            if (m.n > 5000 && rows > 1 && rows != 16 && rows != 256) continue;
            Case c;
            HostTensor part = all;
            part.view = all.view.rows(0, rows);
            part.memory.resize(static_cast<size_t>(rows * m.k * 2));
            const Arg x = c.input(part), out = c.output(DType::kF32, {rows, m.n});
            c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.linear(s, a[x], d, a[out]);
            });
            for (int64_t r = 0; r < rows; ++r) {
                std::vector<uint8_t> bytes = row_bytes(c.gpu(out), r);
                if (r < static_cast<int64_t>(alone.size())) {
                    ASSERT_EQ(bytes, alone[static_cast<size_t>(r)])
                        << dtype_name(m.t) << " row " << r << " of " << rows;
                } else {
                    alone.push_back(std::move(bytes));
                }
            }
        }
        // And each of some rows really alone.
        for (int64_t r : {1, 5, 40, 255, 1099}) {
            if (r >= static_cast<int64_t>(alone.size())) continue;
            Case c;
            HostTensor one = make_tensor(DType::kBF16, {1, m.k});
            const std::vector<uint8_t> bytes = row_bytes(all, r);
            std::copy(bytes.begin(), bytes.end(), one.memory.begin());
            const Arg x = c.input(one), out = c.output(DType::kF32, {1, m.n});
            c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.linear(s, a[x], d, a[out]);
            });
            ASSERT_EQ(row_bytes(c.gpu(out), 0), alone[static_cast<size_t>(r)])
                << dtype_name(m.t) << " row " << r << " alone";
        }
    }
}

/// Shapes at which tiles, clusters and stores of the kernels for many rows end early.
TEST_F(LinearGpu, MatchesTwinWithManyRows) {
    for (DType t : {DType::kFP8E4M3, DType::kFP4}) {
        for (const Shape& s : {Shape{129, 17, 64, 0},
                               Shape{140, 130, 96, 3},
                               Shape{200, 128, 320, 0},
                               Shape{257, 264, 1056, 8},
                               Shape{1100, 400, 128, 0}}) {
            check(t, s, DType::kBF16);
            check(t, s, DType::kF32);
        }
    }
}

/// One-hot activations read the weights back: every code times every useful scale, exactly.
TEST_F(LinearGpu, WidensEveryCodeExactly) {
    for (DType t : {DType::kFP8E4M3, DType::kFP4}) {
        HostWeight w = random_weight(rng, t, 256, 32);
        if (t == DType::kFP8E4M3) {
            for (int64_t i = 0; i < 256 * 32; ++i) {
                const int code = static_cast<int>(i / 32 + i % 32 * 37) % 256;
                w.codes[static_cast<size_t>(i)] =
                    static_cast<uint8_t>((code & 0x7F) == 0x7F ? 0 : code);
            }
        }
        const int scales[] = {16, 90, 120, 127};
        for (size_t i = 0; i < w.scales.size(); ++i)
            w.scales[i] = static_cast<uint8_t>(scales[i % 4]);
        const WeightMatrix d = on_device(w);
        HostTensor eye = make_tensor(DType::kBF16, {32, 32});
        for (int i = 0; i < 32 * 32; ++i)
            eye.view.ptr<bf16>()[i] = to_bf16(i / 32 == i % 32 ? 1.0f : 0.0f);
        Case c;
        const Arg x = c.input(eye), out = c.output(DType::kF32, {32, 256});
        c.run(
            [&](const OpTable& ops, Stream& s, const Args& a) {
                ops.linear(s, a[x], w.view, a[out]);
            },
            [&](const OpTable& ops, Stream& s, const Args& a) { ops.linear(s, a[x], d, a[out]); });
        for (int64_t r = 0; r < 32; ++r) {
            for (int64_t j = 0; j < 256; ++j) {
                ASSERT_EQ(value_at(c.gpu(out).view, {r, j}), value_at(c.twin(out).view, {r, j}))
                    << dtype_name(t) << " " << r << ", " << j;
            }
        }
    }
}

TEST_F(LinearGpu, RefusesScalesItCannotWiden) {
    for (DType t : {DType::kFP8E4M3, DType::kFP4}) {
        HostWeight w = random_weight(rng, t, 64, 64);
        w.scales.back() = 200;
        std::string why;
        WeightMatrix m = w.view;
        m.weight = w.codes.data();
        m.scale = w.scales.data();
        EXPECT_EQ(cuda_backend(&why)->prepare(m).code(), StatusCode::kUnimplemented);
    }
}

TEST_F(LinearGpu, GroupedProjectionMatchesTwin) {
    struct Grouped {
        int64_t m, groups, ol, in;
    };
    for (const Grouped& g : {Grouped{1, 2, 64, 256},
                             Grouped{5, 2, 64, 1024},
                             Grouped{3, 8, 1024, 4096},
                             Grouped{20, 3, 24, 96},
                             Grouped{0, 2, 32, 64},
                             Grouped{70, 2, 40, 320},
                             Grouped{150, 3, 48, 128},
                             Grouped{300, 2, 272, 96},
                             Grouped{260, 4, 144, 1024}}) {
        const HostWeight w = random_weight(rng, DType::kFP8E4M3, g.groups * g.ol, g.in);
        const WeightMatrix d = on_device(w);
        Case c;
        const Arg x = c.input(normal_bf16(rng, {g.m, g.groups * g.in})),
                  out = c.output(DType::kBF16, {g.m, g.groups * g.ol});
        const int groups = static_cast<int>(g.groups);
        c.run(
            [&](const OpTable& ops, Stream& s, const Args& a) {
                ops.grouped_o_proj(s, a[x], w.view, groups, a[out]);
            },
            [&](const OpTable& ops, Stream& s, const Args& a) {
                ops.grouped_o_proj(s, a[x], d, groups, a[out]);
            });
        c.expect_close(
            out, 1e-3, "grouped m " + std::to_string(g.m) + " groups " + std::to_string(g.groups));
    }
}

}  // namespace
}  // namespace deepinfer::gpu_test
