// The CPU backend against the fp32 twins, every ISA level of this machine, and its laws: a row's
// bits never depend on the number of rows, on the thread count or on its place in the batch.
#include "backends/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/isa.h"
#include "device/host_device.h"
#include "ops/backend.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

using cpu::Isa;

/// Seeded from the running test's name, so that a rerun repeats.
std::mt19937 seeded() {
    const ::testing::TestInfo* t = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(t->test_suite_name()) + t->name();
    std::seed_seq seq(name.begin(), name.end());
    return std::mt19937(seq);
}

struct Owned {
    std::vector<uint8_t> bytes;
    Tensor t;
};

Owned make(DType type, std::initializer_list<int64_t> dims, uint8_t fill = 0xFF) {
    Owned o;
    o.t = Tensor(nullptr, type, dims);
    o.bytes.assign(static_cast<size_t>(o.t.bytes()) + 64, fill);
    o.t.data = o.bytes.data();
    return o;
}

Owned random_bf16(std::mt19937& rng, std::initializer_list<int64_t> dims, float sigma = 1.0f) {
    Owned o = make(DType::kBF16, dims);
    std::normal_distribution<float> d(0.0f, sigma);
    for (int64_t i = 0; i < o.t.numel(); ++i) o.t.ptr<bf16>()[i] = to_bf16(d(rng));
    return o;
}
Owned random_f32(std::mt19937& rng, std::initializer_list<int64_t> dims, float sigma = 1.0f) {
    Owned o = make(DType::kF32, dims);
    std::normal_distribution<float> d(0.0f, sigma);
    for (int64_t i = 0; i < o.t.numel(); ++i) o.t.ptr<float>()[i] = d(rng);
    return o;
}

struct OwnedWeight {
    std::vector<uint8_t> weight, scale;
    WeightMatrix w;
};

OwnedWeight random_weight(std::mt19937& rng, DType type, int64_t n, int64_t k) {
    OwnedWeight o;
    o.w.dtype = type;
    o.w.n = n;
    o.w.k = k;
    o.weight.resize(static_cast<size_t>(n * k * dtype_bits(type) / 8));
    std::normal_distribution<float> d(0.0f, 0.05f);
    for (int64_t i = 0; i < n * k; ++i) {
        if (type == DType::kBF16) {
            const bf16 v = to_bf16(d(rng));
            std::memcpy(&o.weight[static_cast<size_t>(2 * i)], &v, 2);
        } else if (type == DType::kF32) {
            const float v = d(rng);
            std::memcpy(&o.weight[static_cast<size_t>(4 * i)], &v, 4);
        }
    }
    if (type == DType::kFP8E4M3 || type == DType::kFP4) {
        for (uint8_t& b : o.weight) {
            do b = static_cast<uint8_t>(rng());
            while (type == DType::kFP8E4M3 && (b & 0x7F) == 0x7F);
        }
        if (type ==
            DType::kFP8E4M3) {  // every second 32-column block has normal codes only, another path
            for (size_t i = 0; i < o.weight.size(); ++i) {
                if (i % static_cast<size_t>(k) / 32 % 2 == 1 && (o.weight[i] & 0x78) == 0)
                    o.weight[i] |= 0x08;
            }
        }
        o.scale.resize(
            static_cast<size_t>(type == DType::kFP4 ? n * (k / 32) : (n + 31) / 32 * (k / 32)));
        for (uint8_t& s : o.scale)
            s = static_cast<uint8_t>((type == DType::kFP4 ? 120 : 114) + rng() % 5);
        o.w.scale = o.scale.data();
    }
    o.w.weight = o.weight.data();
    return o;
}

/// Relative L2 distance; NaN and Inf must be at the same places.
double distance(const Tensor& a, const Tensor& b) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < a.numel(); ++i) {
        const float x = a.dtype == DType::kF32 ? a.ptr<float>()[i] : to_float(a.ptr<bf16>()[i]);
        const float y = b.dtype == DType::kF32 ? b.ptr<float>()[i] : to_float(b.ptr<bf16>()[i]);
        if (std::isnan(x) != std::isnan(y)) return INFINITY;
        if (std::isnan(x) || (std::isinf(x) && x == y)) continue;
        diff += (static_cast<double>(x) - y) * (static_cast<double>(x) - y);
        norm += static_cast<double>(y) * y;
    }
    return norm == 0 ? std::sqrt(diff) : std::sqrt(diff / norm);
}

