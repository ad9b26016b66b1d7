// The JSON Lines form of the tokenizer (tokenize_json_line in deepinfer/tokenizer.h).
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "deepinfer/json_guard.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer {
namespace {

using nlohmann::json;

Status wrong(const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The four digits of a \u escape whose backslash stands at `pos`, or −1.
int escaped_unit(std::string_view text, size_t pos) {
    if (pos + 6 > text.size() || text[pos] != '\\' || text[pos + 1] != 'u') return -1;
    int unit = 0;
    for (size_t i = pos + 2; i < pos + 6; ++i) {
        const int digit = hex_digit(text[i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

bool is_high_surrogate(int unit) {
    return unit >= 0xD800 && unit < 0xDC00;
}
bool is_low_surrogate(int unit) {
    return unit >= 0xDC00 && unit < 0xE000;
}

// The line with U+FFFD for every escape of a lone surrogate; false if there is none. The parser
// refuses such lines as a whole, but their answer has to carry their id.
bool replace_lone_surrogates(std::string_view line, std::string& out) {
    bool found = false;
    out.clear();
    for (size_t i = 0; i < line.size();) {
        size_t size = line[i] == '\\' ? 2 : 1;
        const int unit = escaped_unit(line, i);
        if (is_high_surrogate(unit) && is_low_surrogate(escaped_unit(line, i + 6))) {
            size = 12;
        } else if (is_high_surrogate(unit) || is_low_surrogate(unit)) {
            out += "\\ufffd";
            found = true;
            i += 6;
            continue;
        }
        size = std::min(size, line.size() - i);
        out += line.substr(i, size);
        i += size;
    }
    return found;
}

std::string dump(const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string error_line(const json& id, const std::string& message) {
    const json error = {{"status", 400}, {"type", "invalid_request_error"}, {"message", message}};
    return dump({{"id", id}, {"error", error}});
}

Result<std::string> bytes_of_hex(const std::string& hex) {
    if (hex.size() % 2 != 0) return wrong("bytes has an odd number of hexadecimal digits");
    std::string out;
    for (size_t i = 0; i < hex.size(); i += 2) {
        const int high = hex_digit(hex[i]);
        const int low = hex_digit(hex[i + 1]);
        if (high < 0 || low < 0) {
            return wrong("bytes has \"" + hex.substr(i, 2) + "\", expected two hexadecimal digits");
        }
        out += static_cast<char>(static_cast<uint8_t>(high * 16 + low));
    }
    return out;
}

Result<json> answer_encode(const Tokenizer& tokenizer, const json& request) {
    const auto text = request.find("text");
    const auto bytes = request.find("bytes");
    if ((text == request.end()) == (bytes == request.end())) {
        return wrong("op encode needs either text or bytes");
    }
    const auto& given = text != request.end() ? *text : *bytes;
    if (!given.is_string()) {
        return wrong(std::string(text != request.end() ? "text" : "bytes") + " is no string");
    }
    Result<std::string> input = given.get<std::string>();
    if (bytes != request.end()) input = bytes_of_hex(input.value());
    if (!input.ok()) return input.status();

    const json special = request.value("special", json("parse"));
    if (special != "parse" && special != "plain") {
        return wrong("special is neither \"parse\" nor \"plain\"");
    }
    const auto mode = special == "parse" ? SpecialTokens::kParse : SpecialTokens::kPlain;
    return json{{"ids", tokenizer.encode(input.value(), mode)}};
}

Result<json> answer_decode(const Tokenizer& tokenizer, const json& request) {
    const auto ids = request.find("ids");
    if (ids == request.end() || !ids->is_array()) return wrong("op decode needs ids, a list");
    StreamDecoder stream(tokenizer);
    std::string text;
    json pieces = json::array();
    for (size_t i = 0; i < ids->size(); ++i) {
        const json& id = (*ids)[i];
        const bool in_vocabulary =
            id.is_number_unsigned() &&
            id.get<uint64_t>() < static_cast<uint64_t>(tokenizer.vocab_size());
        if (!in_vocabulary) {
            return wrong("ids[" + std::to_string(i) + "] is " +
                         (id.is_primitive() ? dump(id) : id.type_name()) +
                         ", expected an integer from 0 to " +
                         std::to_string(tokenizer.vocab_size() - 1));
        }
        Result<std::string> piece = stream.push(id.get<int32_t>());
        if (!piece.ok()) return piece.status();
        text += piece.value();
        pieces.push_back(std::move(piece).value());
    }
    std::string rest = stream.finish();
    text += rest;
    pieces.push_back(std::move(rest));
    return json{{"text", std::move(text)}, {"pieces", std::move(pieces)}};
}

Result<json> answer(const Tokenizer& tokenizer, const json& request, TokenizeOp default_op) {
    TokenizeOp op = default_op;
    const auto named = request.find("op");
    if (named != request.end()) {
        if (*named == "encode") {
            op = TokenizeOp::kEncode;
        } else if (*named == "decode") {
            op = TokenizeOp::kDecode;
        } else {
            return wrong("op is neither \"encode\" nor \"decode\"");
        }
    }
    switch (op) {
        case TokenizeOp::kEncode:
            return answer_encode(tokenizer, request);
        case TokenizeOp::kDecode:
            return answer_decode(tokenizer, request);
        case TokenizeOp::kRequired:
            break;
    }
    return wrong("op is missing, expected \"encode\" or \"decode\"");
}

}  // namespace

std::string tokenize_json_line(const Tokenizer& tokenizer,
                               std::string_view line,
                               TokenizeOp default_op) {
    if (json_nests_deeper(line)) {
        return error_line(nullptr, "the line nests deeper than " + std::to_string(kMaxJsonDepth));
    }
    json request = json::parse(line.begin(), line.end(), nullptr, false);
    bool lone_surrogate = false;
    if (request.is_discarded()) {
        std::string replaced;
        if (replace_lone_surrogates(line, replaced)) {
            request = json::parse(replaced, nullptr, false);
            lone_surrogate = true;
        }
    }
    if (!request.is_object()) return error_line(nullptr, "the line is no JSON object");
    const json id = request.value("id", json());
    if (!id.is_primitive()) return error_line(nullptr, "id is a list or an object");
    if (lone_surrogate) return error_line(id, "a string has the escape of a lone surrogate");
    Result<json> result = answer(tokenizer, request, default_op);
    if (!result.ok()) return error_line(id, result.status().message());
    result.value()["id"] = id;
    return dump(result.value());
}

}  // namespace deepinfer
