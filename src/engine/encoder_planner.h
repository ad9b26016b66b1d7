// EncoderPlanner: which pictures are encoded when, and which encoded ones are kept.
//
// The scheduler asks for the pictures whose rows it wants to run soon; the planner puts them into
// batches, cuts the work into stages within a budget of patches per step, and keeps finished rows
// in a cache by identity, so that a picture is encoded once for all its uses. Plain bookkeeping:
// the executor does the work in the order of the plans.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/sequence_images.h"
#include "engine/step_plan.h"

namespace deepinfer {

class EncoderPlanner {
  public:
    struct Options {
        int num_stages = 0;            ///< of a batch; 0: no pictures
        int64_t patches_per_step = 0;  ///< whole batches' worth of work in one step
        int64_t max_patches = 0;       ///< of one batch
        int64_t cache_rows = 0;        ///< rows of finished pictures that are kept beyond need
    };
    explicit EncoderPlanner(const Options& options) : options_(options) {}

    /// Starts planning a step: forgets what the last one wanted.
    void begin_step(uint64_t step);
    /// The picture's rows are wanted soon: keeps them, or has them encoded.
    void want(const SequenceImage& image);
    /// Writes this step's share: one stage if somebody decodes (they wait for nothing longer), else
    /// as many as the budget of patches allows.
    void plan(bool somebody_decodes, EncodePlan* out);
    /// True if rows planned now find this picture encoded.
    bool ready(const SequenceImage& image) const { return ready_.count(image.key) > 0; }

    int64_t num_encoded() const { return num_encoded_; }
    /// Between steps nothing is under way and nothing wanted.
    bool idle() const { return batch_.empty(); }

  private:
    struct Entry {
        int64_t rows = 0;
        uint64_t last_step = 0;
    };
    void drop_unused(EncodePlan* out);

    Options options_;
    uint64_t step_ = 0;
    std::unordered_map<std::string, Entry> ready_;
    int64_t ready_rows_ = 0;
    std::vector<EncodeItem> wanted_;  ///< in order of asking
    std::vector<EncodeItem> batch_;   ///< under way
    int64_t batch_patches_ = 0;
    int stages_left_ = 0;
    int64_t num_encoded_ = 0;
};

}  // namespace deepinfer