::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
    if (a.bytes() != b.bytes()) return ::testing::AssertionFailure() << "sizes differ";
    const uint8_t *p = a.ptr<uint8_t>(), *q = b.ptr<uint8_t>();
    for (int64_t i = 0; i < a.bytes(); ++i) {
        if (p[i] != q[i])
            return ::testing::AssertionFailure() << a.to_string() << " differs at byte " << i;
    }
    return ::testing::AssertionSuccess();
}

constexpr double kBf16Store = 1.5e-3;  // one rounding in a few elements, as relative L2
constexpr double kFp32 = 1e-6;

class CpuBackend : public ::testing::TestWithParam<Isa> {
  protected:
    void SetUp() override {
        const auto& have = cpu::available_isas();
        if (std::find(have.begin(), have.end(), GetParam()) == have.end()) {
            GTEST_SKIP() << "NOT RUN: this machine has no " << cpu::isa_name(GetParam());
        }
        register_cpu_backend();
        one_ = create(1);
        two_ = create(2);
    }
    std::unique_ptr<Backend> create(int threads) {
        BackendOptions o;
        o.isa = cpu::isa_name(GetParam());
        o.num_threads = threads;
        return create_backend("cpu", o).value();
    }
    const OpTable& ops() { return two_->ops(); }
    Stream& stream() { return two_->device().stream(); }
    Stream& ref_stream() { return ref_device_.stream(); }

    std::unique_ptr<Backend> one_, two_;
    HostDevice ref_device_{2};
    OpTable ref_ = ref_op_table();
};

INSTANTIATE_TEST_SUITE_P(
    Isa,
    CpuBackend,
    ::testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx),
    [](const auto& p) { return std::string(cpu::isa_name(p.param)); });

TEST_P(CpuBackend, LinearEqualsTwin) {
    std::mt19937 rng = seeded();
    for (DType type : {DType::kFP8E4M3, DType::kFP4, DType::kBF16, DType::kF32}) {
        for (auto [n, k] :
             {std::pair<int, int>{32, 32}, {40, 64}, {7, 96}, {128, 384}, {33, 1024}}) {
            OwnedWeight w = random_weight(rng, type, n, k);
            WeightMatrix prepared = w.w;
            ASSERT_TRUE(two_->prepare(prepared).ok());
            for (int64_t rows : {1, 2, 3, 13, 100}) {
                Owned x = random_bf16(rng, {rows, k});
                quant_q8_ref(ref_stream(), x.t, x.t);
                for (DType out_type : {DType::kBF16, DType::kF32}) {
                    Owned want = make(out_type, {rows, n}), got = make(out_type, {rows, n});
                    linear_ref<float>(ref_stream(), x.t, w.w, want.t);
                    ops().linear(stream(), x.t, prepared, got.t);
                    EXPECT_LE(distance(got.t, want.t), out_type == DType::kF32 ? kFp32 : kBf16Store)
                        << dtype_name(type) << " n " << n << " k " << k << " rows " << rows;
                }
            }
        }
    }
}

TEST_P(CpuBackend, LinearRowIgnoresItsBatch) {
    std::mt19937 rng = seeded();
    for (DType type : {DType::kFP8E4M3, DType::kFP4, DType::kBF16, DType::kF32}) {
        const int64_t n = 96, k = 256, most = 200;
        OwnedWeight w = random_weight(rng, type, n, k);
        WeightMatrix prepared = w.w;
        ASSERT_TRUE(two_->prepare(prepared).ok());
        Owned x = random_bf16(rng, {most, k});
        Owned all = make(DType::kF32, {most, n});
        ops().linear(stream(), x.t, prepared, all.t);
        for (int64_t rows : {1, 2, 3, 5, 6, 8, 16, 33, 64, 97}) {
            const int64_t first = most - rows;
            Owned part = make(DType::kF32, {rows, n});
            one_->ops().linear(one_->device().stream(), x.t.rows(first, most), prepared, part.t);
            EXPECT_TRUE(same_bits(part.t, all.t.rows(first, most)))
                << dtype_name(type) << " rows " << rows;
        }
    }
}

TEST_P(CpuBackend, EveryLevelMeasuresItsRoofs) {
    EXPECT_GT(one_->measure_roof(Roof::kDot), 1e8);
    EXPECT_GT(two_->measure_roof(Roof::kDot), 1e8);
    for (const int64_t working_set : {0, 1, 5000, 1 << 20})
        EXPECT_GT(two_->measure_roof(Roof::kRead, working_set), 1e8);
}

