// Measurement records: what was measured, on what, with which settings. One JSON object a line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer::cli {

/// Order statistics of one quantity; nearest rank. An empty sample gives nulls.
class Sample {
  public:
    void add(double value) { values_.push_back(value); }
    void add_all(const Sample& other) {
        values_.insert(values_.end(), other.values_.begin(), other.values_.end());
    }
    bool empty() const { return values_.empty(); }
    size_t size() const { return values_.size(); }
    /// `share` in 0..1; 0 the smallest, 1 the largest. Requires a value.
    double quantile(double share) const;
    /// Middle value; the mean of the two middle ones of an even count. Requires a value.
    double median() const;

    /// record[name_p50<unit>], _p90, _p99.
    void put_percentiles(const std::string& name,
                         const std::string& unit,
                         nlohmann::ordered_json* record) const;
    /// record[name<unit>] (the median), record[name_min<unit>], record[name_max<unit>].
    void put_spread(const std::string& name,
                    const std::string& unit,
                    nlohmann::ordered_json* record) const;

  private:
    std::vector<double> values_;
};

/// The members that say when and where: bench, tag, time, commit, version, host, cpu, isa, threads,
/// backend, device (`backend_line`: Engine::description()'s, "cpu, avx2 kernels, 2 threads"), note.
nlohmann::ordered_json machine_record(const std::string& bench,
                                      const std::string& tag,
                                      const std::string& note,
                                      int threads,
                                      const std::string& backend,
                                      const std::string& backend_line);

/// The members that every engine record has, with `settings` and `note` at their place: bench, tag,
/// time, commit, host, cpu, isa, threads, backend, device, model, …
nlohmann::ordered_json start_record(const std::string& bench,
                                    const std::string& tag,
                                    const std::string& note,
                                    const Engine& engine,
                                    nlohmann::ordered_json settings);

/// The same without an engine: what was measured is not a model.
nlohmann::ordered_json start_plain_record(const std::string& bench,
                                          const std::string& tag,
                                          const std::string& note,
                                          nlohmann::ordered_json settings);

/// The commit this program was built from.
std::string build_commit();

/// Largest resident size of this process so far.
int64_t peak_rss_bytes();

}  // namespace deepinfer::cli
