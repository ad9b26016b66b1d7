// Writing small flat JSON objects: the step log, configurations, batch answers. Reading is
// nlohmann's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

/// `text` as a JSON string with quotes. Control characters are escaped; bytes that are not UTF-8
/// become U+FFFD, so the line is always valid.
std::string json_string(std::string_view text);
/// Shortest decimal that reads back to the same bits; not-a-number and infinities become null.
std::string json_number(double value);
/// C99 hex float ("0x1.8p-3"): the exact bits.
std::string hex_float(double value);
/// [1,2,3]
std::string json_ids(const std::vector<int32_t>& ids);

/// Builds one object; members in call order.
class JsonLine {
  public:
    JsonLine& text(std::string_view name, std::string_view value);
    JsonLine& integer(std::string_view name, int64_t value);
    JsonLine& number(std::string_view name, double value);
    JsonLine& boolean(std::string_view name, bool value);
    /// `json` is already JSON.
    JsonLine& raw(std::string_view name, std::string_view json);
    std::string str() const { return body_ + "}"; }

  private:
    std::string body_ = "{";
};

}  // namespace deepinfer
