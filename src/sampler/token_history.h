// TokenHistory: the tokens that penalties, bad words and min_tokens of one sequence look back at.
//
// Kept incrementally: append() for every committed token, and for a draft that a later row of the
// same step builds on; truncate() takes rejected drafts back, so their counts never linger. Not
// thread-safe; one sequence owns one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace deepinfer {

class TokenHistory {
  public:
    struct Entry {
        int32_t token = 0;
        int32_t output_count = 0;  ///< occurrences in the output
        bool in_prompt = false;
    };

    /// Replaces the prompt. The output must be empty. Negative ids (image positions) are left out.
    void set_prompt(std::span<const int32_t> prompt);
    void append(int32_t token);
    /// Keeps the first num_output_tokens of the output.
    void truncate(size_t num_output_tokens);

    const std::vector<int32_t>& output() const { return output_; }
    /// Every token that was ever added, once each; entries may have become unused (count 0, not in
    /// the prompt) after truncate().
    const std::vector<Entry>& entries() const { return entries_; }

  private:
    Entry& entry(int32_t token);

    std::vector<int32_t> output_;
    std::vector<Entry> entries_;
    std::unordered_map<int32_t, size_t> index_;
};

}  // namespace deepinfer
