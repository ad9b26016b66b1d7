#include "tokenizer/tokenizer_data.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tokenizer/byte_alphabet.h"

namespace deepinfer {
namespace {

Status invalid(const std::string& what) {
    return Status(StatusCode::kInvalidFile, "tokenizer.json: " + what);
}

uint64_t hash_bytes(std::string_view bytes) {
    uint64_t h = bytes.size() * 0x9E3779B97F4A7C15u;
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, 8);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, bytes.size() - i);
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

// Text of every id, before they are laid out one after another.
struct TokenList {
    std::vector<std::string_view> text;  // by id; data() == nullptr: none yet
    std::vector<uint8_t> flags;
    std::vector<uint8_t> is_base;
};

Status collect_base_tokens(const TokenizerFile& file, TokenList& list) {
    int32_t max_id = -1;
    for (const VocabEntry& e : file.vocab) max_id = std::max(max_id, e.id);
    for (const AddedTokenEntry& e : file.added_tokens) max_id = std::max(max_id, e.id);
    const size_t n = static_cast<size_t>(max_id + 1);
    list.text.resize(n);
    list.flags.resize(n);
    list.is_base.resize(n);
    for (const VocabEntry& e : file.vocab) {
        const size_t id = static_cast<size_t>(e.id);
        const std::string_view text = file.text(e.token);
        if (text.empty())
            return invalid("model.vocab has an empty token, id " + std::to_string(id));
        if (list.text[id].data() != nullptr) {
            return invalid("model.vocab has two tokens with the id " + std::to_string(id));
        }
        list.text[id] = text;
        list.is_base[id] = e.in_alphabet;
    }
    return {};
}

Status collect_added_tokens(const TokenizerFile& file, TokenList& list, AddedTokenTrie& trie) {
    for (const AddedTokenEntry& e : file.added_tokens) {
        const size_t id = static_cast<size_t>(e.id);
        if (!trie.add(e.content, e.id)) {
            return invalid("added_tokens has \"" + e.content + "\" twice");
        }
        if (list.flags[id] & TokenizerData::kAdded) {
            return invalid("added_tokens has the id " + std::to_string(id) + " twice");
        }
        if (list.text[id].data() != nullptr) {
            // Also in model.vocab: both must mean the same token.
            const std::string spelled =
                list.is_base[id] ? alphabet_spelling(list.text[id]) : std::string(list.text[id]);
            if (spelled != e.content) {
                return invalid("the id " + std::to_string(id) + " is \"" + spelled +
                               "\" in model.vocab and \"" + e.content + "\" in added_tokens");
            }
        }
        list.text[id] = e.content;
        list.flags[id] =
            static_cast<uint8_t>(TokenizerData::kAdded | (e.special ? TokenizerData::kSpecial : 0));
    }
    return {};
}

Status add_merges(const TokenizerFile& file, TokenizerData& data) {
    data.merges.reset(file.merges.size());
    std::string joined;
    for (size_t rank = 0; rank < file.merges.size(); ++rank) {
        const std::string_view left = file.text(file.merges[rank].left);
        const std::string_view right = file.text(file.merges[rank].right);
        joined.assign(left);
        joined += right;
        const int32_t left_id = data.base_tokens.find(left);
        const int32_t right_id = data.base_tokens.find(right);
        const int32_t result = data.base_tokens.find(joined);
        const auto where = [&] {
            return "model.merges[" + std::to_string(rank) + "], \"" + alphabet_spelling(left) +
                   "\" and \"" + alphabet_spelling(right) + "\"";
        };
        if (left_id < 0 || right_id < 0) return invalid(where() + ": one is not in model.vocab");
        if (result < 0) return invalid(where() + ": the joined token is not in model.vocab");
        if (!data.merges.add(static_cast<uint32_t>(left_id),
                             static_cast<uint32_t>(right_id),
                             static_cast<uint32_t>(result))) {
            return invalid(where() + ": stands there twice");
        }
    }
    return {};
}

}  // namespace

void TokenIndex::reset(size_t num_tokens) {
    size_t capacity = 2;
    while (capacity < 2 * num_tokens) capacity *= 2;
    slots_.assign(capacity, Slot{});
}

bool TokenIndex::add(std::string_view bytes, int32_t id) {
    const size_t mask = slots_.size() - 1;
    size_t i = hash_bytes(bytes) & mask;
    for (; slots_[i].id >= 0; i = (i + 1) & mask) {
        if (std::string_view(slots_[i].data, slots_[i].size) == bytes) return false;
    }
    slots_[i] = {bytes.data(), static_cast<uint32_t>(bytes.size()), id};
    return true;
}

int32_t TokenIndex::find(std::string_view bytes) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash_bytes(bytes) & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
        if (std::string_view(slots_[i].data, slots_[i].size) == bytes) return slots_[i].id;
    }
    return -1;
}

int32_t TokenizerData::id_of(std::string_view token) const {
    if (token.empty()) return -1;
    const int32_t id = added.id_of(token);
    return id >= 0 ? id : base_tokens.find(token);
}

Result<std::shared_ptr<TokenizerData>> build_tokenizer_data(const TokenizerFile& file) {
    auto data = std::make_shared<TokenizerData>();
    TokenList list;
    DI_RETURN_IF_ERROR(collect_base_tokens(file, list));
    DI_RETURN_IF_ERROR(collect_added_tokens(file, list, data->added));

    const size_t n = list.text.size();
    data->begin.reserve(n + 1);
    data->begin.push_back(0);
    for (size_t id = 0; id < n; ++id) {
        if (list.text[id].data() == nullptr) {
            return invalid("there is no token with the id " + std::to_string(id) +
                           ", the last is " + std::to_string(n - 1));
        }
        if (!list.is_base[id] && !(list.flags[id] & TokenizerData::kAdded)) {
            return invalid("model.vocab: \"" + std::string(list.text[id]) +
                           "\" is neither in the byte-level alphabet nor an added token");
        }
        data->bytes += list.text[id];
        data->begin.push_back(static_cast<uint32_t>(data->bytes.size()));
    }
    data->flags = std::move(list.flags);

    data->base_tokens.reset(file.vocab.size());
    for (size_t id = 0; id < n; ++id) {
        if (!list.is_base[id]) continue;
        const std::string_view token = data->token(static_cast<int32_t>(id));
        if (!data->base_tokens.add(token, static_cast<int32_t>(id))) {
            return invalid("model.vocab has \"" + alphabet_spelling(token) + "\" twice");
        }
    }
    for (size_t byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(static_cast<uint8_t>(byte));
        data->byte_ids[byte] = data->base_tokens.find({&c, 1});
        if (data->byte_ids[byte] < 0) {
            return invalid("model.vocab lacks \"" + alphabet_spelling({&c, 1}) +
                           "\", the token of the byte " + std::to_string(byte));
        }
    }
    DI_RETURN_IF_ERROR(add_merges(file, *data));
    return data;
}

}  // namespace deepinfer
