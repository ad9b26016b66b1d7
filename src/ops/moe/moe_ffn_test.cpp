#include "ops/moe/moe_ffn.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "support/case_file.h"
#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase swiglu_case(int64_t n, float limit, bool weighted, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor gate(DType::kBF16, {rows, n}, pad), up(DType::kBF16, {rows, n}, pad),
            weight(bench.acc(), {rows}), out(DType::kBF16, {rows, n}, 2 * pad);
        bench.rows(gate, ids, "swiglu gate", 6.0);
        bench.rows(up, ids, "swiglu up", 6.0);
        for (int64_t r = 0; r < rows; ++r) weight.set(r, 0.25 + ids[static_cast<size_t>(r)] % 7);
        bench.ops().swiglu(bench.stream(),
                           bench.put(gate),
                           bench.put(up),
                           weighted ? bench.put(weight) : Tensor(),
                           limit,
                           bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"swiglu_n" + std::to_string(n) + (limit > 0 ? "_clamped" : "") +
                (weighted ? "_weighted" : ""),
            {Tolerance::bf16_store()},
            run};
}

/// Weights of a small feed-forward block, experts first, the shared one last.
struct Experts {
    std::vector<HostWeight> w1, w3, w2;
    Experts(int count, int64_t d, int64_t inner) {
        SeededRandom random("moe experts");
        for (int e = 0; e <= count; ++e) {
            const DType format = e < count ? DType::kFP4 : DType::kFP8E4M3;
            w1.push_back(HostWeight::random(random, format, inner, d, 3.0));
            w3.push_back(HostWeight::random(random, format, inner, d, 3.0));
            w2.push_back(HostWeight::random(random, format, d, inner, 1.0));
        }
    }
    std::vector<ExpertWeights> put(OpBench& bench) const {
        std::vector<ExpertWeights> out;
        for (size_t e = 0; e < w1.size(); ++e)
            out.push_back({bench.put(w1[e]), bench.put(w3[e]), bench.put(w2[e])});
        return out;
    }
};

OpCase moe_case(int experts, int64_t k, int64_t d, int64_t inner, float limit, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& row_ids) {
        const int64_t rows = static_cast<int64_t>(row_ids.size());
        const Experts host(experts, d, inner);
        const std::vector<ExpertWeights> all = host.put(bench);
        HostTensor u(DType::kBF16, {rows, d}, pad), ids(DType::kI32, {rows, k}),
            weights(bench.acc(), {rows, k}), out(DType::kBF16, {rows, d}, pad);
        bench.rows(u, row_ids, "moe u", 1.0);
        for (int64_t r = 0; r < rows; ++r) {
            SeededRandom random("moe ids/" + std::to_string(row_ids[static_cast<size_t>(r)]));
            std::vector<int> picks;
            while (static_cast<int64_t>(picks.size()) < k) {
                const int e = static_cast<int>(random.below(experts));
                if (std::find(picks.begin(), picks.end(), e) == picks.end()) picks.push_back(e);
            }
            std::sort(picks.begin(), picks.end());
            for (int64_t i = 0; i < k; ++i) {
                ids.set(r * k + i, picks[static_cast<size_t>(i)]);
                weights.set(r * k + i, 0.125 * static_cast<double>(1 + random.below(8)));
            }
        }
        bench.ops().moe_ffn(bench.stream(),
                            bench.put(u),
                            bench.put(ids),
                            bench.put(weights),
                            {all.data(), static_cast<size_t>(experts)},
                            all.back(),
                            limit,
                            bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"moe_e" + std::to_string(experts) + "_k" + std::to_string(k) + "_d" +
                std::to_string(d) + "_i" + std::to_string(inner) + (limit > 0 ? "_clamped" : ""),
            {Tolerance::bf16_store()},
            run};
}

DI_TWIN_LAWS(MoeFfn,
             swiglu_case(64, 10.0f, true, 0),
             swiglu_case(33, 10.0f, false, 5),
             swiglu_case(1, 0.0f, true, 0),
             moe_case(12, 3, 256, 64, 10.0f, 0),
             moe_case(8, 2, 64, 32, 2.0f, 8),
             moe_case(1, 1, 32, 32, 0.0f, 0),
             moe_case(20, 6, 128, 96, 10.0f, 3));

class MoeFfn : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         MoeFfn,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(MoeFfn, GoldenSwiglu) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/swiglu.safetensors"));
    HostTensor gate = HostTensor::from(g["gate"], DType::kBF16),
               up = HostTensor::from(g["up"], DType::kBF16), y(DType::kBF16, gate.dims()),
               shared(DType::kBF16, gate.dims());
    HostTensor weight = HostTensor::from(bench.acc(), {gate.dim(0)}, g["routing_weight"].doubles());
    const Tensor gt = bench.put(gate), ut = bench.put(up);
    bench.ops().swiglu(bench.stream(), gt, ut, bench.put(weight), 10.0f, bench.put(y));
    bench.ops().swiglu(bench.stream(), gt, ut, Tensor(), 10.0f, bench.put(shared));
    bench.finish();
    const Tolerance tolerance = bench.exact() ? Tolerance::equal() : Tolerance::bf16_store();
    EXPECT_EQ(difference(y, HostTensor::from(g["y"], DType::kBF16), tolerance), "");
    EXPECT_EQ(difference(shared, HostTensor::from(g["y_shared"], DType::kBF16), tolerance), "");
}

