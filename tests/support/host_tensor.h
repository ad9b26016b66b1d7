// HostTensor: a tensor with its own host memory, fenced by guard bytes and filled with NaN, for op
// tests.
//
// Every byte that is no element (guards in front and behind, padding between rows) keeps the fill
// pattern; guards_intact() says whether an op wrote there. Elements start as the pattern too (NaN
// for floats, 0x7b… for integers), so an element that an op forgot to write shows in the
// comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/weight_matrix.h"
#include "support/golden_file.h"
#include "support/seeded_random.h"
#include "tensor/tensor.h"

namespace deepinfer::testing {

class HostTensor {
  public:
    static constexpr int64_t kGuardBytes = 256;

    HostTensor() = default;
    /// `row_pad`: elements left between two rows of the first dimension.
    HostTensor(DType dtype, std::vector<int64_t> dims, int64_t row_pad = 0);
    /// The values of a golden tensor, converted to `dtype` (exactly: aborts if a value does not
    /// fit).
    static HostTensor from(const GoldenTensor& g, DType dtype, int64_t row_pad = 0);
    static HostTensor from(DType dtype,
                           std::vector<int64_t> dims,
                           const std::vector<double>& values);

    DType dtype() const { return dtype_; }
    const std::vector<int64_t>& dims() const { return dims_; }
    int64_t dim(int i) const { return dims_[static_cast<size_t>(i)]; }
    int64_t numel() const;
    int64_t row_numel() const;

    /// View over memory that starts at `base` (the guard in front included).
    Tensor view_at(uint8_t* base) const;
    Tensor view() { return view_at(memory_.data()); }
    std::vector<uint8_t>& memory() { return memory_; }
    const std::vector<uint8_t>& memory() const { return memory_; }

    /// Element by logical (row-major) index, as a number; integers and floats alike.
    double get(int64_t i) const;
    void set(int64_t i, double v);
    /// The stored bits of an element, zero-extended.
    uint64_t bits(int64_t i) const;
    void set_all(const std::vector<double>& values);
    void fill_normal(SeededRandom& random, double scale);

    /// Row i of the first dimension, its elements alone.
    std::vector<uint8_t> row_bytes(int64_t i) const;
    bool guards_intact() const;
    /// "[2, 17]" for logical index i.
    std::string coordinates(int64_t i) const;

  private:
    size_t offset(int64_t i) const;

    DType dtype_ = DType::kF32;
    std::vector<int64_t> dims_;
    int64_t row_stride_ = 0;  // elements
    std::vector<uint8_t> memory_;
};

/// A weight with its memory.
struct HostWeight {
    DType dtype = DType::kBF16;
    int64_t n = 0, k = 0;
    std::vector<uint8_t> weight, scale;

    WeightMatrix view() const;
    /// Values of about gain / sqrt(k), no NaN codes, scales that differ from block to block.
    static HostWeight random(
        SeededRandom& random, DType dtype, int64_t n, int64_t k, double gain = 1.0);
};

// ---- comparison
// ------------------------------------------------------------------------------------

struct Tolerance {
    enum class Kind {
        kSameBits,  ///< laws: batch, threads, chunking
        kEqual,     ///< equal values (−0 equals +0), NaN in the same places
        kFloat,     ///< NaN and infinities in the same places, relative L2 <= rel_l2
        kBf16,  ///< the same, and 99.9 % of the elements within one bf16 step (one may always miss)
    };
    Kind kind = Kind::kEqual;
    double rel_l2 = 0.0;

    static Tolerance same_bits() { return {Kind::kSameBits, 0.0}; }
    static Tolerance equal() { return {Kind::kEqual, 0.0}; }
    static Tolerance f32(double rel = 1e-6) { return {Kind::kFloat, rel}; }
    static Tolerance bf16_store() { return {Kind::kBf16, 2e-3}; }
};

/// Empty if `got` equals `want` within the tolerance, else a sentence with the worst place.
std::string difference(const HostTensor& got, const HostTensor& want, Tolerance tolerance);

}  // namespace deepinfer::testing
