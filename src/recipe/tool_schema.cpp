#include "recipe/tool_schema.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <unordered_set>

#include "recipe/fields.h"

namespace deepinfer::recipe {

namespace {

/// A regular expression of JSON Schema (ECMAScript flavour). Only compiled, never run.
bool pattern_compiles(const std::string& pattern) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                         pattern.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_ALT_BSUX,
                                         &code,
                                         &offset,
                                         nullptr);
    pcre2_code_free(compiled);
    return compiled != nullptr;
}

/// "~1" and "~0" of a JSON pointer's step, after percent decoding.
std::string pointer_step(std::string_view step) {
    std::string decoded;
    for (size_t i = 0; i < step.size(); ++i) {
        const auto hex = [&](size_t at) -> int {
            if (at >= step.size()) return -1;
            const char c = step[at];
            if (c >= '0' && c <= '9') return c - '0';
            if (c >= 'a' && c <= 'f') return c - 'a' + 10;
            if (c >= 'A' && c <= 'F') return c - 'A' + 10;
            return -1;
        };
        if (step[i] == '%' && hex(i + 1) >= 0 && hex(i + 2) >= 0) {
            decoded.push_back(static_cast<char>(hex(i + 1) * 16 + hex(i + 2)));
            i += 2;
        } else {
            decoded.push_back(step[i]);
        }
    }
    std::string out;
    for (size_t i = 0; i < decoded.size(); ++i) {
        if (decoded[i] == '~' && i + 1 < decoded.size() &&
            (decoded[i + 1] == '0' || decoded[i + 1] == '1'))
            out.push_back(decoded[++i] == '0' ? '~' : '/');
        else
            out.push_back(decoded[i]);
    }
    return out;
}

const Json* at_pointer(const Json& root, std::string_view pointer) {
    const Json* value = &root;
    while (!pointer.empty()) {
        if (pointer.front() != '/') return nullptr;
        pointer.remove_prefix(1);
        const size_t end = std::min(pointer.find('/'), pointer.size());
        const std::string step = pointer_step(pointer.substr(0, end));
        pointer.remove_prefix(end);
        if (value->is_array()) {
            size_t idx = 0;
            if (step.empty() || step.size() > 6 ||
                step.find_first_not_of("0123456789") != std::string::npos)
                return nullptr;
            idx = std::stoul(step);
            if (idx >= value->items().size()) return nullptr;
            value = &value->items()[idx];
        } else {
            value = value->find(step);
        }
        if (value == nullptr) return nullptr;
    }
    return value;
}

class SchemaCheck {
  public:
    explicit SchemaCheck(const Json& root) : root_(root) {}

    std::optional<std::string> run() {
        collect_names(root_);
        check(root_);
        return fault_;
    }

  private:
    static constexpr std::string_view kTypes[] = {
        "array", "boolean", "integer", "null", "number", "object", "string"};

    void fault(std::string message) {
        if (!fault_) fault_ = std::move(message);
    }

    void collect_names(const Json& value) {
        for (const Json& item : value.items()) collect_names(item);
        for (const Json::Member& member : value.members()) {
            if ((member.first == "$anchor" || member.first == "$dynamicAnchor") &&
                member.second.is_string())
                anchors_.insert(member.second.as_string());
            if (member.first == "$id" && member.second.is_string())
                ids_.insert(member.second.as_string());
            collect_names(member.second);
        }
    }

    void check(const Json& schema) {
        if (fault_ || schema.is_bool()) return;
        if (!schema.is_object())
            return fault(std::string(json_kind(schema)) +
                         " is no schema, expected an object or a boolean");
        for (const Json::Member& member : schema.members()) keyword(member.first, member.second);
    }

    void expect(bool ok, const std::string& key, const Json& value, const char* expected) {
        if (!ok) fault("keyword '" + key + "' is " + json_kind(value) + ", expected " + expected);
    }

