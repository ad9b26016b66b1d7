#include "deepinfer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/check.h"
#include "base/mmap_file.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_data.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxConfigFileBytes = size_t{1} << 20;
constexpr const char* kOfficialBos = "<｜begin▁of▁sentence｜>";
constexpr const char* kOfficialEos = "<｜end▁of▁sentence｜>";

Status bad_id(int32_t id, int32_t vocab_size) {
    return Status(StatusCode::kInvalidArgument,
                  "token id " + std::to_string(id) + " is outside the vocabulary of " +
                      std::to_string(vocab_size) + " tokens");
}

/// Encodes stretches of one text, without added tokens.
class StretchEncoder {
  public:
    StretchEncoder(const TokenizerData& data, size_t most, std::vector<int32_t>& ids)
        : merger_(data.merges, data.byte_ids), most_(most), ids_(ids) {}

    /// `text` is well-formed UTF-8.
    void append(std::string_view text) {
        PieceReader reader(text);
        std::string_view piece;
        while (!full() && reader.next(piece)) merger_.append(piece, ids_);
    }
    /// There are more ids than the caller wants to know.
    bool full() const { return ids_.size() > most_; }

  private:
    BpeMerger merger_;
    const size_t most_;
    std::vector<int32_t>& ids_;
};

/// What `ids` is given room for: a third of the bytes is about what prose takes.
size_t expected_ids(std::string_view text, size_t most) {
    return std::min(text.size() / 3, most) + 1;
}

/// `text` itself if it is well-formed, else its repair, which `storage` then holds.
std::string_view repaired(std::string_view text, std::string& storage) {
    if (is_valid_utf8(text)) return text;
    storage.clear();
    append_repaired_utf8(text, false, storage);
    return storage;
}

Result<int32_t> special_id(const TokenizerData& data,
                           const std::string& configured,
                           const char* field,
                           const char* official) {
    if (configured.empty()) return data.id_of(official);
    const int32_t id = data.id_of(configured);
    if (id < 0) {
        return Status(StatusCode::kInvalidFile,
                      std::string("tokenizer_config.json: ") + field + " is \"" + configured +
                          "\", which is no token of tokenizer.json");
    }
    return id;
}

/// The numbers of a text. One beyond int32 is its largest value, which no vocabulary contains.
std::vector<int32_t> numbers_of(std::string_view text) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    std::vector<int32_t> ids;
    bool inside = false;
    int64_t value = 0;
    for (const char c : text) {
        if (c >= '0' && c <= '9') {
            value = std::min(kMost, (inside ? value * 10 : 0) + (c - '0'));
            inside = true;
        } else if (inside) {
            ids.push_back(static_cast<int32_t>(value));
            inside = false;
        }
    }
    if (inside) ids.push_back(static_cast<int32_t>(value));
    return ids;
}

}  // namespace

Tokenizer Tokenizer::numbered(int32_t vocab_size, int32_t bos_id, int32_t eos_id) {
    DI_CHECK_GE(vocab_size, 1);
    auto data = std::make_shared<TokenizerData>();
    for (int32_t i = 0; i < vocab_size; ++i) {
        data->begin.push_back(static_cast<uint32_t>(data->bytes.size()));
        data->bytes += std::to_string(i) + ' ';
    }
    data->begin.push_back(static_cast<uint32_t>(data->bytes.size()));
    data->flags.assign(static_cast<size_t>(vocab_size), 0);
    data->bos_id = bos_id;
    data->eos_id = eos_id;
    data->numbered = true;
    return Tokenizer(std::move(data));
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                       std::string_view tokenizer_config_json) {
    Result<TokenizerFile> file = parse_tokenizer_file(tokenizer_json);
    if (!file.ok()) return file.status();
    Result<std::shared_ptr<TokenizerData>> data = build_tokenizer_data(file.value());
    if (!data.ok()) return data.status();
    TokenizerConfigNames names;
    if (!tokenizer_config_json.empty()) {
        Result<TokenizerConfigNames> parsed = parse_tokenizer_config(tokenizer_config_json);
        if (!parsed.ok()) return parsed.status();
        names = parsed.value();
    }
    TokenizerData& d = *data.value();
    const Result<int32_t> bos = special_id(d, names.bos_token, "bos_token", kOfficialBos);
    if (!bos.ok()) return bos.status();
    const Result<int32_t> eos = special_id(d, names.eos_token, "eos_token", kOfficialEos);
    if (!eos.ok()) return eos.status();
    d.bos_id = bos.value();
    d.eos_id = eos.value();
    return Tokenizer(std::move(data).value());
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const bool is_directory = fs::is_directory(path, error);
    const fs::path file = is_directory ? fs::path(path) / "tokenizer.json" : fs::path(path);
    const fs::path config = file.parent_path() / "tokenizer_config.json";
    const Result<std::string> json = read_file(file.string(), kMaxTokenizerFileBytes);
    if (!json.ok()) return json.status();
    std::string config_json;
    if (fs::exists(config, error)) {
        Result<std::string> read = read_file(config.string(), kMaxConfigFileBytes);
        if (!read.ok()) return read.status();
        config_json = std::move(read).value();
        if (config_json.empty()) {
            return Status(StatusCode::kInvalidFile, config.string() + ": the file is empty");
        }
    }
    Result<Tokenizer> tokenizer = from_json(json.value(), config_json);
    if (tokenizer.ok()) return tokenizer;
    return Status(tokenizer.status().code(),
                  file.parent_path().string() + ": " + tokenizer.status().message());
}