TEST_P(CpuBackend, UnusualWeightsGoToTheTwin) {
    std::mt19937 rng = seeded();
    OwnedWeight nan = random_weight(rng, DType::kFP8E4M3, 32, 64),
                huge = random_weight(rng, DType::kFP4, 32, 64);
    nan.weight[5] = 0x7F;
    huge.scale[3] = 254;
    for (OwnedWeight* w : {&nan, &huge}) {
        WeightMatrix prepared = w->w;
        ASSERT_TRUE(two_->prepare(prepared).ok());
        Owned x = random_bf16(rng, {3, 64}), want = make(DType::kF32, {3, 32}),
              got = make(DType::kF32, {3, 32});
        linear_ref<float>(ref_stream(), x.t, w->w, want.t);
        ops().linear(stream(), x.t, prepared, got.t);
        EXPECT_EQ(distance(got.t, want.t), 0.0);
    }
}

TEST_P(CpuBackend, GroupedOProjEqualsTwin) {
    std::mt19937 rng = seeded();
    const int64_t groups = 2, ol = 64, in = 128, rows = 5;
    OwnedWeight w = random_weight(rng, DType::kFP8E4M3, groups * ol, in);
    WeightMatrix prepared = w.w;
    ASSERT_TRUE(two_->prepare(prepared).ok());
    Owned o = random_bf16(rng, {rows, groups * in}), want = make(DType::kBF16, {rows, groups * ol}),
          got = make(DType::kBF16, {rows, groups * ol});
    grouped_o_proj_ref<float>(ref_stream(), o.t, w.w, groups, want.t);
    ops().grouped_o_proj(stream(), o.t, prepared, groups, got.t);
    EXPECT_LE(distance(got.t, want.t), kBf16Store);
}

/// bf16 values with everything that quantizers treat specially.
Owned awkward_bf16(std::mt19937& rng, int64_t rows, int64_t n) {
    Owned x = random_bf16(rng, {rows, n});
    bf16* p = x.t.ptr<bf16>();
    for (int64_t i = 0; i < rows * n; ++i) {
        switch (rng() % 12) {
            case 0:
                p[i] = to_bf16(0.0f);
                break;
            case 1:
                p[i] = to_bf16(-0.0f);
                break;
            case 2:
                p[i].bits = static_cast<uint16_t>(rng());
                break;  // any exponent, NaN and Inf too
            case 3:
                p[i] = to_bf16(static_cast<float>(static_cast<int>(rng() % 64) - 32) * 0.25f);
                break;
            default:
                break;
        }
    }
    for (int64_t i = 0; i < n; ++i) p[i] = to_bf16(i % 2 == 0 ? 0.0f : -0.0f);  // a zero row
    for (int64_t i = n; i < 2 * n; ++i)
        p[i].bits = static_cast<uint16_t>(rng() % 0x7F00);  // a finite row of all sizes
    return x;
}

TEST_P(CpuBackend, QuantizersAreExact) {
    std::mt19937 rng = seeded();
    Owned x = awkward_bf16(rng, 200, 128);
    Owned want = make(DType::kBF16, {200, 128}), got = make(DType::kBF16, {200, 128});
    quant_q8_ref(ref_stream(), x.t, want.t);
    ops().quant_q8(stream(), x.t, got.t);
    EXPECT_TRUE(same_bits(got.t, want.t));
    quant_q4m_ref(ref_stream(), x.t, want.t);
    ops().quant_q4m(stream(), x.t, got.t);
    EXPECT_TRUE(same_bits(got.t, want.t));
    Owned want_rows = make(DType::kU8, {200, window_row_bytes(128)}),
          got_rows = make(DType::kU8, {200, window_row_bytes(128)});
    window_pack_ref(ref_stream(), x.t, want_rows.t);
    ops().window_pack(stream(), x.t, got_rows.t);
    EXPECT_TRUE(same_bits(got_rows.t, want_rows.t));
    Owned slots = make(DType::kI64, {200});
    for (int64_t i = 0; i < 200; ++i) slots.t.ptr<int64_t>()[i] = i % 7 == 0 ? -1 : 199 - i;
    Owned want_pool = make(DType::kU8, {200, kv_entry_bytes(128)}),
          got_pool = make(DType::kU8, {200, kv_entry_bytes(128)});
    kv_entry_store_ref(ref_stream(), x.t, slots.t, want_pool.t);
    ops().kv_entry_store(stream(), x.t, slots.t, got_pool.t);
    EXPECT_TRUE(same_bits(got_pool.t, want_pool.t));
    Owned want_keys = make(DType::kU8, {200, index_key_bytes(128)}),
          got_keys = make(DType::kU8, {200, index_key_bytes(128)});
    index_key_store_ref(ref_stream(), x.t, slots.t, want_keys.t);
    ops().index_key_store(stream(), x.t, slots.t, got_keys.t);
    EXPECT_TRUE(same_bits(got_keys.t, want_keys.t));
}

