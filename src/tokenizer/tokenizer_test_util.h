// Shared by the tokenizer's tests: packed data files, the tokenizers, seeded random text.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "deepinfer/tokenizer.h"
#include "support/golden_file.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace deepinfer::testing {

/// Contents of a gzip file below tests/data (a plain file is read as it is).
inline std::string read_packed(const std::string& relative) {
    gzFile file = gzopen(data_path(relative).c_str(), "rb");
    if (file == nullptr) {
        std::fprintf(stderr, "cannot open %s\n", data_path(relative).c_str());
        std::abort();
    }
    std::string out;
    std::vector<char> buffer(1 << 16);
    int n = 0;
    while ((n = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
        out.append(buffer.data(), static_cast<size_t>(n));
    }
    gzclose(file);
    if (n < 0 || out.empty()) {
        std::fprintf(stderr, "cannot unpack %s\n", data_path(relative).c_str());
        std::abort();
    }
    return out;
}

inline Tokenizer load_packed(const std::string& relative) {
    Result<Tokenizer> tokenizer = Tokenizer::from_json(read_packed(relative));
    if (!tokenizer.ok()) {
        std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
        std::abort();
    }
    return std::move(tokenizer).value();
}

/// The released tokenizer, loaded once per test program.
inline const Tokenizer& released_tokenizer() {
    static const Tokenizer tokenizer = load_packed("tokenizer/tokenizer.json.gz");
    return tokenizer;
}

/// A generator whose seed is the name of the running test.
inline std::mt19937 test_rng() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(info->test_suite_name()) + "." + info->name();
    std::seed_seq seed(name.begin(), name.end());
    return std::mt19937(seed);
}

/// A number in [0, n); the same on every platform, unlike std::uniform_int_distribution.
inline uint32_t below(std::mt19937& rng, uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(rng()) * n) >> 32);
}

/// A code point that is no surrogate, mostly from scripts and signs that people use.
inline char32_t random_code_point(std::mt19937& rng) {
    static const char32_t ranges[][2] = {
        {0x20, 0x7E},       {0x20, 0x7E},       {0x09, 0x0D},     {0x20, 0x20},
        {0x30, 0x39},       {0xA0, 0x24F},      {0x300, 0x36F},   {0x370, 0x52F},
        {0x590, 0x6FF},     {0x900, 0xDFF},     {0x1E00, 0x20CF}, {0x2100, 0x2BFF},
        {0x3000, 0x30FF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3}, {0xF900, 0xFFFF},
        {0x1F300, 0x1FAFF}, {0x20000, 0x2FFFF}, {0, 0xD7FF},      {0xE000, 0x10FFFF}};
    const auto& range = ranges[below(rng, sizeof(ranges) / sizeof(ranges[0]))];
    return range[0] + below(rng, static_cast<uint32_t>(range[1] - range[0] + 1));
}

inline std::string random_text(std::mt19937& rng, uint32_t max_characters) {
    std::string out;
    const uint32_t n = below(rng, max_characters + 1);
    while (out.size() < n) {
        const char32_t c = random_code_point(rng);
        const uint32_t repeats = below(rng, 4) == 0 ? 1 + below(rng, 4) : 1;
        for (uint32_t i = 0; i < repeats; ++i) append_utf8(c, out);
    }
    return out;
}

/// A small valid tokenizer.json: the 256 bytes (ids 0 … 255), "he" "ll" "hell" "hello" " hello"
/// (256 … 260) and the added tokens "<a>" and "<ab>" (261, 262).
inline nlohmann::json small_tokenizer_json() {
    using nlohmann::json;
    json vocab = json::object();
    for (int byte = 0; byte < 256; ++byte) {
        vocab[alphabet_spelling(std::string(1, static_cast<char>(byte)))] = byte;
    }
    int id = 256;
    for (const char* token : {"he", "ll", "hell", "hello", "Ġhello"}) vocab[token] = id++;
    json added = json::array();
    for (const char* token : {"<a>", "<ab>"}) {
        added.push_back({{"id", id++},
                         {"content", token},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    const auto split = [](const char* expression) {
        return json{{"type", "Split"},
                    {"pattern", {{"Regex", expression}}},
                    {"behavior", "Isolated"},
                    {"invert", false}};
    };
    const auto byte_level = [](bool add_prefix_space, bool use_regex) {
        return json{{"type", "ByteLevel"},
                    {"add_prefix_space", add_prefix_space},
                    {"trim_offsets", true},
                    {"use_regex", use_regex}};
    };
    const json released = json::parse(read_packed("tokenizer/nano_tokenizer.json.gz"));
    const json& steps = released["pre_tokenizer"]["pretokenizers"];
    json pre = json::array();
    for (size_t i = 0; i < 3; ++i) {
        pre.push_back(split(steps[i]["pattern"]["Regex"].get_ref<const std::string&>().c_str()));
    }
    pre.push_back(byte_level(false, false));
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", nullptr},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pre}}},
            {"post_processor", byte_level(true, true)},
            {"decoder", byte_level(true, true)},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"ignore_merges", false},
              {"vocab", vocab},
              {"merges", {"h e", "l l", "he ll", "hell o", "Ġ hello"}}}}};
}

}  // namespace deepinfer::testing
