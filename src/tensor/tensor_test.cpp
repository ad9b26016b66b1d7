#include "tensor/tensor.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Tensor, DenseShapeAndStrides) {
    float data[24] = {};
    const Tensor t(data, DType::kF32, {2, 3, 4});
    EXPECT_EQ(t.numel(), 24);
    EXPECT_EQ(t.bytes(), 96);
    EXPECT_EQ(t.dim(-1), 4);
    EXPECT_TRUE(t.dense());
    EXPECT_EQ(t.row<float>(1), data + 12);
    EXPECT_EQ(t.to_string(), "f32[2, 3, 4]");
}

TEST(Tensor, RowsAndColumnsAreViews) {
    uint16_t data[20] = {};
    const Tensor t(data, DType::kBF16, {4, 5});
    const Tensor rows = t.rows(1, 3), cols = t.cols(2, 4);
    EXPECT_EQ(rows.data, data + 5);
    EXPECT_EQ(rows.dim(0), 2);
    EXPECT_TRUE(rows.dense());
    EXPECT_EQ(cols.data, data + 2);
    EXPECT_EQ(cols.dim(1), 2);
    EXPECT_FALSE(cols.dense());
    EXPECT_EQ(cols.row<uint16_t>(3), data + 17);
}

TEST(Tensor, Fp4CountsValuesNotBytes) {
    uint8_t data[32] = {};
    const Tensor t(data, DType::kFP4, {4, 16});
    EXPECT_EQ(t.bytes(), 32);
    EXPECT_EQ(t.rows(2, 3).data, data + 16);
}

TEST(Tensor, EmptyDimensions) {
    const Tensor t(nullptr, DType::kI32, {0, 7});
    EXPECT_EQ(t.numel(), 0);
    EXPECT_TRUE(t.dense());
    EXPECT_FALSE(static_cast<bool>(t));
}

TEST(Tensor, ReshapeKeepsTheElements) {
    float data[12] = {};
    const Tensor t = Tensor(data, DType::kF32, {3, 4}).reshaped({2, 6});
    EXPECT_EQ(t.row<float>(1), data + 6);
}

TEST(TensorDeathTest, ReshapeRefusesOtherCountsAndGaps) {
    float data[12] = {};
    const Tensor t(data, DType::kF32, {3, 4});
    EXPECT_DEATH(t.reshaped({5, 2}), "10 against 12");
    EXPECT_DEATH(t.cols(0, 2).reshaped({6}), "dense");
}

TEST(Tensor, DispatchFollowsTheDtype) {
    size_t size = 0;
    dispatch_acc(DType::kF32, [&](auto tag) { size = sizeof tag; });
    EXPECT_EQ(size, sizeof(float));
    dispatch_acc(DType::kF64, [&](auto tag) { size = sizeof tag; });
    EXPECT_EQ(size, sizeof(double));
}

}  // namespace
}  // namespace deepinfer