TEST_P(CpuBackend, RowOpsEqualTwins) {
    std::mt19937 rng = seeded();
    for (int64_t n : {16, 24, 128, 384}) {
        Owned x = random_bf16(rng, {5, n}), w = random_f32(rng, {n});
        Owned want = make(DType::kBF16, {5, n}), got = make(DType::kBF16, {5, n});
        rms_norm_ref<float>(ref_stream(), x.t, w.t, 1e-20f, want.t);
        ops().rms_norm(stream(), x.t, w.t, 1e-20f, got.t);
        EXPECT_LE(distance(got.t, want.t), kBf16Store);
        Owned up = random_bf16(rng, {5, n}, 20.0f), gate = random_bf16(rng, {5, n}, 20.0f),
              wt = random_f32(rng, {5});
        swiglu_ref<float>(ref_stream(), gate.t, up.t, wt.t, 10.0f, want.t);
        ops().swiglu(stream(), gate.t, up.t, wt.t, 10.0f, got.t);
        EXPECT_LE(distance(got.t, want.t), kBf16Store);
    }
    Owned x = random_bf16(rng, {3, 2, 96}), y = x, cs = random_f32(rng, {3, 16, 2});
    y.t.data = y.bytes.data();
    for (bool inverse : {false, true}) {
        rope_ref<float>(ref_stream(), x.t, cs.t, inverse);
        ops().rope(stream(), y.t, cs.t, inverse);
        EXPECT_TRUE(same_bits(x.t, y.t));
    }
}

TEST_P(CpuBackend, HyperConnectionsEqualTwins) {
    std::mt19937 rng = seeded();
    const int64_t rows = 9, d = 96;
    Owned x = random_bf16(rng, {rows, 4, d}), fn = random_f32(rng, {24, 4 * d}, 0.1f),
          base = random_f32(rng, {24}), scale = random_f32(rng, {3});
    Owned p0 = make(DType::kF32, {rows, 4}), q0 = make(DType::kF32, {rows, 4}),
          c0 = make(DType::kF32, {rows, 4, 4});
    Owned p1 = make(DType::kF32, {rows, 4}), q1 = make(DType::kF32, {rows, 4}),
          c1 = make(DType::kF32, {rows, 4, 4});
    mhc_mixes_ref<float>(
        ref_stream(), x.t, fn.t, base.t, scale.t, 20, 1e-6f, 1e-20f, p0.t, q0.t, c0.t);
    ops().mhc_mixes(stream(), x.t, fn.t, base.t, scale.t, 20, 1e-6f, 1e-20f, p1.t, q1.t, c1.t);
    EXPECT_LE(distance(p1.t, p0.t), kFp32);
    EXPECT_LE(distance(q1.t, q0.t), kFp32);
    EXPECT_LE(distance(c1.t, c0.t), 3 * kFp32);
    Owned u0 = make(DType::kBF16, {rows, d}), u1 = make(DType::kBF16, {rows, d});
    mhc_collapse_ref<float>(ref_stream(), x.t, p0.t, u0.t);
    ops().mhc_collapse(stream(), x.t, p0.t, u1.t);
    EXPECT_LE(distance(u1.t, u0.t), kBf16Store);
    Owned y = random_bf16(rng, {rows, d}), e0 = make(DType::kBF16, {rows, 4, d}),
          e1 = make(DType::kBF16, {rows, 4, d});
    mhc_expand_ref<float>(ref_stream(), y.t, x.t, q0.t, c0.t, e0.t);
    ops().mhc_expand(stream(), y.t, x.t, q0.t, c0.t, e1.t);
    EXPECT_LE(distance(e1.t, e0.t), kBf16Store);
    Owned kv = random_bf16(rng, {rows, 5 * d}), qw = random_f32(rng, {4, d}),
          kw = random_f32(rng, {4, d});
    engram_gate_ref<float>(ref_stream(), e0.t, kv.t, qw.t, kw.t, Tensor(), 1e-20f);
    ops().engram_gate(stream(), e1.t, kv.t, qw.t, kw.t, Tensor(), 1e-20f);
    EXPECT_LE(distance(e1.t, e0.t), 2 * kBf16Store);
}

