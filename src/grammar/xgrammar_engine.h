// The one window to XGrammar: vocabularies, compiled grammars, matchers. xgrammar_engine.cpp
// includes the library; its exceptions end there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer::grammar {

/// Tokens that a grammar may demand by position: they are written as code points kMarkerBase +
/// index in productions, so that a text that spells one is still text.
inline constexpr const char* kMarkers[] = {"</think>", "｜DSML｜", "<think>"};
constexpr int kMarkerEndThinking = 0, kMarkerTool = 1, kMarkerThinking = 2;

/// The tokens as the grammar sees them: bytes of text tokens, nothing for added ones (they are
/// never allowed), code points of their own for the markers. Immutable.
class Vocabulary {
  public:
    /// width: number of logits; ids without a token are never allowed.
    static std::shared_ptr<const Vocabulary> of(const Tokenizer& tokenizer,
                                                int64_t width,
                                                int32_t eos);
    /// 256 single bytes and an end token: to judge texts without a model.
    static std::shared_ptr<const Vocabulary> bytes();
    /// Any tokens (tests).
    static std::shared_ptr<const Vocabulary> of_tokens(const std::vector<std::string>& tokens,
                                                       int32_t eos);
    ~Vocabulary();

    int64_t width() const { return width_; }
    int32_t eos() const { return eos_; }
    /// Token id of a marker, −1 if the tokenizer has none.
    int32_t marker_id(int index) const { return marker_ids_[static_cast<size_t>(index)]; }
    bool defined(int32_t id) const {
        return id >= 0 && id < static_cast<int32_t>(defined_.size()) &&
               defined_[static_cast<size_t>(id)];
    }
    /// Whether a grammar can take the token as text (added tokens have none; markers have their
    /// code point).
    bool has_text(int32_t id) const { return has_text_[static_cast<size_t>(id)]; }
    /// Bits of all ids that have a token.
    const std::vector<uint32_t>& defined_mask() const { return defined_mask_; }
    /// Part of every cache key: another tokenizer is another key.
    uint64_t fingerprint() const { return fingerprint_; }

    struct Impl;
    const Impl& impl() const { return *impl_; }

  private:
    Vocabulary() = default;
    void finish(std::vector<std::string> tokens,
                int32_t eos,
                int64_t width,
                std::vector<bool> defined);
    std::unique_ptr<Impl> impl_;
    int64_t width_ = 0;
    int32_t eos_ = -1;
    std::vector<int32_t> marker_ids_;
    std::vector<bool> defined_, has_text_;
    std::vector<uint32_t> defined_mask_;
    uint64_t fingerprint_ = 0;
};

/// A grammar with its token masks. Immutable, shared by all requests with the same constraint.
class CompiledGrammar {
  public:
    /// EBNF of Productions::to_ebnf(). `threads` counts for the first grammar of a vocabulary.
    /// kInvalidArgument: the library refuses it. Throws WorkBudgetExceeded if this thread works for
    /// a budget that is spent.
    static Result<std::shared_ptr<const CompiledGrammar>> compile(
        std::shared_ptr<const Vocabulary> vocabulary, const std::string& ebnf, int threads);
    ~CompiledGrammar();
    size_t memory_bytes() const { return memory_bytes_; }
    const Vocabulary& vocabulary() const { return *vocabulary_; }

    struct Impl;
    const Impl& impl() const { return *impl_; }

  private:
    CompiledGrammar() = default;
    std::unique_ptr<Impl> impl_;
    std::shared_ptr<const Vocabulary> vocabulary_;
    size_t memory_bytes_ = 0;
};

/// A position in a grammar. One thread at a time.
class Matcher {
  public:
    explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);
    ~Matcher();

    /// Tokens allowed next; the end token exactly if the text so far is complete. After the end
    /// token: nothing. `out`: (width + 31) / 32 words.
    void fill(std::span<uint32_t> out);
    /// False, and nothing changes: not allowed here.
    bool accept(int32_t token);
    bool accept_text(const std::string& text);
    /// Undoes the last `count` accepted tokens (texts count as one).
    void rollback(int count);
    bool complete() const;    ///< the text may end here
    bool terminated() const;  ///< the end token was accepted
    /// Only the end token is left.
    std::string forced_text();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::grammar
