#include "support/golden_file.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tensor/dtype.h"

#ifndef DEEPINFER_SOURCE_DIR
#error "DEEPINFER_SOURCE_DIR must be defined"
#endif

namespace deepinfer::testing {
namespace {

[[noreturn]] void die(const std::string& what) {
    std::fprintf(stderr, "test data: %s\n", what.c_str());
    std::abort();
}

template <typename T>
T load(const uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

}  // namespace

int64_t GoldenTensor::numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
}

std::vector<double> GoldenTensor::doubles() const {
    std::vector<double> out(static_cast<size_t>(numel()));
    for (size_t i = 0; i < out.size(); ++i) {
        const uint8_t* p = bytes.data();
        if (dtype == "BF16")
            out[i] = to_float(bf16{load<uint16_t>(p + 2 * i)});
        else if (dtype == "F32")
            out[i] = load<float>(p + 4 * i);
        else if (dtype == "F64")
            out[i] = load<double>(p + 8 * i);
        else
            die("doubles() of a " + dtype + " tensor");
    }
    return out;
}

std::vector<float> GoldenTensor::floats() const {
    const std::vector<double> d = doubles();
    return {d.begin(), d.end()};
}

std::vector<int64_t> GoldenTensor::ints() const {
    std::vector<int64_t> out(static_cast<size_t>(numel()));
    for (size_t i = 0; i < out.size(); ++i) {
        const uint8_t* p = bytes.data();
        if (dtype == "I64")
            out[i] = load<int64_t>(p + 8 * i);
        else if (dtype == "I32")
            out[i] = load<int32_t>(p + 4 * i);
        else if (dtype == "I8")
            out[i] = static_cast<int8_t>(p[i]);
        else if (dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E8M0")
            out[i] = p[i];
        else
            die("ints() of a " + dtype + " tensor");
    }
    return out;
}

std::vector<uint16_t> GoldenTensor::bf16_bits() const {
    if (dtype != "BF16") die("bf16_bits() of a " + dtype + " tensor");
    std::vector<uint16_t> out(static_cast<size_t>(numel()));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
}

std::map<std::string, GoldenTensor> read_golden(const std::string& path) {
    std::ifstream f(path, std::ios::binary);
    if (!f) die("cannot open " + path);
    const std::vector<uint8_t> raw{std::istreambuf_iterator<char>(f), {}};
    if (raw.size() < 8) die(path + " is too short");
    const uint64_t n = load<uint64_t>(raw.data());
    const auto header =
        nlohmann::json::parse(raw.begin() + 8, raw.begin() + 8 + static_cast<int64_t>(n));
    std::map<std::string, GoldenTensor> out;
    for (const auto& [name, t] : header.items()) {
        if (name == "__metadata__") continue;
        GoldenTensor g;
        g.dtype = t["dtype"];
        g.shape = t["shape"].get<std::vector<int64_t>>();
        const auto begin = raw.begin() + 8 + static_cast<int64_t>(n);
        g.bytes.assign(begin + t["data_offsets"][0].get<int64_t>(),
                       begin + t["data_offsets"][1].get<int64_t>());
        out[name] = std::move(g);
    }
    return out;
}

std::string data_path(const std::string& relative) {
    return std::string(DEEPINFER_SOURCE_DIR) + "/tests/data/" + relative;
}

std::string checkpoint_path(const std::string& name) {
    if (name == "demo") return std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";
    return std::string(DEEPINFER_BINARY_DIR) + "/checkpoints/" + name;
}

}  // namespace deepinfer::testing
