// Reading request bodies: typed fields, and refusals that name the field.
//
// Inside this folder a refusal is an exception; convert_request() and the JSON Lines doors catch
// it, so none leaves the library. The rules are those of prompt spec 7.7: a known field must have
// its type, null in an optional field means absent, unknown fields are ignored.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/recipe_protocol.h"
#include "recipe/json_value.h"

namespace deepinfer::recipe {

class Refusal : public std::exception {
  public:
    explicit Refusal(ApiError error) : error_(std::move(error)) {}
    const char* what() const noexcept override { return error_.message.c_str(); }
    const ApiError& error() const { return error_; }

  private:
    ApiError error_;
};

/// Refuses the request with status 400.
[[noreturn]] void refuse(std::string message, std::string param = "");

/// "null", "a string", … for messages.
const char* json_kind(const Json& value);

/// An object of the body and the path to it ("messages[1].", empty at the top).
class Fields {
  public:
    /// Refuses a value that is no object.
    Fields(const Json& value, std::string path);

    /// The field unless it is absent or null.
    const Json* get(std::string_view key) const;
    bool has(std::string_view key) const { return get(key) != nullptr; }
    /// "messages[1].content"
    std::string path(std::string_view key) const { return path_ + std::string(key); }

    std::optional<std::string> string(std::string_view key) const;
    std::string required_string(std::string_view key) const;
    std::optional<bool> boolean(std::string_view key) const;
    std::optional<double> number(std::string_view key) const;
    /// A number within [low, high]; `open_low` excludes low itself.
    std::optional<double> number_in(std::string_view key,
                                    double low,
                                    double high,
                                    bool open_low = false) const;
    /// An integer within [low, high], written without fraction and exponent.
    std::optional<int64_t> integer_in(std::string_view key, int64_t low, int64_t high) const;
    /// An array, refused if it is something else.
    const std::vector<Json>* array(std::string_view key) const;
    std::optional<Fields> object(std::string_view key) const;

    const Json& json() const { return *value_; }

  private:
    const Json* value_;
    std::string path_;
};

std::string indexed(std::string_view name, size_t idx);  // "messages[3]"

}  // namespace deepinfer::recipe
