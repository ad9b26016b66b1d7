// SpecSwitch: turns drafts off where they do not pay, by measured tokens per second.
//
// For a number of decoding sequences (half octaves) the gain of drafts is
//
//   tokens per sequence of a step with drafts      time of such a step
//   -----------------------------------------  :  ---------------------
//   the same of a plain step (1, less at ends)      time of a plain one
//
// Tokens hang on the text and are remembered over many steps; times are compared between steps
// that ran next to one another, so that what slows the whole machine slows both.
//
//   trial    at first the two ways take turns until the difference is clear, or until drafts have
//            lost as much time as a trial may
//   on, off  now and then a few steps go the other way. What they are expected to lose is paid from
//            a purse that 0.75 % of the time fill: a clear winner is rarely doubted, and all doubts
//            together cost no more
//
// A batch size that was never seen goes by its neighbours: where few sequences lose by drafts more
// lose too, where many win fewer win.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deepinfer {

class SpecSwitch {
  public:
    /// Whether the next step with this many decodes should verify drafts. Counts as a planned step.
    bool use_drafts(int64_t decodes);
    /// Whether it would, without counting: drafts are not off for this batch size.
    bool on(int64_t decodes) const { return at(decodes).on; }
    /// Whether drafts are used for this batch size, or will be tried within some steps.
    bool wanted_soon(int64_t decodes) const;
    /// Whether drafts of this batch size are on trial: the next step with some is to show what they
    /// give.
    bool testing(int64_t decodes) const { return at(decodes).trial || !at(decodes).on; }
    /// Somebody knows that drafts do not pay here: `gain` is what they are thought to give.
    void turn_off(int64_t decodes, double gain);
    /// A step of decodes alone took `us` and gave `tokens`.
    void observe(int64_t decodes, bool drafts, int64_t tokens, int64_t us);

    /// Batch sizes that are judged together: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, …
    static size_t index(int64_t decodes);
    static constexpr size_t kBuckets = 40;

    int64_t num_switched_off() const { return switched_off_; }
    /// Tokens per time with drafts ÷ without; 0 if not measured.
    double gain(int64_t decodes) const { return at(decodes).gain(); }
    /// Tokens per second at this batch size, 0 if not measured.
    double rate(int64_t decodes, bool drafts) const;

  private:
    /// Steps one way.
    struct Side {
        static constexpr size_t kSteps = 16;
        std::array<double, kSteps> us{};  ///< of the latest ones, by sequence
        int64_t steps = 0;                ///< since their times were last forgotten
        double tokens = 0, rounds = 0;    ///< sequences times steps; old ones fade

        void add(int64_t decodes, int64_t step_tokens, int64_t step_us);
        /// Time of a step by sequence. One that took far longer than most (another process had the
        /// cores) counts as long as most.
        double usual_us() const;
        double yield() const { return rounds > 0 ? tokens / rounds : 0; }
    };
    struct Bucket {
        bool seen = false, on = true, trial = true;
        bool turn = false;               ///< trial: the way of the latest planned step
        int64_t unseen = 0;              ///< trial: steps planned since one was observed
        double got = 0;                  ///< trial: tokens of drafting steps, by sequence
        Side side[2];                    ///< without, with drafts
        std::array<double, 5> dearer{};  ///< latest comparisons: time with ÷ without
        size_t compared = 0;
        double guess = 0;     ///< gain by its neighbours, until measured
        double purse_us = 0;  ///< what probes may lose
        double on_us = 0;     ///< time with drafts since they were turned on
        int64_t since_probe = 0;
        int64_t probe_left = 0;  ///< steps to plan the other way
        bool doubt = false;      ///< the latest comparison says otherwise

        double gain() const { return gain(usual_dearer()); }
        double gain(double times) const;
        double usual_dearer() const;
        /// Standard error of log(gain).
        double error() const;
        double price() const;
    };

    Bucket& at(int64_t decodes) { return buckets_[index(decodes)]; }
    const Bucket& at(int64_t decodes) const { return buckets_[index(decodes)]; }
    void start(size_t bucket);
    void judge_trial(Bucket& b);
    void judge_probe(Bucket& b);
    static bool due(const Bucket& b, int64_t ahead);
    static void compare(Bucket& b);

    std::array<Bucket, kBuckets> buckets_;
    int64_t switched_off_ = 0;
    bool warm_[2] = {false, false};
};

}  // namespace deepinfer
