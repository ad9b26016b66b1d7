// DumpBuilder: collects what forward() shows through its hooks into the tensors of a dump.
//
// One builder serves one phase: the prompt (rows are prompt positions, possibly in several chunks)
// or the decode steps (one row a step). It also plays back forced choices.
#pragma once

#include <string>
#include <vector>

#include "judge/input_check.h"
#include "judge/sequence.h"
#include "judge/tensor_file.h"

namespace deepinfer {

/// Choices of another run: expert ids, candidate blocks and top-k lists by row, and the drafts of
/// decode steps, from golden or dump files.
class ForcedChoices {
  public:
    /// Takes what concerns the prompt (files with input_ids) or the decode steps (files with
    /// prompt_ids).
    Status load(const std::vector<std::string>& paths,
                const ModelConfig& config,
                const PhaseShape& phase);
    bool empty() const { return tensors_.empty(); }
    /// draft.tokens, i32 [steps, 1 + block] with ids inside the vocabulary; nullptr if the files
    /// have none.
    const NamedTensor* draft_tokens() const;

    /// Overwrites the device tensor `choice` (contract of ForwardHooks::replace) whose first row is
    /// `row` in the file's own numbering. Rows the file does not hold stay as computed.
    void apply(const std::string& name,
               int layer,
               int64_t row,
               const Tensor& choice,
               Backend& backend) const;

  private:
    TensorMap tensors_;
};

class DumpBuilder {
  public:
    struct Phase {
        bool decode = false;
        int64_t num_rows = 0;       ///< prompt tokens or decode steps
        std::vector<int32_t> rows;  ///< stored rows, ascending (prompt phase)
        int64_t total_tokens = 0;   ///< tokens in the caches at the end: widths of the masks
        TensorMap given;            ///< the input: entries, topk_steps are taken from it
    };
    DumpBuilder(LoneSequence& sequence, const Phase& phase, const ForcedChoices& forced);

    /// Hooks for a forward whose first row is row `first` of the phase.
    ForwardHooks hooks(int64_t first);
    /// Logits of all rows of that forward, in order.
    void add_logits(int64_t first, const Tensor& logits, const std::vector<int32_t>& next_ids);
    /// Reads the caches and returns everything.
    TensorMap finish();

    /// argmax of row i (smallest id on a tie).
    int32_t argmax(int64_t row) const { return argmax_[static_cast<size_t>(row)]; }

  private:
    struct Series {  // a tensor that grows row by row
        std::string dtype;
        std::vector<int64_t> row_shape;
        std::vector<uint8_t> bytes;  // dense [num rows kept, row bytes]
    };
    void observe(const char* name, int layer, int64_t first, const Tensor& value);
    /// Appends the wanted rows of `value` (whose row 0 is row `first` of the phase) under `key`.
    void keep_rows(const std::string& key, int64_t first, const Tensor& value, bool all_rows);
    void keep_mask(const std::string& key,
                   int64_t first,
                   const Tensor& lists,
                   int64_t bits,
                   const std::vector<uint8_t>& wanted);
    void keep_scores(int layer, int64_t first, const Tensor& scores);
    void keep_latents(int layer, int64_t first_row, const Tensor& latent);
    void read_caches(TensorMap& out);
    int64_t entries_at_end(int64_t ratio) const { return phase_.total_tokens / ratio; }
    std::vector<int32_t> wanted_entries(int layer) const;
    std::vector<uint8_t> wanted_steps(int layer) const;

    LoneSequence& sequence_;
    const ModelConfig& config_;
    Backend& backend_;
    Phase phase_;
    const ForcedChoices& forced_;
    int64_t base_ = 0;             // first row of the current forward
    std::vector<uint8_t> stored_;  // per row: kept in the row-wise tensors
    std::map<std::string, Series> series_;
    std::vector<int32_t> argmax_;
    std::vector<float> margin_, logprob_next_;
};

}  // namespace deepinfer
