// The worst possible model: draws tokens uniformly from what a constraint allows.
//
// usage: constraint_sampler TOKENIZER_DIR NUM_OUTPUTS SEED < lines
//
// One so_args object a line → {"refused": sentence} or {"texts": […], "unfinished": n, "faults":
// n}. After kSoftEnd tokens the draw prefers the end token, then closing tokens, so that outputs
// end. A fault is a token that the mask allowed and the matcher then refused, or a mask without any
// token before the end.
#include <bit>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"
#include "grammar/token_matcher.h"

namespace deepinfer::grammar {
namespace {

constexpr int kSoftEnd = 48;
constexpr int kHardEnd = 1500;

bool has(const std::vector<uint32_t>& mask, int32_t id) {
    return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

struct Sampler {
    const Tokenizer& tokenizer;
    std::shared_ptr<const Vocabulary> vocabulary;
    std::mt19937_64 random;
    std::vector<int32_t> closing{};  ///< tokens that tend to end things

    /// One of the mask's tokens, each as likely as the others; −1: there is none.
    int32_t any_of(const std::vector<uint32_t>& mask) {
        size_t count = 0;
        for (const uint32_t word : mask) count += static_cast<size_t>(std::popcount(word));
        if (count == 0) return -1;
        size_t k = random() % count;
        for (size_t i = 0;; ++i) {
            const auto here = static_cast<size_t>(std::popcount(mask[i]));
            if (k >= here) {
                k -= here;
                continue;
            }
            uint32_t word = mask[i];
            for (; k > 0; --k) word &= word - 1;
            return static_cast<int32_t>(i * 32) + std::countr_zero(word);
        }
    }

    /// True when it ended by the end token.
    bool draw(const std::shared_ptr<const CompiledGrammar>& grammar,
              std::string* text,
              int* faults) {
        TokenMatcher matcher(grammar, false);
        for (int step = 0; step < kHardEnd; ++step) {
            const std::vector<uint32_t> mask = matcher.mask();
            int32_t token = any_of(mask);
            if (token < 0) {
                ++*faults;
                return false;
            }
            if (step > kSoftEnd) {
                if (has(mask, vocabulary->eos())) return true;
                std::vector<int32_t> closers;
                for (const int32_t v : closing) {
                    if (has(mask, v)) closers.push_back(v);
                }
                // Half of the time: a multiple of seven does not end by ever more zeros.
                if (!closers.empty() && random() % 2 == 0)
                    token = closers[random() % closers.size()];
            }
            if (token == vocabulary->eos()) return true;
            if (!matcher.accept(token)) {
                ++*faults;
                return false;
            }
            *text += tokenizer.token_bytes(token);
        }
        return false;
    }
};

int run(const std::string& dir, int num_outputs, uint64_t seed) {
    Result<Tokenizer> tokenizer = Tokenizer::load(dir);
    if (!tokenizer.ok()) {
        std::cerr << tokenizer.status().message() << "\n";
        return 3;
    }
    const Tokenizer& t = tokenizer.value();
    Sampler sampler{t, Vocabulary::of(t, t.vocab_size(), t.eos_id()), std::mt19937_64(seed)};
    for (int32_t v = 0; v < t.vocab_size(); ++v) {
        const std::string_view b = t.token_bytes(v);
        if (b == "\"" || b == "}" || b == "]" || b == "\"}" || b == "0" || b == "a")
            sampler.closing.push_back(v);
    }
    std::string line;
    while (std::getline(std::cin, line)) {
        nlohmann::json out;
        const Result<StructuredOutputArgs> args = structured_output_from_json(line);
        std::string refused = args.ok() ? "" : args.status().message();
        std::shared_ptr<const CompiledGrammar> grammar;
        if (args.ok()) {
            try {
                auto compiled =
                    CompiledGrammar::compile(sampler.vocabulary, lower(args.value()).ebnf, 2);
                if (compiled.ok()) {
                    grammar = compiled.value();
                } else {
                    refused = compiled.status().message();
                }
            } catch (const Refusal& r) {
                refused = refusal_sentence(r);
            }
        }
        if (grammar == nullptr) {
            out["refused"] = refused;
        } else {
            int unfinished = 0, faults = 0;
            out["texts"] = nlohmann::json::array();
            for (int i = 0; i < num_outputs; ++i) {
                std::string text;
                if (sampler.draw(grammar, &text, &faults)) {
                    out["texts"].push_back(text);
                } else {
                    ++unfinished;
                }
            }
            out["unfinished"] = unfinished;
            out["faults"] = faults;
        }
        std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                  << std::endl;
    }
    return 0;
}

}  // namespace
}  // namespace deepinfer::grammar

int main(int argc, char** argv) {
    if (argc != 4) {
        std::cerr << "usage: constraint_sampler TOKENIZER_DIR NUM_OUTPUTS SEED < so_args lines\n";
        return 2;
    }
    return deepinfer::grammar::run(argv[1], std::stoi(argv[2]), std::stoull(argv[3]));
}