TEST_P(MoeFfn, FieldCaseC099) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    for (const auto& row : case_rows("op_numerics.json", "C-099")) {
        HostTensor gate = HostTensor::from(DType::kBF16, {1, 1}, {row["in"]["gate"]}),
                   up = HostTensor::from(DType::kBF16, {1, 1}, {row["in"]["up"]}),
                   y(DType::kBF16, {1, 1});
        bench.ops().swiglu(bench.stream(),
                           bench.put(gate),
                           bench.put(up),
                           Tensor(),
                           row["in"]["limit"],
                           bench.put(y));
        bench.finish();
        EXPECT_EQ(y.get(0), round_bf16(row["want"].get<float>())) << row;
    }
}

/// Leaves heap memory behind that is full of `byte`, for whoever allocates next.
void pollute_heap(uint8_t byte) {
    std::vector<void*> blocks;
    for (size_t size = 16; size <= (1u << 20); size += size / 2) {
        for (int i = 0; i < 4; ++i) {
            void* p = std::malloc(size);
            if (p == nullptr) continue;
            std::memset(p, byte, size);
            blocks.push_back(p);
        }
    }
    for (void* p : blocks) std::free(p);
}

// Scratch rows beyond an expert's last token never reach a result, whatever bytes they hold.
TEST_P(MoeFfn, FieldCaseC107) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    mallopt(M_MMAP_THRESHOLD,
            1 << 30);  // large scratch comes from the heap too, not from fresh zero pages
    for (const auto& row : case_rows("op_numerics.json", "C-107")) {
        const std::vector<int> per_expert = row["in"]["tokens_per_expert"];
        const int experts = static_cast<int>(per_expert.size());
        const Experts host(experts, 64, 32);
        const std::vector<ExpertWeights> all = host.put(bench);
        std::vector<double> picks;
        for (int e = 0; e < experts; ++e)
            picks.insert(picks.end(), static_cast<size_t>(per_expert[static_cast<size_t>(e)]), e);
        const int64_t rows = static_cast<int64_t>(picks.size());
        const auto run = [&](uint8_t byte) {
            HostTensor u(DType::kBF16, {rows, 64}),
                ids = HostTensor::from(DType::kI32, {rows, 1}, picks),
                out(DType::kBF16, {rows, 64});
            HostTensor weights =
                HostTensor::from(bench.acc(), {rows, 1}, std::vector<double>(picks.size(), 1.5));
            std::vector<int> row_ids(picks.size());
            for (size_t i = 0; i < row_ids.size(); ++i) row_ids[i] = static_cast<int>(i);
            bench.rows(u, row_ids, "C-107", 1.0);
            const Tensor ut = bench.put(u), it = bench.put(ids), wt = bench.put(weights),
                         ot = bench.put(out);
            pollute_heap(byte);
            mallopt(M_PERTURB, byte ^ 0xFF);  // malloc fills new memory with the complement of this
            bench.ops().moe_ffn(
                bench.stream(), ut, it, wt, {all.data(), all.size() - 1}, all.back(), 10.0f, ot);
            mallopt(M_PERTURB, 0);
            bench.finish();
            return out;
        };
        const HostTensor clean = run(0);
        for (int64_t i = 0; i < clean.numel(); ++i) ASSERT_FALSE(std::isnan(clean.get(i)));
        const uint8_t byte = static_cast<uint8_t>(std::stoi(
            row["in"]["scratch_filled_with"].get<std::string>().substr(2, 2), nullptr, 16));
        EXPECT_EQ(difference(run(byte), clean, Tolerance::same_bits()), "") << row;
    }
}

// One expert, one row, by hand through the parts: what moe_ffn may fuse but not change.
TEST_P(MoeFfn, EqualsItsParts) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const Experts host(1, 64, 32);
    const std::vector<ExpertWeights> all = host.put(bench);
    HostTensor u(DType::kBF16, {1, 64}), ids = HostTensor::from(DType::kI32, {1, 1}, {0}),
                                         weights = HostTensor::from(bench.acc(), {1, 1}, {0.75}),
                                         fused(DType::kBF16, {1, 64});
    bench.rows(u, {3}, "MoeFfn.EqualsItsParts", 1.0);
    HostTensor q(DType::kBF16, {1, 64}), w1 = HostTensor::from(bench.acc(), {1}, {0.75});
    const Tensor ut = bench.put(u), qt = bench.put(q), wt = bench.put(w1);
    bench.ops().moe_ffn(bench.stream(),
                        ut,
                        bench.put(ids),
                        bench.put(weights),
                        {all.data(), 1},
                        all[1],
                        10.0f,
                        bench.put(fused));
    bench.ops().quant_q8(bench.stream(), ut, qt);
    std::vector<HostTensor> ys;
    for (size_t e = 0; e < 2; ++e) ys.emplace_back(DType::kBF16, std::vector<int64_t>{1, 64});
    HostTensor gate(DType::kBF16, {1, 32}), up(DType::kBF16, {1, 32});
    for (size_t e = 0; e < 2; ++e) {
        const Tensor gt = bench.put(gate), pt = bench.put(up);
        bench.ops().linear(bench.stream(), qt, all[e].w1, gt);
        bench.ops().linear(bench.stream(), qt, all[e].w3, pt);
        bench.ops().swiglu(bench.stream(), gt, pt, e == 0 ? wt : Tensor(), 10.0f, gt);
        bench.ops().quant_q8(bench.stream(), gt, gt);
        bench.ops().linear(bench.stream(), gt, all[e].w2, bench.put(ys[e]));
    }
    bench.finish();
    HostTensor sum(DType::kBF16, {1, 64});
    for (int64_t i = 0; i < 64; ++i)
        sum.set(i, static_cast<float>(ys[0].get(i)) + static_cast<float>(ys[1].get(i)));
    const bool twin = GetParam().backend != "cpu";
    EXPECT_EQ(difference(fused, sum, twin ? Tolerance::same_bits() : Tolerance::bf16_store()), "");
}

}  // namespace
}  // namespace deepinfer::testing
