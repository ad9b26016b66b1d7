// Text to token ids and back, as the checkpoint's tokenizer.json defines it.
//
// Byte-level BPE with the pre-tokenizer of the DeepSeek V3 to V4.1 series. The file is untrusted: a
// vocabulary with holes, a merge of unknown tokens or another pre-tokenizer is refused by name, so
// that a loaded tokenizer never gives ids that differ from the reference library's.
//
//   Result<Tokenizer> tokenizer = Tokenizer::load("models/demo");
//   std::vector<int32_t> ids = tokenizer->encode("Hello, world!");
//   Result<std::string> text = tokenizer->decode(ids);
//
// Encoding adds no BOS or EOS: the prompt text carries them. Of tokenizer_config.json only the
// names of the BOS and EOS tokens are read; none of its fields changes splitting, merging or
// decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

/// What a spelling of an added token ("<｜User｜>") in the text means.
enum class SpecialTokens {
    kParse,  ///< it becomes that token (the longest one that starts there)
    kPlain,  ///< it is ordinary text and is split like any other
};

/// Bytes [begin, end) of a prompt that the template wrote as one added token.
struct SpecialRange {
    size_t begin = 0;
    size_t end = 0;
};

/// A rendered prompt: the text, and which parts of it are tokens rather than text. A user who
/// writes
/// "<｜User｜>" gets ordinary text, because only the template flags ranges.
struct PromptText {
    std::string text;
    std::vector<SpecialRange> specials;  ///< ascending, without overlap
};

struct TokenizerData;  // src/tokenizer/tokenizer_data.h

/// Immutable after load; every const member may be called from any thread. Copies share the data.
class Tokenizer {
  public:
    static constexpr size_t kAllIds = static_cast<size_t>(-1);

    /// Reads `path`/tokenizer.json and, where present, `path`/tokenizer_config.json; `path` may
    /// also be a tokenizer.json itself (then the config beside it is read). kNotFound: no such
    /// file. kInvalidFile: damaged or inconsistent. kUnimplemented: a well-formed file that asks
    /// for something else (another model type, pre-tokenizer, normalizer, truncation …).
    static Result<Tokenizer> load(const std::string& path);

    /// The same from memory; an empty `tokenizer_config_json` means there is none.
    static Result<Tokenizer> from_json(std::string_view tokenizer_json,
                                       std::string_view tokenizer_config_json = {});

    /// The vocabulary of a model without text (a generated checkpoint): token i reads "i ".
    /// encode() takes the numbers out of the text, everything else separates them; there are no
    /// added tokens, so no conversation can be rendered. Requires 0 < vocab_size.
    static Tokenizer numbered(int32_t vocab_size, int32_t bos_id, int32_t eos_id);

    /// Ids of `text`. Bytes that are not UTF-8 count as U+FFFD, one per maximal ill-formed part.
    /// Never fails: every byte has a token. Time about n log n in the worst case.
    /// Requires less than 4 GiB (front ends refuse far shorter texts before they come here).
    /// `most`: stops soon after there are more ids than that; what is returned is then a beginning
    /// of the ids, of more than `most`.
    std::vector<int32_t> encode(std::string_view text,
                                SpecialTokens special = SpecialTokens::kParse,
                                size_t most = kAllIds) const;

    /// Ids of a prompt: each flagged range is its token; each stretch between two of them is one
    /// input to the pre-tokenizer (template and content may meet inside one token) in which
    /// spellings of added tokens are ordinary text. kInvalidArgument: ranges out of order or
    /// bounds, or one whose text is no added token. `most` as at encode().
    Result<std::vector<int32_t>> encode_prompt(const PromptText& prompt,
                                               size_t most = kAllIds) const;

    /// Bytes of the longest token: a text of n bytes has at least n / longest_token_bytes() ids,
    /// and at most n. kAllIds for a numbered() vocabulary, where any separator may stand between.
    size_t longest_token_bytes() const;

    /// Text of `ids`, added tokens in their spelling, broken UTF-8 as U+FFFD (one per maximal
    /// ill-formed part of the joined bytes). kInvalidArgument: an id outside the vocabulary.
    Result<std::string> decode(std::span<const int32_t> ids) const;

    /// Number of ids: every id in [0, vocab_size()) has a token.
    int32_t vocab_size() const;
    bool contains(int32_t id) const { return id >= 0 && id < vocab_size(); }

    /// What the token adds to the output; valid as long as a copy of this tokenizer lives.
    /// Requires contains(id).
    std::string_view token_bytes(int32_t id) const;

    /// The token as tokenizer.json writes it (byte-level alphabet; added tokens in their spelling).
    /// Requires contains(id).
    std::string token_text(int32_t id) const;

    /// Id of an added token by its spelling ("<think>") or of a base token by its bytes (" the");
    /// −1 if there is none.
    int32_t id_of(std::string_view token) const;

    /// Whether the id is among the file's added tokens (all that kParse looks for). Requires
    /// contains(id).
    bool is_added(int32_t id) const;
    /// Whether the file also marks it as special; this has no part in encoding or decoding.
    /// Requires contains(id).
    bool is_special(int32_t id) const;

    /// Beginning and end of a sequence: the tokens that tokenizer_config.json names, else those of
    /// the official spelling; −1 if the vocabulary has none.
    int32_t bos_id() const;
    int32_t eos_id() const;

  private:
    explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}

    std::shared_ptr<const TokenizerData> data_;
    friend class StreamDecoder;
};

/// Text of a growing list of ids. What push() returns is final: joined with finish() it equals
/// decode() of all ids, whatever the grouping. At most three bytes wait, those of an unfinished
/// character; bytes that can never become one are U+FFFD at once. One thread at a time.
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer) : data_(tokenizer.data_) {}

    /// The text that `id` (or `ids`) completed, possibly empty. kInvalidArgument: an id outside the
    /// vocabulary; then nothing was taken.
    Result<std::string> push(int32_t id);
    Result<std::string> push(std::span<const int32_t> ids);

    /// Ends the text: U+FFFD if a character was left unfinished, else empty. The decoder is then as
    /// new.
    std::string finish();

  private:
    std::shared_ptr<const TokenizerData> data_;
    std::string pending_;  // a proper prefix of one well-formed character
};

/// Which operation a request line without "op" asks for.
enum class TokenizeOp {
    kRequired,  ///< none: such a line is refused (`tokenize`)
    kEncode,
    kDecode,  ///< `detokenize`
};

/// Answers one JSON Lines request of `deepinfer tokenize` and `detokenize`; no newline at the end.
///
///   {"id", "op": "encode", "text" | "bytes": hex, "special": "parse" | "plain"} → {"id", "ids"}
///   {"id", "op": "decode", "ids"}                                  → {"id", "text", "pieces"}
///
/// `special` defaults to parse. `pieces` has one entry per id and one for the end. A wrong request
/// gives {"id", "error": {"status": 400, "type": "invalid_request_error", "message"}}, with id null
/// where the line is no JSON object. Unknown keys are ignored.
std::string tokenize_json_line(const Tokenizer& tokenizer,
                               std::string_view line,
                               TokenizeOp default_op = TokenizeOp::kRequired);

}  // namespace deepinfer
