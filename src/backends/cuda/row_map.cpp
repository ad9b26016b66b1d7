#include "backends/cuda/row_map.h"

#include <cudaTypedefs.h>

#include <string>

namespace deepinfer::cuda {
namespace {

/// The driver's encoder, asked for by name so that nothing links against the driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder(CudaStream& stream) {
    static void* const found = [&] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult status{};
        DI_CUDA(stream,
                cudaGetDriverEntryPointByVersion(
                    "cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &status),
                "tensor maps",
                "");
        return f;
    }();
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

}  // namespace

CUtensorMap row_map(CudaStream& stream,
                    const void* rows,
                    int64_t num_columns,
                    int64_t num_rows,
                    int64_t stride,
                    int box_rows) {
    CUtensorMap map{};
    const cuuint64_t dims[2] = {static_cast<cuuint64_t>(num_columns),
                                static_cast<cuuint64_t>(num_rows)},
                     strides[1] = {static_cast<cuuint64_t>(stride) * 2};
    const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
    const auto encode = encoder(stream);
    const CUresult result = encode == nullptr ? CUDA_ERROR_NOT_FOUND
                                              : encode(&map,
                                                       CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                                       2,
                                                       const_cast<void*>(rows),
                                                       dims,
                                                       strides,
                                                       box,
                                                       step,
                                                       CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                       CU_TENSOR_MAP_SWIZZLE_128B,
                                                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        stream.record(cudaErrorInvalidValue,
                      "cuTensorMapEncodeTiled",
                      "activation rows",
                      "[" + std::to_string(num_rows) + ", " + std::to_string(num_columns) +
                          "], driver error " + std::to_string(static_cast<int>(result)));
    }
    return map;
}

}  // namespace deepinfer::cuda
