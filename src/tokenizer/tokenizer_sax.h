// Event handler for nlohmann::json::sax_parse over tokenizer.json: the vocabulary and the merges,
// which are nearly all of the file, go straight into TokenizerFile; everything else becomes a small
// JSON document. A document of the whole file would take ten times the memory and most of the
// loading time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace deepinfer {

class TokenizerSax : public nlohmann::json_sax<nlohmann::json> {
  public:
    explicit TokenizerSax(TokenizerFile& file) : file_(file) {}

    /// After sax_parse returned false: what was wrong.
    const std::string& error() const { return error_; }
    /// After success: the document without model.vocab and model.merges.
    const nlohmann::json& rest() const { return rest_; }
    bool has_vocab() const { return has_vocab_; }
    bool has_merges() const { return has_merges_; }

    bool null() override { return value(nullptr); }
    bool boolean(bool v) override { return value(v); }
    bool number_integer(number_integer_t v) override;
    bool number_unsigned(number_unsigned_t v) override;
    bool number_float(number_float_t v, const string_t&) override { return value(v); }
    bool string(string_t& v) override;
    bool binary(binary_t&) override { return fail("binary data"); }
    bool start_object(size_t) override;
    bool key(string_t& k) override;
    bool end_object() override;
    bool start_array(size_t) override;
    bool end_array() override;
    bool parse_error(size_t position,
                     const std::string& last_token,
                     const nlohmann::detail::exception& e) override;

  private:
    enum class Mode { kRest, kVocab, kMerges, kMergePair };

    bool value(nlohmann::json v);
    bool open(nlohmann::json v);
    bool fail(std::string what);
    bool add_merge(std::string_view left, std::string_view right);
    bool append_bytes(std::string_view text, ByteSpan& span);
    bool at_model_field(const char* name) const;

    TokenizerFile& file_;
    std::string error_;
    nlohmann::json rest_;
    std::vector<nlohmann::json*> stack_;
    std::string key_;      // of the value that comes next, inside an object
    std::string top_key_;  // the top-level field that is being read
    std::string vocab_key_;
    std::vector<std::string> pair_;
    size_t num_rest_values_ = 0;
    Mode mode_ = Mode::kRest;
    bool has_vocab_ = false;
    bool has_merges_ = false;
};

}  // namespace deepinfer
