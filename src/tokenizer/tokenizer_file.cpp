#include "tokenizer/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tokenizer/tokenizer_sax.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using nlohmann::json;

// The splits that PieceReader implements. The expressions with the escapes \r and \n are the same
// as those with the characters themselves; tools write either.
constexpr const char* kNumberSplit = R"(\p{N}{1,3})";
constexpr const char* kHanKanaSplit = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr const char* kWordSplit =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kWordSplitEscaped =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

Status invalid(const std::string& what) {
    return Status(StatusCode::kInvalidFile, "tokenizer.json: " + what);
}
Status unsupported(const std::string& what) {
    return Status(StatusCode::kUnimplemented, "tokenizer.json: " + what);
}

// A value as it appears in messages: short, and valid UTF-8 whatever the cut.
std::string shown(const json& value) {
    const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return text.size() <= 120 ? text : text.substr(0, 117) + "...";
}

// Every key of `object` is in `known`: a setting that we do not know could change the ids.
Status check_keys(const json& object,
                  const std::string& where,
                  std::initializer_list<const char*> known) {
    for (const auto& item : object.items()) {
        const bool found = std::any_of(
            known.begin(), known.end(), [&](const char* name) { return item.key() == name; });
        if (!found) return unsupported(where + " has the unknown setting \"" + item.key() + "\"");
    }
    return {};
}

// `object[name]` is absent or one of `allowed`.
Status check_setting(const json& object,
                     const std::string& where,
                     const char* name,
                     std::initializer_list<json> allowed) {
    const auto it = object.find(name);
    if (it == object.end()) return {};
    if (std::find(allowed.begin(), allowed.end(), *it) != allowed.end()) return {};
    return unsupported(where + "." + name + " is " + shown(*it) + ", expected " +
                       shown(*allowed.begin()));
}

Status check_type(const json& value, const std::string& where, const char* type) {
    if (!value.is_object()) return invalid(where + " is " + shown(value) + ", expected an object");
    const auto it = value.find("type");
    if (it == value.end() || *it != type) {
        return unsupported(where + " is " + shown(value) + ", expected type \"" + type + "\"");
    }
    return {};
}

