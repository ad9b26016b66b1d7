// The laws of every row-wise op (support/twin_test.h says how an op takes part).
#include <algorithm>
#include <limits>
#include <numeric>

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

std::vector<int> first_rows(int n) {
    std::vector<int> ids(static_cast<size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

// Around the row tiles of kernels: 1, 8, 16, 32, 64 and their neighbours; 5 and 6 are draft block
// sizes.
constexpr int kBatchSizes[] = {1, 2, 3, 5, 6, 8, 16, 33, 64};

// The judges themselves: a check that cannot fail is a defect.
TEST(HostTensor, GuardsSeeEveryByteBesideTheElements) {
    HostTensor t(DType::kBF16, {3, 5}, 2);
    for (int64_t i = 0; i < t.numel(); ++i) t.set(i, 1.0);
    ASSERT_TRUE(t.guards_intact());
    int seen = 0;
    for (size_t i = 0; i < t.memory().size(); ++i) {
        const uint8_t before = t.memory()[i];
        t.memory()[i] = static_cast<uint8_t>(before ^ 1);
        seen += !t.guards_intact();
        t.memory()[i] = before;
    }
    EXPECT_EQ(seen, 2 * HostTensor::kGuardBytes + 3 * 2 * 2);
}

TEST(Difference, SeesNanStepsAndUnwrittenElements) {
    const HostTensor a = HostTensor::from(DType::kBF16, {1, 4}, {1.0, -2.0, 3.0, 4.0});
    HostTensor b = a;
    EXPECT_EQ(difference(a, b, Tolerance::same_bits()), "");
    b.set(1, -2.0 - 0x1p-6);  // one bf16 step
    EXPECT_NE(difference(b, a, Tolerance::equal()), "");
    EXPECT_NE(difference(b, a, Tolerance::bf16_store()), "") << "relative L2 of a row this short";
    EXPECT_EQ(difference(b, a, {Tolerance::Kind::kBf16, 0.1}), "");
    b.set(1, -2.25);
    b.set(2, 3.25);  // two elements several steps away
    EXPECT_NE(difference(b, a, {Tolerance::Kind::kBf16, 0.1}).find("2 of 4"), std::string::npos);
    EXPECT_NE(difference(HostTensor(DType::kBF16, {1, 4}), a, Tolerance::f32(1e9)), "")
        << "unwritten elements are NaN";
    EXPECT_NE(difference(HostTensor(DType::kI32, {1, 4}),
                         HostTensor::from(DType::kI32, {1, 4}, {-1, -1, -1, -1}),
                         Tolerance::equal()),
              "");
    HostTensor zero = HostTensor::from(DType::kF32, {1, 1}, {0.0}),
               minus = HostTensor::from(DType::kF32, {1, 1}, {-0.0});
    EXPECT_EQ(difference(minus, zero, Tolerance::equal()), "");
    EXPECT_NE(difference(minus, zero, Tolerance::same_bits()), "");
    HostTensor inf =
        HostTensor::from(DType::kF32, {1, 1}, {std::numeric_limits<double>::infinity()});
    EXPECT_NE(difference(inf, zero, Tolerance::f32(1e9)).find("infinity"), std::string::npos);
}

TEST_P(TwinLaws, MatchesTwin) {
    OpBench bench(implementation()), judge(judge_of(implementation()));
    DI_SKIP_UNLESS_AVAILABLE(bench);
    for (const OpCase& op : cases()) {
        for (int rows : {0, 1, 3, 17, 33}) {
            const std::vector<HostTensor> got = op.run(bench, first_rows(rows)),
                                          want = op.run(judge, first_rows(rows));
            ASSERT_EQ(got.size(), want.size());
            ASSERT_EQ(got.size(), op.tolerances.size());
            for (size_t i = 0; i < got.size(); ++i) {
                EXPECT_EQ(difference(got[i], want[i], op.tolerances[i]), "")
                    << op << ", output " << i << ", " << rows << " rows";
            }
        }
    }
}

void expect_rows(OpBench& bench,
                 const OpCase& op,
                 const std::vector<HostTensor>& all,
                 const std::vector<int>& ids,
                 const std::string& what) {
    const std::vector<HostTensor> got = op.run(bench, ids);
    for (size_t o = 0; o < got.size(); ++o) {
        for (size_t r = 0; r < ids.size(); ++r) {
            ASSERT_EQ(got[o].row_bytes(static_cast<int64_t>(r)), all[o].row_bytes(ids[r]))
                << op << ", output " << o << ", row " << ids[r] << " in " << what;
        }
    }
}

TEST_P(TwinLaws, RowIgnoresItsBatch) {
    OpBench bench(implementation());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    std::vector<int> reversed = first_rows(64);
    std::reverse(reversed.begin(), reversed.end());
    for (const OpCase& op : cases()) {
        const std::vector<HostTensor> all = op.run(bench, first_rows(64));
        for (int rows : kBatchSizes)
            expect_rows(bench, op, all, first_rows(rows), "a batch of " + std::to_string(rows));
        expect_rows(bench, op, all, reversed, "the reversed batch");
        for (int row : {7, 40, 63}) expect_rows(bench, op, all, {row}, "a batch of its own");
    }
}

TEST_P(TwinLaws, ThreadsDoNotMatter) {
    OpBench one(implementation(), 1), two(implementation(), 2), three(implementation(), 3);
    DI_SKIP_UNLESS_AVAILABLE(one);
    for (const OpCase& op : cases()) {
        const std::vector<HostTensor> want = op.run(one, first_rows(17));
        for (OpBench* many : {&two, &three}) {
            const std::vector<HostTensor> got = op.run(*many, first_rows(17));
            for (size_t o = 0; o < got.size(); ++o) {
                EXPECT_EQ(difference(got[o], want[o], Tolerance::same_bits()), "")
                    << op << ", " << (many == &two ? 2 : 3) << " threads";
            }
        }
    }
}

TEST_P(TwinLaws, NanStaysInItsRow) {
    OpBench bench(implementation());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    for (const OpCase& op : cases()) {
        if (!op.poison) continue;  // nothing in a row of this op can be NaN
        bench.poisoned_row = -1;
        const std::vector<HostTensor> clean = op.run(bench, first_rows(9));
        bench.poisoned_row = 4;
        const std::vector<HostTensor> poisoned = op.run(bench, first_rows(9));
        for (size_t o = 0; o < clean.size(); ++o) {
            for (int64_t r = 0; r < 9; ++r) {
                if (r == 4) continue;
                EXPECT_EQ(poisoned[o].row_bytes(r), clean[o].row_bytes(r))
                    << op << ", output " << o << ", row " << r;
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
