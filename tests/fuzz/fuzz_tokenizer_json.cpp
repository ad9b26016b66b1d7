// Fuzzes what the tokenizer reads from outside. The first byte picks the door:
//   'E'  edits of a small valid tokenizer.json (so that no corpus is needed to get past the shape),
//   'C'  tokenizer_config.json beside it,
//   'L'  a request line,
//   'T'  text or bytes to encode,
//   else the whole input is a tokenizer.json.
// Laws checked: no crash; whatever loads can encode and decode; decode(encode(x)) is x repaired; a
// stream of single ids says the same as one decode.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "deepinfer/tokenizer.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace {

using deepinfer::Result;
using deepinfer::SpecialTokens;
using deepinfer::Tokenizer;
using nlohmann::json;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "law broken: %s\n", what);
    std::abort();
}

std::string small_file() {
    json vocab = json::object();
    for (int byte = 0; byte < 256; ++byte) {
        vocab[deepinfer::alphabet_spelling(std::string(1, static_cast<char>(byte)))] = byte;
    }
    int id = 256;
    for (const char* token : {"he", "ll", "hell", "hello", "Ġhello"}) vocab[token] = id++;
    const auto split = [](const char* expression) {
        return json{{"type", "Split"},
                    {"pattern", {{"Regex", expression}}},
                    {"behavior", "Isolated"},
                    {"invert", false}};
    };
    const auto byte_level = [](bool on) {
        return json{{"type", "ByteLevel"},
                    {"add_prefix_space", on},
                    {"trim_offsets", true},
                    {"use_regex", on}};
    };
    const char* words =
        "[!\"#$%&'()*+,\\-./"
        ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    const json document = {{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens",
                            {{{"id", 261}, {"content", "<a>"}, {"special", true}},
                             {{"id", 262}, {"content", "<ab>"}, {"lstrip", false}}}},
                           {"normalizer", nullptr},
                           {"pre_tokenizer",
                            {{"type", "Sequence"},
                             {"pretokenizers",
                              {split("\\p{N}{1,3}"),
                               split("[一-龥\u3040-ゟ゠-ヿ]+"),
                               split(words),
                               byte_level(false)}}}},
                           {"post_processor", byte_level(true)},
                           {"decoder", byte_level(true)},
                           {"model",
                            {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"vocab", vocab},
                             {"merges", {"h e", "l l", "he ll", "hell o", "Ġ hello"}}}}};
    return document.dump();
}

const std::string& valid_file() {
    static const std::string file = small_file();
    return file;
}

const Tokenizer& valid_tokenizer() {
    static const Tokenizer tokenizer = [] {
        Result<Tokenizer> t = Tokenizer::from_json(valid_file());
        require(t.ok(), "the small tokenizer.json loads");
        return std::move(t).value();
    }();
    return tokenizer;
}

void check_text(const Tokenizer& tokenizer, const std::string& bytes) {
    std::string repaired;
    deepinfer::append_repaired_utf8(bytes, false, repaired);
    for (const SpecialTokens mode : {SpecialTokens::kParse, SpecialTokens::kPlain}) {
        const std::vector<int32_t> ids = tokenizer.encode(bytes, mode);
        const Result<std::string> text = tokenizer.decode(ids);
        require(text.ok() && text.value() == repaired, "decode(encode(x)) is x repaired");
        deepinfer::StreamDecoder stream(tokenizer);
        std::string streamed;
        for (const int32_t id : ids) {
            const Result<std::string> piece = stream.push(id);
            require(piece.ok() && deepinfer::is_valid_utf8(piece.value()), "pieces are text");
            streamed += piece.value();
        }
        require(streamed + stream.finish() == repaired, "the stream says what decode says");
    }
}

void check_file(const std::string& file, const std::string& config) {
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(file, config);
    if (tokenizer.ok()) {
        check_text(tokenizer.value(), " hello <ab> héllo\xFF 1234");
    } else {
        require(deepinfer::is_valid_utf8(tokenizer.status().message()), "messages are text");
    }
}

// Edits of four bytes: position (two bytes, wrapped), what to do, a byte.
std::string edited(const uint8_t* data, size_t size) {
    std::string file = valid_file();
    for (size_t i = 0; i + 4 <= size && !file.empty(); i += 4) {
        const size_t at = static_cast<size_t>(data[i] << 8 | data[i + 1]) % file.size();
        const char byte = static_cast<char>(data[i + 3]);
        switch (data[i + 2] % 4) {
            case 0:
                file[at] = byte;
                break;
            case 1:
                file.insert(at, 1, byte);
                break;
            case 2:
                file.erase(at, 1 + data[i + 3] % 16);
                break;
            default:
                file.insert(at, file.substr(at, 1 + data[i + 3] % 64));
                break;
        }
    }
    return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
    switch (data[0]) {
        case 'E':
            check_file(edited(data + 1, size - 1), {});
            break;
        case 'C':
            check_file(valid_file(), rest);
            break;
        case 'L': {
            const std::string answer = deepinfer::tokenize_json_line(valid_tokenizer(), rest);
            require(json::parse(answer, nullptr, false).is_object(),
                    "every answer is a JSON object");
            break;
        }
        case 'T':
            check_text(valid_tokenizer(), rest);
            break;
        default:
            check_file(std::string(reinterpret_cast<const char*>(data), size), {});
            break;
    }
    return 0;
}
