// StepCosts: what a step costs, by its rows and how far its sequences have come. Measured at start,
// corrected while running.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace deepinfer {

/// Microseconds by size: linear between the points, beyond the last one with the last slope, never
/// falling.
class CostCurve {
  public:
    /// (size, microseconds), sizes ascending.
    void set(std::vector<std::pair<int64_t, double>> points);
    bool empty() const { return points_.empty(); }
    double at(int64_t size) const;
    /// Moves the curve towards a measurement if it is off by more than 15 %.
    void correct(int64_t size, double us);
    void scale(double factor);
    const std::vector<std::pair<int64_t, double>>& points() const { return points_; }

  private:
    void keep_rising();
    std::vector<std::pair<int64_t, double>> points_;
};

/// What steps without drafts took by their rows, as a line: a fixed part and so much a row. Learnt
/// from whatever runs, old steps fade.
class RowLine {
  public:
    void add(int64_t rows, int64_t us);
    /// False until steps of different sizes were seen.
    bool known() const;
    /// Share of a step of `all` rows that `rows` of them would take alone.
    double share(int64_t rows, int64_t all) const;

  private:
    double fixed_us() const;
    double row_us() const;
    // Sums of 1, x, x², y and x·y, where steps count by 1 / y²: relative errors are alike.
    double n_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;
};

class StepCosts {
  public:
    void set(std::vector<std::pair<int64_t, double>> verify,
             std::vector<std::pair<int64_t, double>> draft);
    bool known() const { return !verify_[0].empty() && !draft_.empty(); }
    /// `context`: the longest sequence of the step. Attention makes the same rows dearer behind 4k,
    /// 32k and 128k tokens, so those have curves of their own (copies until measured).
    double verify_us(int64_t rows, int64_t context) const;
    /// Drafting a block of `rows` / sequences tokens for each sequence.
    double draft_us(int64_t rows) const;
    void correct_verify(int64_t rows, int64_t context, double us);
    void correct_draft(int64_t rows, double us);

    /// Sizes worth measuring up to `most`.
    static std::vector<int64_t> sizes(int64_t most);

  private:
    static size_t bucket(int64_t context);
    std::array<CostCurve, 4> verify_;
    CostCurve draft_;
};

}  // namespace deepinfer
