#include "tokenizer/tokenizer_sax.h"

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxRestValues = 1000000;  // 1,283 added tokens are some 10,000

}  // namespace

bool TokenizerSax::fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
}

bool TokenizerSax::parse_error(size_t position,
                               const std::string&,
                               const nlohmann::detail::exception& e) {
    // The parser quotes what it read last, which need not be UTF-8.
    std::string what = "no JSON at byte " + std::to_string(position) + ": ";
    append_repaired_utf8(e.what(), false, what);
    return fail(std::move(what));
}

bool TokenizerSax::at_model_field(const char* name) const {
    return stack_.size() == 2 && stack_.back()->is_object() && top_key_ == "model" && key_ == name;
}

// Puts a value where it belongs in the rest of the document.
bool TokenizerSax::value(nlohmann::json v) {
    if (mode_ == Mode::kVocab) return fail("model.vocab: \"" + vocab_key_ + "\" has no integer id");
    if (mode_ != Mode::kRest) {
        return fail("model.merges[" + std::to_string(file_.merges.size()) +
                    "] is neither a string nor a pair of strings");
    }
    if (++num_rest_values_ > kMaxRestValues) {
        return fail("more than 1,000,000 values besides vocabulary and merges");
    }
    if (stack_.empty()) {
        rest_ = std::move(v);
    } else if (stack_.back()->is_array()) {
        stack_.back()->push_back(std::move(v));
    } else {
        (*stack_.back())[key_] = std::move(v);
    }
    return true;
}

bool TokenizerSax::open(nlohmann::json v) {
    if (stack_.size() == kMaxDepth) return fail("nested deeper than 32 levels");
    nlohmann::json* parent = stack_.empty() ? nullptr : stack_.back();
    if (!value(std::move(v))) return false;
    if (parent == nullptr) {
        stack_.push_back(&rest_);
    } else {
        stack_.push_back(parent->is_array() ? &parent->back() : &(*parent)[key_]);
    }
    return true;
}

bool TokenizerSax::number_integer(number_integer_t v) {
    if (mode_ == Mode::kVocab) {
        return fail("model.vocab: \"" + vocab_key_ + "\" has the id " + std::to_string(v));
    }
    return value(v);
}

bool TokenizerSax::number_unsigned(number_unsigned_t v) {
    if (mode_ != Mode::kVocab) return value(v);
    if (v >= static_cast<number_unsigned_t>(kMaxVocabSize)) {
        return fail("model.vocab: \"" + vocab_key_ + "\" has the id " + std::to_string(v) +
                    ", expected less than " + std::to_string(kMaxVocabSize));
    }
    VocabEntry entry;
    entry.id = static_cast<int32_t>(v);
    entry.in_alphabet = append_bytes(vocab_key_, entry.token);
    if (!entry.in_alphabet) {
        entry.token = {static_cast<uint32_t>(file_.bytes.size()),
                       static_cast<uint32_t>(vocab_key_.size())};
        file_.bytes += vocab_key_;
    }
    file_.vocab.push_back(entry);
    return true;
}

bool TokenizerSax::append_bytes(std::string_view text, ByteSpan& span) {
    const size_t begin = file_.bytes.size();
    if (!append_alphabet_bytes(text, file_.bytes)) return false;
    span = {static_cast<uint32_t>(begin), static_cast<uint32_t>(file_.bytes.size() - begin)};
    return true;
}

bool TokenizerSax::add_merge(std::string_view left, std::string_view right) {
    MergeEntry entry;
    if (left.empty() || right.empty() || !append_bytes(left, entry.left) ||
        !append_bytes(right, entry.right)) {
        return fail("model.merges[" + std::to_string(file_.merges.size()) +
                    "] is not two tokens of the byte-level alphabet");
    }
    file_.merges.push_back(entry);
    return true;
}

bool TokenizerSax::string(string_t& v) {
    if (mode_ == Mode::kMerges) {
        const size_t space = v.find(' ');
        const std::string_view text = v;
        if (space == std::string::npos) return add_merge(text, {});
        return add_merge(text.substr(0, space), text.substr(space + 1));
    }
    if (mode_ == Mode::kMergePair) {
        pair_.push_back(std::move(v));
        return true;
    }
    return value(std::move(v));
}

bool TokenizerSax::start_object(size_t) {
    if (mode_ == Mode::kRest && at_model_field("vocab")) {
        has_vocab_ = true;
        mode_ = Mode::kVocab;
        return true;
    }
    return open(nlohmann::json::object());
}

bool TokenizerSax::key(string_t& k) {
    if (mode_ == Mode::kVocab) {
        vocab_key_ = std::move(k);
        return true;
    }
    const bool again = stack_.back()->contains(k) ||
                       (stack_.size() == 2 && top_key_ == "model" &&
                        ((k == "vocab" && has_vocab_) || (k == "merges" && has_merges_)));
    if (again) return fail("the key \"" + k + "\" stands twice in one object");
    if (stack_.size() == 1) top_key_ = k;
    key_ = std::move(k);
    return true;
}

bool TokenizerSax::end_object() {
    if (mode_ == Mode::kVocab) {
        mode_ = Mode::kRest;
    } else {
        stack_.pop_back();
    }
    return true;
}

bool TokenizerSax::start_array(size_t) {
    if (mode_ == Mode::kRest && at_model_field("merges")) {
        has_merges_ = true;
        mode_ = Mode::kMerges;
        return true;
    }
    if (mode_ == Mode::kMerges) {
        pair_.clear();
        mode_ = Mode::kMergePair;
        return true;
    }
    return open(nlohmann::json::array());
}

bool TokenizerSax::end_array() {
    if (mode_ == Mode::kMergePair) {
        mode_ = Mode::kMerges;
        if (pair_.size() != 2) {
            return fail("model.merges[" + std::to_string(file_.merges.size()) + "] has " +
                        std::to_string(pair_.size()) + " tokens, expected 2");
        }
        return add_merge(pair_[0], pair_[1]);
    }
    if (mode_ == Mode::kMerges) {
        mode_ = Mode::kRest;
    } else {
        stack_.pop_back();
    }
    return true;
}

}  // namespace deepinfer