std::vector<int32_t> Tokenizer::encode(std::string_view bytes,
                                       SpecialTokens special,
                                       size_t most) const {
    if (data_->numbered) return numbers_of(bytes);
    std::string storage;
    const std::string_view text = repaired(bytes, storage);
    std::vector<int32_t> ids;
    ids.reserve(expected_ids(text, most));
    StretchEncoder encoder(*data_, most, ids);
    if (special == SpecialTokens::kPlain) {
        encoder.append(text);
        return ids;
    }
    size_t pos = 0;
    while (true) {
        const AddedTokenTrie::Match match = data_->added.find(text, pos);
        if (match.size == 0) break;
        encoder.append(text.substr(pos, match.begin - pos));
        if (encoder.full()) return ids;
        ids.push_back(match.id);
        pos = match.begin + match.size;
    }
    encoder.append(text.substr(pos));
    return ids;
}

Result<std::vector<int32_t>> Tokenizer::encode_prompt(const PromptText& prompt, size_t most) const {
    if (data_->numbered) {
        return Status(StatusCode::kInvalidArgument,
                      "a generated model has no tokenizer: prompts are token ids");
    }
    const std::string_view text = prompt.text;
    std::string storage;
    std::vector<int32_t> ids;
    ids.reserve(expected_ids(text, most));
    StretchEncoder encoder(*data_, most, ids);
    size_t pos = 0;
    for (const SpecialRange& range : prompt.specials) {
        if (range.begin < pos || range.end <= range.begin || range.end > text.size()) {
            return Status(StatusCode::kInvalidArgument,
                          "special range [" + std::to_string(range.begin) + ", " +
                              std::to_string(range.end) + ") of a prompt of " +
                              std::to_string(text.size()) + " bytes, expected one after byte " +
                              std::to_string(pos));
        }
        const std::string_view spelling = text.substr(range.begin, range.end - range.begin);
        const int32_t id = data_->added.id_of(spelling);
        if (id < 0) {
            std::string shown;
            append_repaired_utf8(spelling.substr(0, 80), false, shown);
            return Status(
                StatusCode::kInvalidArgument,
                "the prompt needs the token \"" + shown + "\", which the tokenizer does not have");
        }
        encoder.append(repaired(text.substr(pos, range.begin - pos), storage));
        if (encoder.full()) return ids;
        ids.push_back(id);
        pos = range.end;
    }
    encoder.append(repaired(text.substr(pos), storage));
    return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
    std::string bytes;
    for (const int32_t id : ids) {
        if (!data_->contains(id)) return bad_id(id, data_->vocab_size());
        bytes += data_->token(id);
    }
    std::string storage;
    return std::string(repaired(bytes, storage));
}

int32_t Tokenizer::vocab_size() const {
    return data_->vocab_size();
}

size_t Tokenizer::longest_token_bytes() const {
    if (data_->numbered) return kAllIds;
    size_t longest = 1;
    for (int32_t id = 0; id < data_->vocab_size(); ++id)
        longest = std::max(longest, data_->token(id).size());
    return longest;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
    DI_CHECK(contains(id));
    return data_->token(id);
}

std::string Tokenizer::token_text(int32_t id) const {
    const std::string_view bytes = token_bytes(id);
    return is_added(id) ? std::string(bytes) : alphabet_spelling(bytes);
}

int32_t Tokenizer::id_of(std::string_view token) const {
    return data_->id_of(token);
}

bool Tokenizer::is_added(int32_t id) const {
    DI_CHECK(contains(id));
    return data_->flags[static_cast<size_t>(id)] & TokenizerData::kAdded;
}

bool Tokenizer::is_special(int32_t id) const {
    DI_CHECK(contains(id));
    return data_->flags[static_cast<size_t>(id)] & TokenizerData::kSpecial;
}

int32_t Tokenizer::bos_id() const {
    return data_->bos_id;
}
int32_t Tokenizer::eos_id() const {
    return data_->eos_id;
}

Result<std::string> StreamDecoder::push(int32_t id) {
    return push(std::span(&id, 1));
}

Result<std::string> StreamDecoder::push(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
        if (!data_->contains(id)) return bad_id(id, data_->vocab_size());
    }
    for (const int32_t id : ids) pending_ += data_->token(id);
    std::string out;
    const size_t taken = append_repaired_utf8(pending_, true, out);
    pending_.erase(0, taken);
    return out;
}

std::string StreamDecoder::finish() {
    std::string out;
    append_repaired_utf8(pending_, false, out);
    pending_.clear();
    return out;
}

}  // namespace deepinfer