TEST_P(CpuBackend, MoeEqualsTwinAndRowsIgnoreTheirBatch) {
    std::mt19937 rng = seeded();
    const int64_t rows = 37, d = 128, inter = 64, num_experts = 6, top = 3;
    std::vector<OwnedWeight> memory;
    std::vector<ExpertWeights> plain, prepared;
    for (int64_t e = 0; e <= num_experts; ++e) {
        const DType type = e < num_experts ? DType::kFP4 : DType::kFP8E4M3;
        for (int i = 0; i < 3; ++i)
            memory.push_back(random_weight(rng, type, i < 2 ? inter : d, i < 2 ? d : inter));
    }
    for (int64_t e = 0; e <= num_experts; ++e) {
        const size_t i = static_cast<size_t>(3 * e);
        ExpertWeights w{memory[i].w, memory[i + 1].w, memory[i + 2].w};
        plain.push_back(w);
        for (WeightMatrix* m : {&w.w1, &w.w3, &w.w2}) ASSERT_TRUE(two_->prepare(*m).ok());
        prepared.push_back(w);
    }
    Owned u = random_bf16(rng, {rows, d}), ids = make(DType::kI32, {rows, top}),
          w = random_f32(rng, {rows, top});
    for (int64_t t = 0; t < rows; ++t) {
        std::vector<int32_t> e{0, 1, 2, 3, 4};  // expert 5 stays without rows
        std::shuffle(e.begin(), e.end(), rng);
        std::sort(e.begin(), e.begin() + top);
        std::copy(e.begin(), e.begin() + top, ids.t.row<int32_t>(t));
    }
    Owned want = make(DType::kBF16, {rows, d}), got = make(DType::kBF16, {rows, d});
    const std::span<const ExpertWeights> p(plain.data(), num_experts),
        q(prepared.data(), num_experts);
    moe_ffn_ref<float>(ref_stream(), u.t, ids.t, w.t, p, plain.back(), 10.0f, want.t);
    ops().moe_ffn(stream(), u.t, ids.t, w.t, q, prepared.back(), 10.0f, got.t);
    EXPECT_LE(distance(got.t, want.t), 2 * kBf16Store);
    for (auto [a, b] : {std::pair<int64_t, int64_t>{0, 1}, {36, 37}, {10, 20}}) {
        Owned part = make(DType::kBF16, {b - a, d});
        one_->ops().moe_ffn(one_->device().stream(),
                            u.t.rows(a, b),
                            ids.t.rows(a, b),
                            w.t.rows(a, b),
                            q,
                            prepared.back(),
                            10.0f,
                            part.t);
        EXPECT_TRUE(same_bits(part.t, got.t.rows(a, b)));
    }
}

/// Two sequences: rows of the first at positions start.., a single row of the second.
struct Sequences {
    Owned positions, row_seq, seq_rows, seq_start, seq_slot, floor, table;
    BatchView view;
    Sequences(int32_t rows0, int32_t start0, int32_t start1, int32_t num_blocks) {
        const int32_t t = rows0 + 1;
        positions = make(DType::kI32, {t});
        row_seq = make(DType::kI32, {t});
        seq_rows = make(DType::kI32, {3});
        seq_start = make(DType::kI32, {2});
        seq_slot = make(DType::kI32, {2});
        floor = make(DType::kI32, {2});
        table = make(DType::kI32, {2, num_blocks});
        for (int32_t i = 0; i < rows0; ++i) {
            positions.t.ptr<int32_t>()[i] = start0 + i;
            row_seq.t.ptr<int32_t>()[i] = 0;
        }
        positions.t.ptr<int32_t>()[rows0] = start1;
        row_seq.t.ptr<int32_t>()[rows0] = 1;
        const int32_t rows[3] = {0, rows0, t}, starts[2] = {start0, start1}, slots[2] = {1, 0},
                      floors[2] = {0, 0};
        std::memcpy(seq_rows.bytes.data(), rows, sizeof rows);
        std::memcpy(seq_start.bytes.data(), starts, sizeof starts);
        std::memcpy(seq_slot.bytes.data(), slots, sizeof slots);
        std::memcpy(floor.bytes.data(), floors, sizeof floors);
        for (int32_t b = 0; b < num_blocks; ++b) {
            table.t.row<int32_t>(0)[b] = 2 * b + 1;
            table.t.row<int32_t>(1)[b] = 2 * b;
        }
        view = {positions.t, row_seq.t, seq_rows.t, seq_start.t, seq_slot.t, floor.t, table.t};
    }
};

