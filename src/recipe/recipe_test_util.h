// Shared by the recipe's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/recipe_protocol.h"
#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer::recipe {

using TestJson = nlohmann::ordered_json;

/// SHA-256, first 16 hex digits: how the worked examples name a text.
inline std::string sha16(std::string text) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t h[8] = {0x6a09e667,
                     0xbb67ae85,
                     0x3c6ef372,
                     0xa54ff53a,
                     0x510e527f,
                     0x9b05688c,
                     0x1f83d9ab,
                     0x5be0cd19};
    const uint64_t bits = text.size() * 8;
    text.push_back('\x80');
    while (text.size() % 64 != 56) text.push_back('\0');
    for (int i = 7; i >= 0; --i) text.push_back(static_cast<char>(bits >> (8 * i)));
    const auto rotate = [](uint32_t x, int n) { return (x >> n) | (x << (32 - n)); };
    for (size_t at = 0; at < text.size(); at += 64) {
        uint32_t w[64];
        for (size_t i = 0; i < 16; ++i) {
            w[i] = 0;
            for (size_t b = 0; b < 4; ++b)
                w[i] = (w[i] << 8) | static_cast<unsigned char>(text[at + 4 * i + b]);
        }
        for (size_t i = 16; i < 64; ++i)
            w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3)) +
                   w[i - 7] + (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10));
        uint32_t v[8];
        for (size_t i = 0; i < 8; ++i) v[i] = h[i];
        for (size_t i = 0; i < 64; ++i) {
            const uint32_t t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                                ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
            const uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                                ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            for (size_t j = 7; j > 0; --j) v[j] = v[j - 1];
            v[4] += t1;
            v[0] = t1 + t2;
        }
        for (size_t i = 0; i < 8; ++i) h[i] += v[i];
    }
    char out[17];
    std::snprintf(out, sizeof out, "%08x%08x", h[0], h[1]);
    return out;
}

/// What a client would have in hand after all deltas.
struct Parsed {
    std::string reasoning;
    std::string content;
    std::vector<ToolCall> calls;
    std::string finish;
    std::vector<Delta> deltas;
    ParserCounters counters;

    /// Everything but the cutting, for comparisons.
    std::string summary() const {
        std::string out = "R[" + reasoning + "] C[" + content + "] F[" + finish + "]";
        for (const ToolCall& call : calls) out += " " + call.name + "(" + call.arguments + ")";
        return out;
    }
};

inline Parsed parse_pieces(const std::vector<std::string>& pieces,
                           const ParsingOptions& options,
                           FinishReason finish) {
    StreamParser parser(options);
    Parsed out;
    std::vector<Delta> deltas;
    for (const std::string& piece : pieces) {
        parser.push(piece, &deltas);
        if (parser.finished()) break;
    }
    parser.finish(finish, &deltas);
    for (const Delta& d : deltas) {
        if (d.kind == Delta::Kind::kReasoning) out.reasoning += d.text;
        if (d.kind == Delta::Kind::kContent) out.content += d.text;
        if (d.kind == Delta::Kind::kCall) out.calls.push_back({"", d.text, ""});
        if (d.kind == Delta::Kind::kArguments)
            out.calls.at(static_cast<size_t>(d.call_idx)).arguments += d.text;
    }
    out.finish = finish_reason_name(parser.finish_reason());
    out.deltas = std::move(deltas);
    out.counters = parser.counters();
    return out;
}

/// The law of the cuts: whole, per byte and cut in two at every byte give the same result.
inline Parsed parse_every_cut(const std::string& text,
                              const ParsingOptions& options,
                              FinishReason finish = FinishReason::kStop) {
    const Parsed whole = parse_pieces({text}, options, finish);
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(parse_pieces(bytes, options, finish).summary(), whole.summary())
        << "per byte: " << text;
    for (size_t at = 1; at < text.size(); ++at)
        EXPECT_EQ(parse_pieces({text.substr(0, at), text.substr(at)}, options, finish).summary(),
                  whole.summary())
            << "cut at byte " << at << ": " << text;
    return whole;
}

}  // namespace deepinfer::recipe