    void keyword(const std::string& key, const Json& value) {
        static const std::unordered_set<std::string> kSchemas = {"additionalProperties",
                                                                 "items",
                                                                 "contains",
                                                                 "propertyNames",
                                                                 "not",
                                                                 "if",
                                                                 "then",
                                                                 "else",
                                                                 "unevaluatedItems",
                                                                 "unevaluatedProperties",
                                                                 "contentSchema"};
        static const std::unordered_set<std::string> kSchemaMaps = {
            "properties", "$defs", "definitions", "patternProperties", "dependentSchemas"};
        static const std::unordered_set<std::string> kSchemaLists = {
            "anyOf", "allOf", "oneOf", "prefixItems"};
        static const std::unordered_set<std::string> kNumbers = {
            "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
        static const std::unordered_set<std::string> kCounts = {"minLength",
                                                                "maxLength",
                                                                "minItems",
                                                                "maxItems",
                                                                "minProperties",
                                                                "maxProperties",
                                                                "minContains",
                                                                "maxContains"};
        static const std::unordered_set<std::string> kStrings = {"title",
                                                                 "description",
                                                                 "format",
                                                                 "$comment",
                                                                 "$id",
                                                                 "$schema",
                                                                 "$anchor",
                                                                 "$dynamicAnchor",
                                                                 "contentEncoding",
                                                                 "contentMediaType"};
        static const std::unordered_set<std::string> kBooleans = {
            "uniqueItems", "deprecated", "readOnly", "writeOnly"};
        if (key == "type") {
            type(value);
        } else if (kSchemas.count(key) != 0) {
            check(value);
        } else if (kSchemaMaps.count(key) != 0) {
            expect(value.is_object(), key, value, "an object of schemas");
            for (const Json::Member& member : value.members()) {
                if (key == "patternProperties") pattern(member.first);
                check(member.second);
            }
        } else if (kSchemaLists.count(key) != 0) {
            expect(value.is_array() && !value.items().empty(),
                   key,
                   value,
                   "a list of schemas with at least one");
            for (const Json& item : value.items()) check(item);
        } else if (kNumbers.count(key) != 0) {
            expect(value.is_number() && (key != "multipleOf" || value.as_double() > 0),
                   key,
                   value,
                   key == "multipleOf" ? "a number above 0" : "a number");
        } else if (kCounts.count(key) != 0) {
            const bool whole =
                value.is_number() && value.as_double() >= 0 &&
                (value.is_int() || value.as_double() == static_cast<double>(static_cast<int64_t>(
                                                            std::min(value.as_double(), 9e15))));
            expect(whole, key, value, "a whole number, 0 or more");
        } else if (kStrings.count(key) != 0) {
            expect(value.is_string(), key, value, "a string");
        } else if (kBooleans.count(key) != 0) {
            expect(value.is_bool(), key, value, "a boolean");
        } else if (key == "pattern") {
            expect(value.is_string(), key, value, "a regular expression");
            if (value.is_string()) pattern(value.as_string());
        } else if (key == "enum") {
            expect(value.is_array(), key, value, "an array");
        } else if (key == "required") {
            strings(key, value);
        } else if (key == "dependentRequired") {
            expect(value.is_object(), key, value, "an object");
            for (const Json::Member& member : value.members()) strings(key, member.second);
        } else if (key == "$ref" || key == "$dynamicRef") {
            reference(key, value);
        }
    }

    void type(const Json& value) {
        const auto known = [](const Json& v) {
            return v.is_string() &&
                   std::find(std::begin(kTypes), std::end(kTypes), v.as_string()) !=
                       std::end(kTypes);
        };
        if (known(value)) return;
        if (!value.is_array() || value.items().empty()) {
            fault("keyword 'type' is " + dump_python(value).substr(0, 60) +
                  ", expected a type name or a list of them");
            return;
        }
        std::unordered_set<std::string> seen;
        for (const Json& item : value.items())
            if (!known(item) || !seen.insert(item.as_string()).second)
                return fault("keyword 'type' lists " + dump_python(item).substr(0, 60) +
                             ", expected distinct type names");
    }

    void strings(const std::string& key, const Json& value) {
        expect(value.is_array(), key, value, "an array of distinct strings");
        std::unordered_set<std::string> seen;
        for (const Json& item : value.items())
            if (!item.is_string() || !seen.insert(item.as_string()).second)
                return fault("keyword '" + key + "' holds " + dump_python(item).substr(0, 60) +
                             ", expected distinct strings");
    }

    void pattern(const std::string& text) {
        if (!pattern_compiles(text))
            fault("\"" + text.substr(0, 60) + "\" is no regular expression");
    }

    void reference(const std::string& key, const Json& value) {
        if (!value.is_string()) return expect(false, key, value, "a reference");
        const std::string& text = value.as_string();
        if (text.empty() || text == "#" || ids_.count(text) != 0) return;
        bool found = false;
        if (text.size() > 1 && text[0] == '#') {
            const std::string_view target = std::string_view(text).substr(1);
            found = target[0] == '/' ? at_pointer(root_, target) != nullptr
                                     : anchors_.count(std::string(target)) != 0;
        }
        if (!found) fault("reference '" + text.substr(0, 80) + "' leads nowhere in this schema");
    }

    const Json& root_;
    std::unordered_set<std::string> anchors_;
    std::unordered_set<std::string> ids_;
    std::optional<std::string> fault_;
};

// ------------------------------------------------------------------ strict form

class StrictForm {
  public:
    explicit StrictForm(const std::string& param) : param_(param) {}

