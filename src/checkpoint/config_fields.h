// FieldReader: takes typed, bounded fields out of one JSON object of a config and keeps count of
// the fields nobody asked for.
//
// Every complaint is collected, so one message names all wrong fields. A field may have two
// spellings (Hugging Face and flat); giving both is fine while they agree.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

/// A field's two spellings. `flat` may be empty: only one spelling exists.
struct FieldName {
    const char* hf;
    const char* flat = "";
};

class FieldReader {
  public:
    /// `object` and `problems` must outlive the reader; `path` ("text_config.") prefixes field
    /// names.
    FieldReader(const nlohmann::json& object, std::string path, std::vector<std::string>* problems)
        : object_(object), path_(std::move(path)), problems_(problems) {}

    /// True if the field is there and not null.
    bool has(FieldName name) const;
    /// True if the field is there, null or not.
    bool present(const char* name) const { return object_.contains(name); }

    /// The value within [low, high]; `fallback` stands for an absent or null field, without one the
    /// field is required. On a problem the result is `low`, so that later products stay bounded.
    int64_t integer(FieldName name,
                    int64_t low,
                    int64_t high,
                    std::optional<int64_t> fallback = std::nullopt);
    /// Finite numbers in [low, high]; integers are fine.
    double number(FieldName name,
                  double low,
                  double high,
                  std::optional<double> fallback = std::nullopt);
    bool boolean(FieldName name, std::optional<bool> fallback = std::nullopt);
    /// At most `max_count` integers within [low, high].
    std::vector<int64_t> integers(FieldName name,
                                  size_t max_count,
                                  int64_t low,
                                  int64_t high,
                                  std::optional<std::vector<int64_t>> fallback = std::nullopt);
    /// One of the allowed strings; the first of them stands in on a problem.
    std::string choice(FieldName name,
                       const std::vector<std::string>& allowed,
                       std::optional<std::string> fallback = std::nullopt);
    /// The field must have exactly this value; absent is fine if `required` is false.
    void must_be(FieldName name, const nlohmann::json& expected, bool required);
    /// The sub-object, or nullptr when absent or null (a problem if required) or of another type.
    const nlohmann::json* object(FieldName name, bool required);
    /// Marks fields as known without reading them.
    void ignore(const std::vector<const char*>& names);

    /// Complains about every field that no call above has named.
    void refuse_unknown();

    void complain(const std::string& what) { problems_->push_back(what); }
    std::string path(FieldName name) const;

  private:
    /// The value, nullptr if absent or null (with a complaint when required).
    const nlohmann::json* get(FieldName name, bool required);
    void wrong(FieldName name, const nlohmann::json& found, const std::string& expected);

    const nlohmann::json& object_;
    std::string path_;
    std::vector<std::string>* problems_;
    std::set<std::string, std::less<>> known_;
};

}  // namespace deepinfer
