#include "tensor/tensor.h"

namespace deepinfer {

const char* dtype_name(DType t) {
    switch (t) {
        case DType::kF32:
            return "f32";
        case DType::kF64:
            return "f64";
        case DType::kBF16:
            return "bf16";
        case DType::kFP8E4M3:
            return "fp8_e4m3";
        case DType::kUE8M0:
            return "ue8m0";
        case DType::kFP4:
            return "fp4_e2m1";
        case DType::kU8:
            return "u8";
        case DType::kI32:
            return "i32";
        case DType::kI64:
            return "i64";
    }
    return "?";
}

std::string Tensor::to_string() const {
    std::string s = std::string(dtype_name(dtype)) + "[";
    for (int i = 0; i < ndim; ++i)
        s += (i > 0 ? ", " : "") + std::to_string(shape[static_cast<size_t>(i)]);
    return s + "]";
}

}  // namespace deepinfer