TEST_P(CpuBackend, AttentionEqualsTwinAndRowsIgnoreTheirBatch) {
    std::mt19937 rng = seeded();
    const int64_t dh = 128, window = 20, ring_len = 40, epb = 8, num_blocks = 30, top = 150;
    for (int64_t heads : {1, 4, 6}) {
        Sequences s(9, 200, 3, num_blocks);
        const int64_t rows = 10;
        Owned kv = random_bf16(rng, {rows, dh}),
              step = make(DType::kU8, {rows, window_row_bytes(dh)});
        window_pack_ref(ref_stream(), kv.t, step.t);
        Owned old = random_bf16(rng, {2 * ring_len, dh}),
              ring = make(DType::kU8, {2, ring_len, window_row_bytes(dh)});
        window_pack_ref(ref_stream(),
                        old.t,
                        Tensor(ring.t.data, DType::kU8, {2 * ring_len, window_row_bytes(dh)}));
        Owned c = random_bf16(rng, {2 * num_blocks * epb, dh}),
              slots = make(DType::kI64, {2 * num_blocks * epb});
        for (int64_t i = 0; i < slots.t.dim(0); ++i) slots.t.ptr<int64_t>()[i] = i;
        Owned pool = make(DType::kU8, {2 * num_blocks * epb, kv_entry_bytes(dh)});
        kv_entry_store_ref(ref_stream(), c.t, slots.t, pool.t);
        Owned lists = make(DType::kI32, {rows, top});
        for (int64_t t = 0; t < rows; ++t) {
            const int32_t visible = s.positions.t.ptr<int32_t>()[t] + 1;
            int64_t n = 0;
            for (int32_t j = 0; j < visible && n < top; ++j) {
                if (rng() % 4 != 0) lists.t.row<int32_t>(t)[n++] = j;
            }
            for (; n < top; ++n) lists.t.row<int32_t>(t)[n] = -1;
        }
        Owned q = random_bf16(rng, {rows, heads, dh}, 2.0f), sink = random_f32(rng, {heads});
        AttentionCache cache{
            step.t, ring.t, pool.t, static_cast<int>(epb), static_cast<int>(window)};
        for (const Tensor& list : {lists.t, Tensor()}) {
            Owned want = make(DType::kBF16, {rows, heads, dh}),
                  got = make(DType::kBF16, {rows, heads, dh});
            const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
            sparse_attention_ref<float>(
                ref_stream(), q.t, s.view, cache, list, sink.t, scale, want.t);
            ops().sparse_attention(stream(), q.t, s.view, cache, list, sink.t, scale, got.t);
            EXPECT_LE(distance(got.t, want.t), kBf16Store) << heads << " heads";
            // The last row of the first sequence as a step of its own: its predecessors are in the
            // ring.
            Owned alone = make(DType::kBF16, {1, heads, dh});
            Sequences one(1, 208, 0, num_blocks);
            BatchView v = one.view;
            v.positions = v.positions.rows(0, 1);
            v.row_seq = v.row_seq.rows(0, 1);
            Owned ring2 = ring;
            ring2.t.data = ring2.bytes.data();
            window_store_ref(ref_stream(), step.t.rows(0, 8), batch_rows(s.view, 0, 8), ring2.t);
            for (int64_t t = 0; t < 8; ++t) {
                std::memcpy(ring2.t.row<uint8_t>(1) + (200 + t) % ring_len * ring2.t.stride[1],
                            step.t.row<uint8_t>(t),
                            static_cast<size_t>(window_row_bytes(dh)));
            }
            AttentionCache later{step.t.rows(8, 9),
                                 ring2.t,
                                 pool.t,
                                 static_cast<int>(epb),
                                 static_cast<int>(window)};
            for (Backend* b : {one_.get(), two_.get()}) {
                b->ops().sparse_attention(b->device().stream(),
                                          q.t.rows(8, 9),
                                          v,
                                          later,
                                          list ? list.rows(8, 9) : list,
                                          sink.t,
                                          scale,
                                          alone.t);
                EXPECT_TRUE(same_bits(alone.t, got.t.rows(8, 9)));
            }
        }
    }
}

