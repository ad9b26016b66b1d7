// The CUDA table declares what its kernels promise. Needs no device.
#include <gtest/gtest.h>

#include "backends/cuda/cuda_ops.h"
#include "ops/numeric_class.h"

namespace deepinfer {
namespace {

TEST(CudaOpTable, EveryOpDeclaresItsClass) {
    const Status s = check_numeric_classes(cuda::cuda_op_table(), NumericClass::kRowInvariant);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_GE(op_sites(cuda::cuda_op_table()).size(), 35u);
}

}  // namespace
}  // namespace deepinfer
