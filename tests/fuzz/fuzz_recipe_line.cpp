// Request lines of `encode` and `parse`, and model output, are bytes from outside: no input may
// crash, hang or throw, and every answer is one JSON object with an id. The first byte chooses the
// door.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/recipe_protocol.h"

namespace {

using namespace deepinfer;

void require(bool ok) {
    if (!ok) std::abort();
}

/// A vocabulary of the 256 bytes: enough to run every path behind the doors.
const Tokenizer& byte_tokenizer() {
    static const Tokenizer tokenizer = [] {
        nlohmann::json vocab = nlohmann::json::object();
        int next = 0;
        int extra = 256;
        for (int b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            const int point = printable ? b : extra++;
            std::string text;
            if (point < 0x80) {
                text.push_back(static_cast<char>(point));
            } else {
                text.push_back(static_cast<char>(0xC0 | (point >> 6)));
                text.push_back(static_cast<char>(0x80 | (point & 63)));
            }
            vocab[text] = next++;
        }
        nlohmann::json file;
        file["version"] = "1.0";
        file["truncation"] = nullptr;
        file["padding"] = nullptr;
        file["normalizer"] = {{"type", "Sequence"}, {"normalizers", nlohmann::json::array()}};
        const auto split = [](const char* pattern) {
            return nlohmann::json{{"type", "Split"},
                                  {"pattern", {{"Regex", pattern}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}};
        };
        file["pre_tokenizer"] = {
            {"type", "Sequence"},
            {"pretokenizers",
             {split("\\p{N}{1,3}"),
              split("[一-龥぀-ゟ゠-ヿ]+"),
              split("[!\"#$%&'()*+,\\-./"
                    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
                    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
              {{"type", "ByteLevel"},
               {"add_prefix_space", false},
               {"trim_offsets", true},
               {"use_regex", false}}}}};
        file["post_processor"] = {{"type", "ByteLevel"},
                                  {"add_prefix_space", true},
                                  {"trim_offsets", false},
                                  {"use_regex", true}};
        file["decoder"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}};
        nlohmann::json added = nlohmann::json::array();
        for (const char* token : {"<｜begin▁of▁sentence｜>",
                                  "<｜end▁of▁sentence｜>",
                                  "<｜System｜>",
                                  "<｜User｜>",
                                  "<｜Assistant｜>",
                                  "<｜latest_reminder｜>",
                                  "<think>",
                                  "</think>",
                                  "｜DSML｜",
                                  "<｜deepseek_image｜>"})
            added.push_back({{"id", next++},
                             {"content", token},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", true}});
        file["added_tokens"] = added;
        file["model"] = {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"vocab", vocab},
                         {"merges", nlohmann::json::array()}};
        Result<Tokenizer> loaded = Tokenizer::from_json(file.dump());
        if (!loaded.ok()) {
            std::fprintf(stderr, "%s\n", loaded.status().to_string().c_str());
            std::abort();
        }
        return std::move(loaded).value();
    }();
    return tokenizer;
}

void check_answer(const std::string& answer) {
    const nlohmann::json parsed = nlohmann::json::parse(answer, nullptr, false);
    require(parsed.is_object() && parsed.contains("id"));
    require(answer.find('\n') == std::string::npos);
}

/// Arguments of complete calls parse, and the cut does not matter.
void check_output(std::string_view bytes, uint8_t mode) {
    recipe::ParsingOptions options;
    options.start = static_cast<recipe::ParserStart>(mode % 5);
    options.json = (mode & 8) != 0;
    options.compat = (mode & 16) != 0;
    if ((mode & 32) != 0) options.stop = {"ST", "<", "\n"};
    const auto run = [&](size_t step) {
        recipe::StreamParser parser(options);
        std::vector<recipe::Delta> deltas;
        for (size_t at = 0; at < bytes.size(); at += step)
            parser.push(bytes.substr(at, step), &deltas);
        parser.finish(recipe::FinishReason::kStop, &deltas);
        std::string joined;
        for (const recipe::Delta& d : deltas)
            joined += (d.kind == recipe::Delta::Kind::kCall ? "\x01" : "") +
                      std::to_string(static_cast<int>(d.kind)) + d.text;
        std::string shown[4];
        for (const recipe::Delta& d : deltas) shown[static_cast<size_t>(d.kind)] += d.text;
        return shown[0] + '\x02' + shown[1] + '\x02' + shown[2] + '\x02' + shown[3];
    };
    require(run(bytes.size() + 1) == run(1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 6) {
        case 0:
            check_answer(recipe::encode_json_line(byte_tokenizer(), rest));
            break;
        case 1:
            check_answer(recipe::parse_json_line(&byte_tokenizer(), rest));
            break;
        case 2:
            (void)recipe::convert_request(recipe::Protocol::kChatCompletions, rest, {});
            break;
        case 3:
            (void)recipe::convert_request(recipe::Protocol::kMessages, rest, {});
            break;
        case 4:
            (void)recipe::convert_request(recipe::Protocol::kResponses, rest, {});
            break;
        default:
            check_output(rest, data[0] / 6);
            break;
    }
    return 0;
}