TEST_P(CpuBackend, AttentionKeepsNanInTheRowsThatSeeIt) {
    std::mt19937 rng = seeded();
    const int64_t dh = 64, heads = 4, rows = 30, window = 8;
    Sequences s(rows - 1, 0, 0, 1);
    Owned kv = random_bf16(rng, {rows, dh}), step = make(DType::kU8, {rows, window_row_bytes(dh)});
    kv.t.row<bf16>(10)[3] = to_bf16(NAN);
    window_pack_ref(ref_stream(), kv.t, step.t);
    Owned ring = make(DType::kU8, {2, 16, window_row_bytes(dh)}, 0),
          q = random_bf16(rng, {rows, heads, dh}), sink = random_f32(rng, {heads});
    q.t.row<bf16>(25)[0] = to_bf16(NAN);  // a query of its own
    AttentionCache cache{step.t, ring.t, Tensor(), 0, static_cast<int>(window)};
    Owned want = make(DType::kBF16, {rows, heads, dh}), got = make(DType::kBF16, {rows, heads, dh});
    sparse_attention_ref<float>(ref_stream(), q.t, s.view, cache, Tensor(), sink.t, 0.125, want.t);
    ops().sparse_attention(stream(), q.t, s.view, cache, Tensor(), sink.t, 0.125, got.t);
    EXPECT_LE(distance(got.t, want.t), kBf16Store);
    const auto any_nan = [&](int64_t t) {
        return std::any_of(got.t.row<bf16>(t), got.t.row<bf16>(t) + heads * dh, [](bf16 v) {
            return std::isnan(to_float(v));
        });
    };
    for (int64_t t = 0; t < rows; ++t) EXPECT_EQ(any_nan(t), (t >= 10 && t < 18) || t == 25) << t;
}

/// A row that sees one key alone and a sink without weight returns the key: every finite code of a
/// window row comes through exactly, zeros and subnormals included, at every level.
TEST_P(CpuBackend, AttentionReadsEveryCode) {
    const int64_t dh = 256, heads = 4;
    const std::vector<uint8_t> scales = {27, 90, 127, 131, 227};
    const int32_t rows = static_cast<int32_t>(scales.size());
    Sequences s(rows - 1, 0, 0, 1);
    Owned step = make(DType::kU8, {rows, window_row_bytes(dh)});
    for (int64_t t = 0; t < rows; ++t) {
        uint8_t* row = step.t.row<uint8_t>(t);
        for (int64_t i = 0; i < dh; ++i)
            row[i] = (i & 0x7F) == 0x7F ? uint8_t{0} : static_cast<uint8_t>(i);
        std::memset(row + dh, scales[static_cast<size_t>(t)], static_cast<size_t>(dh / 32));
    }
    Owned ring = make(DType::kU8, {2, 4, window_row_bytes(dh)}, 0),
          q = make(DType::kBF16, {rows, heads, dh}, 0), sink = make(DType::kF32, {heads});
    std::fill_n(sink.t.ptr<float>(), heads, -1e30f);
    AttentionCache cache{step.t, ring.t, Tensor(), 0, 1};
    Owned got = make(DType::kBF16, {rows, heads, dh});
    ops().sparse_attention(stream(), q.t, s.view, cache, Tensor(), sink.t, 0.125, got.t);
    for (int64_t t = 0; t < rows; ++t) {
        const double unit = std::ldexp(1.0, scales[static_cast<size_t>(t)] - 127);
        for (int64_t i = 0; i < heads * dh; ++i) {
            const uint8_t code = step.t.row<uint8_t>(t)[i % dh];
            ASSERT_EQ(to_float(got.t.row<bf16>(t)[i]), e4m3_to_float(code) * unit)
                << "row " << t << " code " << static_cast<int>(code);
        }
    }
}

TEST_P(CpuBackend, IndexerEqualsTwin) {
    std::mt19937 rng = seeded();
    const int64_t heads = 6, di = 64, epb = 8, num_blocks = 50, rows = 40, n = 400;
    Sequences s(39, 330, 77, num_blocks);
    Owned c = random_bf16(rng, {2 * num_blocks * epb, di}),
          slots = make(DType::kI64, {2 * num_blocks * epb});
    for (int64_t i = 0; i < slots.t.dim(0); ++i) slots.t.ptr<int64_t>()[i] = i;
    Owned pool = make(DType::kU8, {2 * num_blocks * epb, index_key_bytes(di)});
    index_key_store_ref(ref_stream(), c.t, slots.t, pool.t);
    Owned q = random_bf16(rng, {rows, heads * di}), hw = random_bf16(rng, {rows, heads});
    quant_q4m_ref(ref_stream(), q.t, q.t);
    const Tensor q3 = q.t.reshaped({rows, heads, di});
    IndexCache cache{pool.t, static_cast<int>(epb), 1};
    Owned want = make(DType::kF32, {rows, n}), got = make(DType::kF32, {rows, n});
    Owned wb = make(DType::kI32, {rows, 9}), gb = make(DType::kI32, {rows, 9});
    index_scores_ref<float>(ref_stream(), q3, hw.t, s.view, cache, Tensor(), 8, want.t);
    ops().index_scores(stream(), q3, hw.t, s.view, cache, Tensor(), 8, got.t);
    EXPECT_TRUE(same_bits(got.t, want.t));  // the dots are exact and the head sum has one order
    candidate_blocks_ref<float>(ref_stream(), want.t, s.positions.t, 1, 8, wb.t);
    ops().candidate_blocks(stream(), got.t, s.positions.t, 1, 8, gb.t);
    EXPECT_TRUE(same_bits(gb.t, wb.t));
    index_scores_ref<float>(ref_stream(), q3, hw.t, s.view, cache, wb.t, 8, want.t);
    ops().index_scores(stream(), q3, hw.t, s.view, cache, wb.t, 8, got.t);
    EXPECT_TRUE(same_bits(got.t, want.t));
    for (int64_t k : {1, 30, 72, 500}) {
        Owned wl = make(DType::kI32, {rows, k}), gl = make(DType::kI32, {rows, k});
        topk_select_ref<float>(ref_stream(), want.t, wl.t);
        ops().topk_select(stream(), got.t, gl.t);
        EXPECT_TRUE(same_bits(gl.t, wl.t));
    }
}

