#include "recipe/fields.h"

#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

void refuse(std::string message, std::string param) {
    ApiError error;
    error.message = valid_utf8(message);
    error.param = valid_utf8(param);
    throw Refusal(std::move(error));
}

const char* json_kind(const Json& value) {
    switch (value.type()) {
        case Json::Type::kNull:
            return "null";
        case Json::Type::kBool:
            return "a boolean";
        case Json::Type::kInt:
            return "an integer";
        case Json::Type::kFloat:
            return "a number";
        case Json::Type::kString:
            return "a string";
        case Json::Type::kArray:
            return "an array";
        case Json::Type::kObject:
            return "an object";
        case Json::Type::kRaw:
            break;
    }
    return "a value";
}

namespace {

[[noreturn]] void wrong_type(const std::string& path, const Json& value, const char* expected) {
    refuse(path + " is " + json_kind(value) + ", expected " + expected, path);
}

}  // namespace

Fields::Fields(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {
    if (value.is_object()) return;
    std::string name = path_.empty() ? "the request body" : path_;
    if (name.back() == '.') name.pop_back();
    wrong_type(name, value, "an object");
}

const Json* Fields::get(std::string_view key) const {
    const Json* value = value_->find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<std::string> Fields::string(std::string_view key) const {
    const Json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) wrong_type(path(key), *value, "a string");
    return value->as_string();
}

std::string Fields::required_string(std::string_view key) const {
    std::optional<std::string> value = string(key);
    if (!value) refuse(path(key) + " is missing, expected a string", path(key));
    return *std::move(value);
}

std::optional<bool> Fields::boolean(std::string_view key) const {
    const Json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_bool()) wrong_type(path(key), *value, "true or false");
    return value->as_bool();
}

std::optional<double> Fields::number(std::string_view key) const {
    const Json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) wrong_type(path(key), *value, "a number");
    return value->as_double();
}

std::optional<double> Fields::number_in(std::string_view key,
                                        double low,
                                        double high,
                                        bool open_low) const {
    const std::optional<double> value = number(key);
    // Single precision, as the sampler has it: 2.0000001 is 2.
    const double rounded = static_cast<double>(static_cast<float>(value.value_or(0)));
    if (value && !(rounded >= low && rounded <= high && !(open_low && rounded == low)))
        refuse(path(key) + " is " + python_float(*value) + ", expected a number in " +
                   (open_low ? "(" : "[") + python_float(low) + ", " + python_float(high) + "]",
               path(key));
    return value;
}

std::optional<int64_t> Fields::integer_in(std::string_view key, int64_t low, int64_t high) const {
    const Json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_int()) wrong_type(path(key), *value, "an integer (no fraction, no exponent)");
    const std::optional<int64_t> number = value->as_int64();
    if (!number || *number < low || *number > high)
        refuse(path(key) + " is " + value->as_string().substr(0, 40) +
                   ", expected an integer in [" + std::to_string(low) + ", " +
                   std::to_string(high) + "]",
               path(key));
    return number;
}

const std::vector<Json>* Fields::array(std::string_view key) const {
    const Json* value = get(key);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) wrong_type(path(key), *value, "an array");
    return &value->items();
}

std::optional<Fields> Fields::object(std::string_view key) const {
    const Json* value = get(key);
    if (value == nullptr) return std::nullopt;
    return Fields(*value, path(key) + ".");
}

std::string indexed(std::string_view name, size_t idx) {
    return std::string(name) + "[" + std::to_string(idx) + "]";
}

}  // namespace deepinfer::recipe
