#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

using nlohmann::json;

struct DtypeBits {
    std::string_view name;
    int bits;
};
constexpr std::array<DtypeBits, 16> kDtypes = {{{"F64", 64},
                                                {"F32", 32},
                                                {"F16", 16},
                                                {"BF16", 16},
                                                {"I64", 64},
                                                {"I32", 32},
                                                {"I16", 16},
                                                {"I8", 8},
                                                {"U64", 64},
                                                {"U32", 32},
                                                {"U16", 16},
                                                {"U8", 8},
                                                {"BOOL", 8},
                                                {"F8_E4M3", 8},
                                                {"F8_E5M2", 8},
                                                {"F8_E8M0", 8}}};

Status invalid(const std::string& where, const std::string& what) {
    return {StatusCode::kInvalidFile, where + ": " + what};
}

/// Product of the dimensions times the element size in bytes; false on overflow of 63 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, int bits, uint64_t* bytes) {
    uint64_t n = 1;
    constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    for (int64_t d : shape) {
        const uint64_t dim = static_cast<uint64_t>(d);
        if (dim != 0 && n > kMax / dim) return false;
        n *= dim;
    }
    const uint64_t element = static_cast<uint64_t>(bits) / 8;
    if (n > kMax / element) return false;
    *bytes = n * element;
    return true;
}

/// One entry of the header; offsets are still relative to the data section.
Result<SafetensorsEntry> parse_entry(const std::string& name, const json& value) {
    const auto bad = [&](const std::string& what) {
        return Status(StatusCode::kInvalidFile, "tensor " + in_quotes(name) + " " + what);
    };
    if (name.empty()) return bad("has an empty name");
    if (!value.is_object()) return bad("is " + show_json(value) + ", expected an object");
    for (const auto& item : value.items()) {
        if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
            return bad("has the unknown key " + in_quotes(item.key()));
        }
    }
    SafetensorsEntry entry;
    entry.name = name;

    const auto dtype = value.find("dtype");
    if (dtype == value.end() || !dtype->is_string()) return bad("has no dtype string");
    entry.dtype = dtype->get<std::string>();
    const int bits = safetensors_dtype_bits(entry.dtype);
    if (bits == 0) return bad("has the unknown dtype " + in_quotes(entry.dtype));

    const auto shape = value.find("shape");
    if (shape == value.end() || !shape->is_array()) return bad("has no shape array");
    if (shape->size() > kMaxSafetensorsDims) {
        return bad("has " + std::to_string(shape->size()) + " dimensions, at most " +
                   std::to_string(kMaxSafetensorsDims) + " are expected");
    }
    for (const json& d : *shape) {
        constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
        if (!d.is_number_unsigned() || d.get<uint64_t>() > kMax) {
            return bad("has the dimension " + show_json(d) + ", expected a non-negative integer");
        }
        entry.shape.push_back(d.get<int64_t>());
    }

    const auto offsets = value.find("data_offsets");
    if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
        return bad("has data_offsets " +
                   (offsets == value.end() ? std::string("missing") : show_json(*offsets)) +
                   ", expected two non-negative integers");
    }
    entry.begin = (*offsets)[0].get<uint64_t>();
    entry.end = (*offsets)[1].get<uint64_t>();
    if (entry.begin > entry.end) return bad("has data_offsets that run backwards");

    uint64_t bytes = 0;
    if (!tensor_bytes(entry.shape, bits, &bytes)) {
        return bad("has the shape " + shape_text(entry.shape) + ", whose size overflows");
    }
    if (entry.end - entry.begin != bytes) {
        return bad("has " + std::to_string(entry.end - entry.begin) + " bytes, expected " +
                   std::to_string(bytes) + " for " + entry.dtype + " " + shape_text(entry.shape));
    }
    return entry;
}

}  // namespace

int safetensors_dtype_bits(const std::string& dtype) {
    for (const DtypeBits& d : kDtypes) {
        if (d.name == dtype) return d.bits;
    }
    return 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string s = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        s += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    }
    return s + "]";
}

Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const uint8_t> file,
                                                        const std::string& where) {
    constexpr uint64_t kPrefix = 8;
    if (file.size() < kPrefix) {
        return invalid(where,
                       "has " + std::to_string(file.size()) +
                           " bytes, a safetensors file starts with 8 bytes of header length");
    }
    uint64_t header_bytes = 0;
    for (size_t i = 0; i < kPrefix; ++i) {
        header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
    }
    if (header_bytes > kMaxSafetensorsHeaderBytes) {
        return invalid(where,
                       "header length is " + std::to_string(header_bytes) + ", at most " +
                           std::to_string(kMaxSafetensorsHeaderBytes) + " bytes are expected");
    }
    if (header_bytes > file.size() - kPrefix) {
        return invalid(where,
                       "header length is " + std::to_string(header_bytes) + ", but only " +
                           std::to_string(file.size() - kPrefix) +
                           " bytes follow (truncated file?)");
    }
    const std::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefix,
                                static_cast<size_t>(header_bytes));
    if (text.empty() || text.front() != '{') return invalid(where, "header is no JSON object");
    Result<json> header = parse_strict_json(text, JsonLimits{}, where + " header");
    if (!header.ok()) return header.status();

    std::vector<SafetensorsEntry> entries;
    entries.reserve(header->size());
    for (const auto& item : header->items()) {
        if (item.key() == "__metadata__") {
            if (!item.value().is_object()) return invalid(where, "__metadata__ is no object");
            for (const auto& m : item.value().items()) {
                if (m.value().is_string()) continue;
                return invalid(where,
                               "__metadata__ value of " + in_quotes(m.key()) + " is no string");
            }
            continue;
        }
        Result<SafetensorsEntry> entry = parse_entry(item.key(), item.value());
        if (!entry.ok()) return invalid(where, entry.status().message());
        entries.push_back(std::move(entry).value());
    }

    // Empty tensors share their offset with a neighbour: they sort before it.
    std::sort(
        entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
    const uint64_t data_bytes = file.size() - kPrefix - header_bytes;
    uint64_t at = 0;
    for (SafetensorsEntry& e : entries) {
        if (e.begin != at) {
            return invalid(where,
                           "tensor " + in_quotes(e.name) + " starts at byte " +
                               std::to_string(e.begin) + " of the data, expected " +
                               std::to_string(at) + (e.begin < at ? " (overlap)" : " (hole)"));
        }
        if (e.end > data_bytes) {
            return invalid(where,
                           "tensor " + in_quotes(e.name) + " ends at byte " +
                               std::to_string(e.end) + " of the data, but the file holds " +
                               std::to_string(data_bytes) + " (truncated file?)");
        }
        at = e.end;
        e.begin += kPrefix + header_bytes;
        e.end += kPrefix + header_bytes;
    }
    if (at != data_bytes) {
        return invalid(
            where,
            std::to_string(data_bytes - at) + " bytes follow the last tensor, expected none");
    }
    return entries;
}

}  // namespace deepinfer
