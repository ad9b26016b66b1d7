// SpecSwitch: turns drafts off where they do not pay, by measured tokens per second.
//
// Steps with and without drafts are compared at the same number of decoding sequences (powers of
// two apart). While drafts are on a few steps in some hundred go without, and the other way round,
// so that both rates stay known and a text on which drafts pay again is noticed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace deepinfer {

class SpecSwitch {
  public:
    /// Whether the next step with this many decodes should verify drafts. Counts as a planned step.
    bool use_drafts(int64_t decodes);
    /// Whether it would, without counting: drafts are not off for this batch size.
    bool on(int64_t decodes) const { return at(decodes).on; }
    /// A step of decodes alone took `us` and gave `tokens`.
    void observe(int64_t decodes, bool drafts, int64_t tokens, int64_t us);

    int64_t num_switched_off() const { return switched_off_; }
    /// Tokens per second at this batch size, 0 if not measured lately.
    double rate(int64_t decodes, bool drafts) const;

  private:
    /// The latest steps. A step that took far longer than most (another process had the cores)
    /// counts as long as most.
    struct Rate {
        static constexpr size_t kSteps = 16;
        std::array<std::pair<int64_t, int64_t>, kSteps> seen{};  ///< tokens, microseconds
        int64_t steps = 0;                                       ///< since it was last forgotten
        double value() const;
    };
    struct Bucket {
        bool on = true;
        Rate rate[2];  ///< without, with drafts
        int64_t until_probe = 16;
        int64_t probe_left = 0;
        int64_t pause = 256;  ///< steps between probes
        int bad = 0;          ///< comparisons lost in a row
    };
    static size_t index(int64_t decodes);
    Bucket& at(int64_t decodes) { return buckets_[index(decodes)]; }
    const Bucket& at(int64_t decodes) const { return buckets_[index(decodes)]; }
    void judge(Bucket& b);

    std::array<Bucket, 20> buckets_;
    int64_t switched_off_ = 0;
};

}  // namespace deepinfer
