#include "backends/cpu/pack.h"

#include <algorithm>
#include <cstring>

namespace deepinfer::cpu {
namespace {

constexpr uint8_t kMinScale = 127 - 100, kMaxScale = 127 + 100;

const uint8_t* bytes_of(const WeightMatrix& w) {
    return static_cast<const uint8_t*>(w.weight);
}

void pack_fp8(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* src = bytes_of(w) + (first + r) * w.k;
        for (int64_t i = 0; i < w.k; ++i) out[i * kPanelRows + r] = src[i];
    }
    // 32 × 32 tiles: a panel is one row of tiles.
    std::memcpy(out + w.k * kPanelRows, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
}

// 64 bytes of a half are four k of its 16 rows as 32 words: word 2n + i holds the codes of row n at
// k + i (low byte) and k + 2 + i (high byte), so that shifts and masks alone make two rows of an
// AMX operand. A block with a subnormal or zero code is marked: its codes need the table.
void pack_fp8_pairs(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    uint8_t* scales = out + w.k * kPanelRows;
    uint8_t* marks = scales + blocks;
    std::memcpy(scales, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
    std::memset(marks, rows < kPanelRows ? 1 : 0, static_cast<size_t>(blocks));
    for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* src = bytes_of(w) + (first + r) * w.k;
        uint8_t* half = out + r / 16 * (w.k * 16) + r % 16 * 4;
        for (int64_t i = 0; i < w.k; ++i) {
            half[i / 4 * 64 + i % 2 * 2 + i % 4 / 2] = src[i];
            marks[i / kBlockK] = static_cast<uint8_t>(marks[i / kBlockK] | ((src[i] & 0x78) == 0));
        }
    }
}

void pack_fp4(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    uint8_t* scales = out + w.k * 16;
    std::memset(scales, 127, static_cast<size_t>(blocks * kPanelRows));
    for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* src = bytes_of(w) + (first + r) * (w.k / 2);
        for (int64_t g = 0; g < w.k / 8; ++g) {
            uint32_t word = 0;
            for (int t = 0; t < 4; ++t) {
                const uint32_t pair = src[g * 4 + t];
                word |= (pair & 15u) << (4 * t) | (pair >> 4) << (16 + 4 * t);
            }
            std::memcpy(out + (g * kPanelRows + r) * 4, &word, 4);
        }
        for (int64_t b = 0; b < blocks; ++b)
            scales[b * kPanelRows + r] = w.scale[(first + r) * blocks + b];
    }
}

void pack_bf16(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* src = bytes_of(w) + (first + r) * w.k * 2;
        uint8_t* half = out + r / 16 * (w.k * 32) + r % 16 * 4;
        for (int64_t i = 0; i < w.k / 2; ++i) std::memcpy(half + i * 64, src + i * 4, 4);
    }
}

void pack_f32(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* src = bytes_of(w) + (first + r) * w.k * 4;
        for (int64_t i = 0; i < w.k; ++i)
            std::memcpy(out + (i * kPanelRows + r) * 4, src + i * 4, 4);
    }
}

}  // namespace

PanelFormat panel_format(DType dtype, Isa isa) {
    switch (dtype) {
        case DType::kFP8E4M3:
            return isa == Isa::kAmx ? PanelFormat::kFp8Pair : PanelFormat::kFp8;
        case DType::kFP4:
            return PanelFormat::kFp4;
        case DType::kBF16:
            return PanelFormat::kBf16;
        default:
            DI_CHECK(dtype == DType::kF32);
            return PanelFormat::kF32;
    }
}

int64_t panel_bytes(PanelFormat format, int64_t k) {
    int64_t b = 0;
    switch (format) {
        case PanelFormat::kFp8:
            b = k * kPanelRows + k / kBlockK;
            break;
        case PanelFormat::kFp8Pair:
            b = k * kPanelRows + 2 * (k / kBlockK);
            break;
        case PanelFormat::kFp4:
            b = k * kPanelRows / 2 + k / kBlockK * kPanelRows;
            break;
        case PanelFormat::kBf16:
            b = k * kPanelRows * 2;
            break;
        case PanelFormat::kF32:
            b = k * kPanelRows * 4;
            break;
    }
    return (b + 63) / 64 * 64;
}

bool packable(const WeightMatrix& w) {
    if (w.k <= 0 || w.k % kBlockK != 0 || w.k > kMaxPanelK || w.n <= 0) return false;
    int64_t num_scales = 0;
    if (w.dtype == DType::kFP8E4M3) {
        num_scales = (w.n + 31) / 32 * (w.k / 32);
        const uint8_t* p = bytes_of(w);
        if (std::any_of(p, p + w.n * w.k, [](uint8_t c) { return (c & 0x7F) == 0x7F; }))
            return false;
    } else if (w.dtype == DType::kFP4) {
        num_scales = w.n * (w.k / 32);
    } else if (w.dtype != DType::kBF16 && w.dtype != DType::kF32) {
        return false;
    }
    return std::all_of(
        w.scale, w.scale + num_scales, [](uint8_t s) { return s >= kMinScale && s <= kMaxScale; });
}

void pack_panels(
    const WeightMatrix& w, PanelFormat format, int64_t begin, int64_t end, uint8_t* out) {
    const int64_t stride = panel_bytes(format, w.k);
    for (int64_t p = begin; p < end; ++p) {
        const int64_t first = p * kPanelRows, rows = std::min<int64_t>(kPanelRows, w.n - first);
        uint8_t* dst = out + p * stride;
        if (rows < kPanelRows) std::memset(dst, 0, static_cast<size_t>(stride));
        switch (format) {
            case PanelFormat::kFp8:
                pack_fp8(w, first, rows, dst);
                break;
            case PanelFormat::kFp8Pair:
                pack_fp8_pairs(w, first, rows, dst);
                break;
            case PanelFormat::kFp4:
                pack_fp4(w, first, rows, dst);
                break;
            case PanelFormat::kBf16:
                pack_bf16(w, first, rows, dst);
                break;
            case PanelFormat::kF32:
                pack_f32(w, first, rows, dst);
                break;
        }
    }
}

}  // namespace deepinfer::cpu