TEST_P(CpuBackend, TopkBreaksTiesByPosition) {
    std::mt19937 rng = seeded();
    Owned s = make(DType::kF32, {8, 1000}), want = make(DType::kI32, {8, 100}),
          got = make(DType::kI32, {8, 100});
    const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, NAN, -INFINITY, 2.0f, INFINITY};
    for (int64_t i = 0; i < s.t.numel(); ++i)
        s.t.ptr<float>()[i] = values[rng() % (i < 4000 ? 8 : 6)];
    topk_select_ref<float>(ref_stream(), s.t, want.t);
    ops().topk_select(stream(), s.t, got.t);
    EXPECT_TRUE(same_bits(got.t, want.t));
}

TEST_P(CpuBackend, RouterEqualsTwin) {
    std::mt19937 rng = seeded();
    const int64_t rows = 11, d = 64, e = 16, k = 3;
    OwnedWeight gate = random_weight(rng, DType::kBF16, e, d);
    WeightMatrix prepared = gate.w;
    ASSERT_TRUE(two_->prepare(prepared).ok());
    Owned u = random_bf16(rng, {rows, d}, 10.0f), want = make(DType::kF32, {rows, e}),
          got = make(DType::kF32, {rows, e});
    for (ScoringFunc f :
         {ScoringFunc::kSqrtSoftplus, ScoringFunc::kSigmoid, ScoringFunc::kSoftmax}) {
        router_scores_ref<float>(ref_stream(), u.t, gate.w, 0.7f, f, want.t);
        ops().router_scores(stream(), u.t, prepared, 0.7f, f, got.t);
        EXPECT_LE(distance(got.t, want.t), 5 * kFp32);
    }
    for (int64_t i = 0; i < want.t.numel(); ++i) {
        if (rng() % 5 == 0) want.t.ptr<float>()[i] = rng() % 3 == 0 ? NAN : 0.5f;
    }
    Owned bias = random_f32(rng, {e}, 0.0f), bias_vl = random_f32(rng, {e}),
          image = make(DType::kU8, {rows}, 0);
    image.t.ptr<uint8_t>()[3] = 1;
    Owned wi = make(DType::kI32, {rows, k}), gi = make(DType::kI32, {rows, k});
    router_topk_ref<float>(ref_stream(), want.t, bias.t, bias_vl.t, image.t, wi.t);
    ops().router_topk(stream(), want.t, bias.t, bias_vl.t, image.t, gi.t);
    EXPECT_TRUE(same_bits(gi.t, wi.t));
}

TEST(CpuBackendOptions, UnknownIsaIsRefusedWithTheList) {
    register_cpu_backend();
    BackendOptions o;
    o.isa = "mmx";
    const auto r = create_backend("cpu", o);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(r.status().message().find("baseline"), std::string::npos) << r.status().message();
}

TEST(CpuBackendAffinity, IsRefusedWithTooFewCoresAndForOtherWords) {
    register_cpu_backend();
    BackendOptions options;
    options.num_threads = 5000;
    setenv("DEEPINFER_AFFINITY", "1", 1);
    const auto crowded = create_backend("cpu", options);
    setenv("DEEPINFER_AFFINITY", "x", 1);
    options.num_threads = 1;
    const auto word = create_backend("cpu", options);
    unsetenv("DEEPINFER_AFFINITY");
    ASSERT_FALSE(crowded.ok());
    EXPECT_NE(crowded.status().message().find("needs a core for each of 5000 threads"),
              std::string::npos)
        << crowded.status().message();
    ASSERT_FALSE(word.ok());
    EXPECT_NE(word.status().message().find("DEEPINFER_AFFINITY is 'x'"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
