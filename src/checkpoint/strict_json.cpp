#include "checkpoint/strict_json.h"

#include <exception>
#include <new>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

using nlohmann::json;

/// Builds the tree from parse events and stops at the first broken limit.
class TreeBuilder : public nlohmann::json_sax<json> {
  public:
    explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

    json root;
    std::string error;

    bool null() override { return add(nullptr); }
    bool boolean(bool v) override { return add(v); }
    bool number_integer(number_integer_t v) override { return add(v); }
    bool number_unsigned(number_unsigned_t v) override { return add(v); }
    bool number_float(number_float_t v, const string_t&) override { return add(v); }
    bool string(string_t& v) override { return add(std::move(v)); }
    bool binary(binary_t&) override { return fail("binary value"); }

    bool start_object(std::size_t) override { return open(json::object()); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(json::array()); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        json& object = *stack_.back();
        if (object.contains(name)) return fail("key " + in_quotes(name) + " appears twice");
        slot_ = &object[name];
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const json::exception& e) override {
        std::string what = e.what();
        if (what.size() > 240) what = what.substr(0, 240) + "…";
        return fail("not valid JSON at byte " + std::to_string(position) + " (" + what + ")");
    }

  private:
    bool fail(std::string message) {
        error = std::move(message);
        return false;
    }

    json* place(json value) {
        if (stack_.empty()) {
            root = std::move(value);
            return &root;
        }
        json& parent = *stack_.back();
        if (parent.is_array()) {
            parent.push_back(std::move(value));
            return &parent.back();
        }
        *slot_ = std::move(value);
        return slot_;
    }

    bool count() {
        if (++nodes_ <= limits_.max_nodes) return true;
        return fail("more than " + std::to_string(limits_.max_nodes) + " values");
    }

    bool add(json value) {
        if (!count()) return false;
        place(std::move(value));
        return true;
    }

    bool open(json container) {
        if (!count()) return false;
        if (stack_.size() >= limits_.max_depth) {
            return fail("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
        }
        // The address stays valid while the container is open: its parent does not grow meanwhile.
        stack_.push_back(place(std::move(container)));
        return true;
    }

    bool close() {
        stack_.pop_back();
        return true;
    }

    JsonLimits limits_;
    std::vector<json*> stack_;
    json* slot_ = nullptr;
    size_t nodes_ = 0;
};

}  // namespace

Result<json> parse_strict_json(std::string_view text,
                               const JsonLimits& limits,
                               const std::string& where) {
    try {
        TreeBuilder builder(limits);
        if (!json::sax_parse(text.begin(), text.end(), &builder)) {
            return Status(StatusCode::kInvalidFile, where + ": " + builder.error);
        }
        return std::move(builder.root);
    } catch (const std::bad_alloc&) {
        return Status(StatusCode::kResourceExhausted, where + ": not enough memory for its JSON");
    } catch (const std::exception& e) {
        return Status(StatusCode::kInvalidFile, where + ": " + e.what());
    }
}

std::string in_quotes(std::string_view text) {
    constexpr size_t kMax = 160;
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out = "\"";
    for (size_t i = 0; i < text.size() && i < kMax; ++i) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        if (c < 0x20 || c == 0x7F || c == '"' || c == '\\') {
            out += "\\x";
            out += kHex[c >> 4];
            out += kHex[c & 15];
        } else {
            out += text[i];
        }
    }
    return out + (text.size() > kMax ? "…\"" : "\"");
}

std::string show_json(const json& value) {
    if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
    if (value.is_object()) return "an object";
    if (value.is_array() && value.size() > 64) {
        return "an array of " + std::to_string(value.size()) + " values";
    }
    try {
        std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
        return text.size() > 160 ? text.substr(0, 160) + "…" : text;
    } catch (const std::exception&) {
        return "a value that cannot be shown";
    }
}

}  // namespace deepinfer