// ByteLevel as decoder or post-processor: its switches are about offsets and prefixes that neither
// our decoding nor an encoding without special tokens has.
Status check_byte_level(const json& value, const std::string& where) {
    DI_RETURN_IF_ERROR(check_type(value, where, "ByteLevel"));
    return check_keys(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

Status check_split(const json& value,
                   const std::string& where,
                   std::initializer_list<const char*> expressions) {
    DI_RETURN_IF_ERROR(check_type(value, where, "Split"));
    DI_RETURN_IF_ERROR(check_keys(value, where, {"type", "pattern", "behavior", "invert"}));
    const json pattern = value.value("pattern", json());
    const bool official = std::any_of(expressions.begin(), expressions.end(), [&](const char* e) {
        return pattern == json{{"Regex", e}};
    });
    if (!official) {
        return unsupported(where + ".pattern is " + shown(pattern) +
                           ", expected the regular expression of the DeepSeek V3 series");
    }
    if (value.value("behavior", json()) != "Isolated") {
        return unsupported(where + ".behavior is " + shown(value.value("behavior", json())) +
                           ", expected \"Isolated\"");
    }
    return check_setting(value, where, "invert", {false});
}

Status check_pre_tokenizer(const json& value) {
    DI_RETURN_IF_ERROR(check_type(value, "pre_tokenizer", "Sequence"));
    DI_RETURN_IF_ERROR(check_keys(value, "pre_tokenizer", {"type", "pretokenizers"}));
    const json steps = value.value("pretokenizers", json());
    if (!steps.is_array() || steps.size() != 4) {
        return unsupported("pre_tokenizer.pretokenizers is " + shown(steps) +
                           ", expected three splits and ByteLevel");
    }
    DI_RETURN_IF_ERROR(check_split(steps[0], "pre_tokenizer.pretokenizers[0]", {kNumberSplit}));
    DI_RETURN_IF_ERROR(check_split(steps[1], "pre_tokenizer.pretokenizers[1]", {kHanKanaSplit}));
    DI_RETURN_IF_ERROR(
        check_split(steps[2], "pre_tokenizer.pretokenizers[2]", {kWordSplit, kWordSplitEscaped}));
    const std::string where = "pre_tokenizer.pretokenizers[3]";
    DI_RETURN_IF_ERROR(check_byte_level(steps[3], where));
    // Both default to true in the reference library.
    for (const char* name : {"add_prefix_space", "use_regex"}) {
        if (steps[3].value(name, json(true)) != false) {
            return unsupported(where + "." + name + " is true, expected false");
        }
    }
    return {};
}

Status check_normalizer(const json& value) {
    if (value.is_null()) return {};
    DI_RETURN_IF_ERROR(check_type(value, "normalizer", "Sequence"));
    DI_RETURN_IF_ERROR(check_keys(value, "normalizer", {"type", "normalizers"}));
    if (value.value("normalizers", json()) != json::array()) {
        return unsupported("normalizer is " + shown(value) + ", expected an empty sequence");
    }
    return {};
}

Status check_model(const json& model) {
    DI_RETURN_IF_ERROR(check_type(model, "model", "BPE"));
    DI_RETURN_IF_ERROR(check_keys(model,
                                  "model",
                                  {"type",
                                   "dropout",
                                   "unk_token",
                                   "continuing_subword_prefix",
                                   "end_of_word_suffix",
                                   "fuse_unk",
                                   "byte_fallback",
                                   "ignore_merges"}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "dropout", {nullptr}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "unk_token", {nullptr}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "continuing_subword_prefix", {nullptr, ""}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "end_of_word_suffix", {nullptr, ""}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "fuse_unk", {false}));
    DI_RETURN_IF_ERROR(check_setting(model, "model", "byte_fallback", {false}));
    return check_setting(model, "model", "ignore_merges", {false});
}

Status read_added_token(const json& value, const std::string& where, AddedTokenEntry& out) {
    if (!value.is_object()) return invalid(where + " is " + shown(value) + ", expected an object");
    DI_RETURN_IF_ERROR(
        check_keys(value,
                   where,
                   {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const json id = value.value("id", json());
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabSize)) {
        return invalid(where + ".id is " + shown(id) + ", expected an integer from 0 to " +
                       std::to_string(kMaxVocabSize - 1));
    }
    const json content = value.value("content", json());
    if (!content.is_string() || content.get_ref<const std::string&>().empty() ||
        content.get_ref<const std::string&>().size() > kMaxAddedTokenBytes) {
        return invalid(where + ".content is " + shown(content) + ", expected 1 to " +
                       std::to_string(kMaxAddedTokenBytes) + " bytes of text");
    }
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
        DI_RETURN_IF_ERROR(check_setting(value, where, name, {false}));
    }
    for (const char* name : {"normalized", "special"}) {
        const json flag = value.value(name, json(false));
        if (!flag.is_boolean()) return invalid(where + "." + name + " is no boolean");
    }
    out.id = id.get<int32_t>();
    out.content = content.get<std::string>();
    out.special = value.value("special", false);
    return {};
}

Status read_rest(const json& rest, TokenizerFile& file) {
    if (!rest.is_object())
        return invalid("the document is " + shown(rest) + ", expected an object");
    DI_RETURN_IF_ERROR(check_keys(rest,
                                  "the document",
                                  {"version",
                                   "truncation",
                                   "padding",
                                   "added_tokens",
                                   "normalizer",
                                   "pre_tokenizer",
                                   "post_processor",
                                   "decoder",
                                   "model"}));
    DI_RETURN_IF_ERROR(check_setting(rest, "the document", "version", {"1.0"}));
    DI_RETURN_IF_ERROR(check_setting(rest, "the document", "truncation", {nullptr}));
    DI_RETURN_IF_ERROR(check_setting(rest, "the document", "padding", {nullptr}));
    for (const char* name : {"pre_tokenizer", "decoder", "model"}) {
        if (!rest.contains(name)) return invalid(std::string("there is no \"") + name + "\"");
    }
    DI_RETURN_IF_ERROR(check_normalizer(rest.value("normalizer", json())));
    DI_RETURN_IF_ERROR(check_pre_tokenizer(rest["pre_tokenizer"]));
    DI_RETURN_IF_ERROR(check_byte_level(rest["decoder"], "decoder"));
    const json post_processor = rest.value("post_processor", json());
    if (!post_processor.is_null()) {
        DI_RETURN_IF_ERROR(check_byte_level(post_processor, "post_processor"));
    }
    DI_RETURN_IF_ERROR(check_model(rest["model"]));

    const auto added = rest.find("added_tokens");
    if (added == rest.end() || added->is_null()) return {};
    if (!added->is_array()) return invalid("added_tokens is no array");
    for (size_t i = 0; i < added->size(); ++i) {
        AddedTokenEntry entry;
        const std::string where = "added_tokens[" + std::to_string(i) + "]";
        DI_RETURN_IF_ERROR(read_added_token((*added)[i], where, entry));
        file.added_tokens.push_back(std::move(entry));
    }
    return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view text) {
    if (text.size() > kMaxTokenizerFileBytes) {
        return invalid("has " + std::to_string(text.size()) + " bytes, expected at most " +
                       std::to_string(kMaxTokenizerFileBytes));
    }
    TokenizerFile file;
    file.bytes.reserve(text.size() / 2);
    TokenizerSax sax(file);
    if (!json::sax_parse(text.begin(), text.end(), &sax)) return invalid(sax.error());
    DI_RETURN_IF_ERROR(read_rest(sax.rest(), file));
    if (!sax.has_vocab()) return invalid("there is no object model.vocab");
    if (!sax.has_merges()) return invalid("there is no array model.merges");
    return file;
}

Result<TokenizerConfigNames> parse_tokenizer_config(std::string_view text) {
    const auto wrong = [](const std::string& what) {
        return Status(StatusCode::kInvalidFile, "tokenizer_config.json: " + what);
    };
    const json config = json::parse(text.begin(), text.end(), nullptr, false);
    if (!config.is_object()) return wrong("is no JSON object");
    TokenizerConfigNames names;
    const std::pair<const char*, std::string*> fields[] = {{"bos_token", &names.bos_token},
                                                           {"eos_token", &names.eos_token}};
    for (const auto& field : fields) {
        json value = config.value(field.first, json());
        if (value.is_object()) value = value.value("content", json(0));
        if (value.is_null()) continue;
        if (!value.is_string()) {
            return wrong(std::string(field.first) + " is " + shown(value) +
                         ", expected the text of a token");
        }
        *field.second = value.get<std::string>();
    }
    return names;
}

}  // namespace deepinfer