    Json object(const Json& schema, bool may_be_empty) {
        const Json* given = schema.find("properties");
        Json properties = Json::object();
        Json names = Json::array();
        if (given != nullptr && !given->is_null()) {
            if (!given->is_object())
                no("'properties' is " + std::string(json_kind(*given)) + ", expected an object");
            for (const Json::Member& member : given->members()) {
                properties.members().emplace_back(member.first, any(member.second));
                names.push_back(member.first);
            }
        }
        if (properties.members().empty() && !may_be_empty)
            no("an object without properties is not allowed");
        if (const Json* more = schema.find("additionalProperties");
            more != nullptr && !more->is_null()) {
            if (!more->is_bool())
                no("'additionalProperties' is " + std::string(json_kind(*more)) +
                   ", expected false");
            if (more->as_bool()) no("'additionalProperties' is true, expected false");
        }
        if (const Json* required = schema.find("required");
            required != nullptr && !required->is_null()) {
            if (!required->is_array()) no("'required' is no array");
            std::unordered_set<std::string> listed;
            for (const Json& name : required->items()) {
                if (!name.is_string()) no("'required' holds " + std::string(json_kind(name)));
                if (properties.find(name.as_string()) == nullptr)
                    no("required property '" + name.as_string() + "' is not among the properties");
                listed.insert(name.as_string());
            }
            if (listed.size() != properties.members().size())
                no("'required' must list all properties");
        }
        Json out = Json::object({{"type", "object"}});
        out.set("properties", std::move(properties));
        out.set("additionalProperties", false);
        out.set("required", std::move(names));
        copy_text(schema, "description", &out);
        return out;
    }

    Json any(const Json& schema) {
        const Json* type = schema.find("type");
        if (type != nullptr && type->is_array()) {
            Json out = Json::object({{"type", *type}});
            copy_text(schema, "description", &out);
            return out;
        }
        if (type != nullptr && !type->is_null()) {
            if (!type->is_string()) no("'type' is " + std::string(json_kind(*type)));
            return typed(type->as_string(), schema);
        }
        if (const Json* choices = schema.find("anyOf"); choices != nullptr && !choices->is_null()) {
            if (!choices->is_array()) no("'anyOf' is no array");
            Json list = Json::array();
            for (const Json& choice : choices->items()) list.push_back(any(choice));
            Json out = Json::object();
            out.set("anyOf", std::move(list));
            copy_text(schema, "description", &out);
            return out;
        }
        if (const Json* reference = schema.find("$ref");
            reference != nullptr && !reference->is_null()) {
            if (!reference->is_string()) no("'$ref' is no string");
            return Json::object({{"$ref", *reference}});
        }
        no("one of 'type', 'anyOf', '$ref' is required in every schema");
    }

  private:
    [[noreturn]] void no(const std::string& why) { refuse("strict schema: " + why, param_); }

    Json typed(const std::string& type, const Json& schema) {
        if (type == "object") return object(schema, false);
        Json out = Json::object({{"type", type}});
        if (type == "array") {
            const Json* items = schema.find("items");
            if (items == nullptr || items->is_null()) no("an array without 'items' is not allowed");
            out.set("items", any(*items));
            copy_text(schema, "description", &out);
            return out;
        }
        copy_text(schema, "description", &out);
        if (type == "string") {
            copy_text(schema, "pattern", &out);
            copy_text(schema, "format", &out);
            if (const Json* format = out.find("format"); format != nullptr) {
                static const std::unordered_set<std::string> kFormats = {
                    "email", "hostname", "ipv4", "ipv6", "uuid"};
                if (kFormats.count(format->as_string()) == 0)
                    no("format '" + format->as_string() +
                       "', expected email, hostname, ipv4, ipv6 or uuid");
            }
            if (const Json* values = schema.find("enum"); values != nullptr && !values->is_null()) {
                if (!values->is_array()) no("'enum' is no array");
                for (const Json& value : values->items())
                    if (!value.is_string())
                        no("'enum' of a string holds " + std::string(json_kind(value)));
                out.set("enum", *values);
            }
        } else if (type == "number" || type == "integer") {
            for (const char* key : {"const",
                                    "default",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    "multipleOf"}) {
                const Json* value = schema.find(key);
                if (value == nullptr || value->is_null()) continue;
                const bool fits =
                    type == "number" ? value->is_number() : value->as_int64().has_value();
                if (!fits)
                    no(std::string("'") + key + "' is " + json_kind(*value) +
                       " in a schema of type " + type);
                out.set(key, *value);
            }
        } else if (type != "boolean" && type != "null") {
            no("unknown type '" + type + "'");
        }
        return out;
    }

    void copy_text(const Json& schema, const char* key, Json* out) {
        const Json* value = schema.find(key);
        if (value == nullptr || value->is_null()) return;
        if (!value->is_string())
            no(std::string("'") + key + "' is " + json_kind(*value) + ", expected a string");
        out->set(key, *value);
    }

    const std::string param_;
};

}  // namespace

std::optional<std::string> schema_fault(const Json& schema) {
    return SchemaCheck(schema).run();
}

Json strict_form(const Json& schema, bool top_level, bool may_be_empty, const std::string& param) {
    StrictForm form(param);
    const Json* type = schema.find("type");
    const bool object = type != nullptr && type->is_string() && type->as_string() == "object";
    Json out = object ? form.object(schema, may_be_empty) : form.any(schema);
    if (top_level && !object) refuse("strict schema: the top level must be an object", param);
    return out;
}

}  // namespace deepinfer::recipe
