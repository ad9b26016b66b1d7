// Is it a schema at all: types of keywords, unknown keywords, identifiers, and where references
// lead.
#include <algorithm>

#include "grammar/schema_algebra.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonNode::Type;

enum class Shape {
    kSchema,
    kSchemas,
    kSchemaMap,
    kSchemaOrSchemas,
    kDependencies,
    kStringOrStrings,
    kString,
    kStrings,
    kStringsMap,
    kCount,
    kNumber,
    kPositive,
    kBool,
    kValues,
    kAny,
    kObject,
    kRegexMap
};

struct Known {
    const char* name;
    Shape shape;
    bool annotation;
};

constexpr Known kKeywords[] = {
    {"type", Shape::kStringOrStrings, false},
    {"const", Shape::kAny, false},
    {"enum", Shape::kValues, false},
    {"minimum", Shape::kNumber, false},
    {"maximum", Shape::kNumber, false},
    {"exclusiveMinimum", Shape::kNumber, false},
    {"exclusiveMaximum", Shape::kNumber, false},
    {"multipleOf", Shape::kPositive, false},
    {"minLength", Shape::kCount, false},
    {"maxLength", Shape::kCount, false},
    {"pattern", Shape::kString, false},
    {"format", Shape::kString, false},
    {"prefixItems", Shape::kSchemas, false},
    {"items", Shape::kSchemaOrSchemas, false},
    {"additionalItems", Shape::kSchema, false},
    {"contains", Shape::kSchema, false},
    {"minContains", Shape::kCount, false},
    {"maxContains", Shape::kCount, false},
    {"minItems", Shape::kCount, false},
    {"maxItems", Shape::kCount, false},
    {"uniqueItems", Shape::kBool, false},
    {"properties", Shape::kSchemaMap, false},
    {"patternProperties", Shape::kRegexMap, false},
    {"additionalProperties", Shape::kSchema, false},
    {"required", Shape::kStrings, false},
    {"minProperties", Shape::kCount, false},
    {"maxProperties", Shape::kCount, false},
    {"propertyNames", Shape::kSchema, false},
    {"dependentRequired", Shape::kStringsMap, false},
    {"dependentSchemas", Shape::kSchemaMap, false},
    {"dependencies", Shape::kDependencies, false},
    {"allOf", Shape::kSchemas, false},
    {"anyOf", Shape::kSchemas, false},
    {"oneOf", Shape::kSchemas, false},
    {"not", Shape::kSchema, false},
    {"if", Shape::kSchema, false},
    {"then", Shape::kSchema, false},
    {"else", Shape::kSchema, false},
    {"unevaluatedProperties", Shape::kSchema, false},
    {"unevaluatedItems", Shape::kSchema, false},
    {"$ref", Shape::kString, false},
    {"$dynamicRef", Shape::kString, false},
    {"$recursiveRef", Shape::kString, false},
    {"$id", Shape::kString, false},
    {"$anchor", Shape::kString, false},
    {"$dynamicAnchor", Shape::kString, false},
    {"$recursiveAnchor", Shape::kBool, false},
    {"$schema", Shape::kString, false},
    {"$comment", Shape::kString, false},
    {"$vocabulary", Shape::kObject, false},
    {"$defs", Shape::kSchemaMap, false},
    {"definitions", Shape::kSchemaMap, false},
    // Annotations: they say nothing about which values are valid.
    {"title", Shape::kString, true},
    {"description", Shape::kString, true},
    {"default", Shape::kAny, true},
    {"examples", Shape::kAny, true},
    {"example", Shape::kAny, true},
    {"deprecated", Shape::kBool, true},
    {"readOnly", Shape::kBool, true},
    {"writeOnly", Shape::kBool, true},
    {"contentEncoding", Shape::kString, true},
    {"contentMediaType", Shape::kString, true},
    {"contentSchema", Shape::kAny, true},
    {"discriminator", Shape::kAny, true},
    {"externalDocs", Shape::kAny, true},
    {"xml", Shape::kAny, true},
};

const Known* find_keyword(const std::string& name) {
    for (const Known& k : kKeywords) {
        if (name == k.name) return &k;
    }
    return nullptr;
}

bool is_count(const JsonNode& v) {
    return v.is(Type::kNumber) && v.number.integer() && !v.number.negative;
}

bool strings(const JsonNode& v) {
    if (!v.is(Type::kArray)) return false;
    std::set<std::string> seen;
    return std::all_of(v.items.begin(), v.items.end(), [&](const JsonNode* i) {
        return i->is(Type::kString) && seen.insert(i->text).second;
    });
}

bool is_schema(const JsonNode& v) {
    return v.is(Type::kObject) || v.is(Type::kBool);
}

bool schema_list(const JsonNode& v) {
    return v.is(Type::kArray) && !v.items.empty() &&
           std::all_of(
               v.items.begin(), v.items.end(), [](const JsonNode* i) { return is_schema(*i); });
}

bool all_members(const JsonNode& v, bool (*good)(const JsonNode&)) {
    return v.is(Type::kObject) &&
           std::all_of(
               v.members.begin(), v.members.end(), [&](const auto& m) { return good(*m.second); });
}

/// What the value must be, or nullptr when it is that.
const char* fault_of(const JsonNode& v, Shape shape) {
    switch (shape) {
        case Shape::kSchema:
            return is_schema(v) ? nullptr : "a schema (an object, true or false)";
        case Shape::kSchemas:
            return schema_list(v) ? nullptr : "an array of at least one schema";
        case Shape::kSchemaOrSchemas:
            return is_schema(v) || v.is(Type::kArray) ? nullptr : "a schema";
        case Shape::kSchemaMap:
        case Shape::kRegexMap:
            return all_members(v, is_schema) ? nullptr : "an object of schemas";
        case Shape::kDependencies:
            return all_members(v, [](const JsonNode& m) { return is_schema(m) || strings(m); })
                       ? nullptr
                       : "an object of schemas or key lists";
        case Shape::kStringOrStrings: {
            static const std::set<std::string> kTypes = {
                "null", "boolean", "integer", "number", "string", "array", "object"};
            const auto known = [](const JsonNode& t) {
                return t.is(Type::kString) && kTypes.count(t.text) > 0;
            };
            const bool good = v.is(Type::kString)
                                  ? known(v)
                                  : strings(v) && !v.items.empty() &&
                                        std::all_of(v.items.begin(),
                                                    v.items.end(),
                                                    [&](const JsonNode* i) { return known(*i); });
            return good
                       ? nullptr
                       : "null, boolean, integer, number, string, array, object or a list of these";
        }
        case Shape::kString:
            return v.is(Type::kString) ? nullptr : "a string";
        case Shape::kStrings:
            return strings(v) ? nullptr : "an array of different strings";
        case Shape::kStringsMap:
            return all_members(v, strings) ? nullptr : "an object of string arrays";
        case Shape::kCount:
            return is_count(v) ? nullptr : "a non-negative integer";
        case Shape::kNumber:
            return v.is(Type::kNumber) ? nullptr : "a number";
        case Shape::kPositive:
            return v.is(Type::kNumber) && !v.number.negative && !v.number.zero()
                       ? nullptr
                       : "a number above 0";
        case Shape::kBool:
            return v.is(Type::kBool) ? nullptr : "true or false";
        case Shape::kValues:
            return v.is(Type::kArray) && !v.items.empty()
                       ? nullptr
                       : "an array of at least one value (with none, nothing is valid)";
        case Shape::kObject:
            return v.is(Type::kObject) ? nullptr : "an object";
        case Shape::kAny:
            return nullptr;
    }
    return nullptr;
}

std::string unescaped(const std::string& token) {
    std::string out;
    for (size_t i = 0; i < token.size(); ++i) {
        if (token[i] == '~' && i + 1 < token.size() &&
            (token[i + 1] == '0' || token[i + 1] == '1')) {
            out += token[++i] == '0' ? '~' : '/';
        } else {
            out += token[i];
        }
    }
    return out;
}

std::string percent_decoded(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size() &&
            isxdigit(static_cast<unsigned char>(text[i + 1])) &&
            isxdigit(static_cast<unsigned char>(text[i + 2]))) {
            out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

std::string without_fragment(const std::string& uri) {
    return uri.substr(0, uri.find('#'));
}

}  // namespace

std::string join_uri(const std::string& base, const std::string& ref) {
    if (ref.empty()) return base;
    const size_t colon = ref.find(':');
    if (colon != std::string::npos && ref.find_first_of("/?#") > colon) return ref;
    if (ref[0] == '#') return without_fragment(base) + ref;
    const size_t scheme = base.find("://");
    if (scheme == std::string::npos) {
        return base.rfind("urn:", 0) == 0 ? ref : ref;
    }
    const size_t host_end = std::min(base.find('/', scheme + 3), base.size());
    if (ref.rfind("//", 0) == 0) return base.substr(0, scheme + 1) + ref;
    std::string path;
    if (ref[0] == '/') {
        path = ref;
    } else {
        std::string folder = without_fragment(base).substr(host_end);
        folder = folder.substr(0, folder.find('?'));
        folder = folder.empty() ? "/" : folder.substr(0, folder.rfind('/') + 1);
        path = folder + ref;
    }
    std::vector<std::string> parts;
    const size_t tail_at = std::min(path.find_first_of("?#"), path.size());
    const std::string tail = path.substr(tail_at);
    std::string piece;
    std::string body = path.substr(0, tail_at);
    bool slash_end = false;
    for (size_t i = 1; i <= body.size(); ++i) {
        if (i < body.size() && body[i] != '/') {
            piece += body[i];
            continue;
        }
        slash_end = i < body.size() || piece == "." || piece == "..";
        if (piece == "..") {
            if (!parts.empty()) parts.pop_back();
        } else if (piece != ".") {
            if (i < body.size() || !piece.empty()) parts.push_back(piece);
            if (i == body.size() && piece.empty()) slash_end = true;
        }
        piece.clear();
    }
    std::string out = base.substr(0, host_end);
    for (const std::string& p : parts) out += "/" + p;
    if (slash_end && (body.empty() || body.back() == '/' || parts.empty())) out += "/";
    return out + tail;
}

std::string SchemaAlgebra::base_of(const JsonNode* at) const {
    std::vector<std::string> ids;
    for (; at != nullptr; at = at->parent) {
        if (!at->is(Type::kObject) || known_schemas_.count(at) == 0) continue;
        if (draft7_ && at->find("$ref") != nullptr) continue;
        if (const JsonNode* id = at->find("$id");
            id != nullptr && id->is(Type::kString) &&
            !(draft7_ && !id->text.empty() && id->text[0] == '#')) {
            ids.push_back(id->text);
        }
    }
    std::string base;
    for (auto it = ids.rbegin(); it != ids.rend(); ++it)
        base = without_fragment(join_uri(base, *it));
    return base;
}

void SchemaAlgebra::check_one(const JsonNode* s, std::vector<const JsonNode*>* open) {
    if (s->is(Type::kBool)) return;
    if (!s->is(Type::kObject)) {
        refuse(s->pointer,
               "",
               std::string("expected a schema (an object, true or false), found ") +
                   type_name(s->type));
    }
    known_schemas_.insert(s);
    for (const auto& [name, value] : s->members) {
        const Known* known = find_keyword(name);
        const std::string pointer = s->pointer + "/" + name;
        if (known == nullptr) {
            const bool extension = name.rfind("x-", 0) == 0;
            const Refusal r{
                pointer,
                name,
                "unknown keyword " + quote_json(name) + " (misspelt? extensions begin with x-)"};
            if (!extension) give_up(r);
            continue;
        }
        if (const char* expected = fault_of(*value, known->shape)) {
            refuse(pointer,
                   name,
                   name + " is " + compact_json(*value).substr(0, 60) + ", expected " + expected);
        }
        if (name == "pattern") parse_regex(value->text, pointer, limits_);
        if (name == "enum" && value->items.size() > limits_.values) {
            refuse(pointer,
                   name,
                   "enum has " + std::to_string(value->items.size()) + " values, at most " +
                       std::to_string(limits_.values) + " are taken");
        }
        switch (known->shape) {
            case Shape::kSchema:
                open->push_back(value);
                break;
            case Shape::kSchemas:
            case Shape::kSchemaOrSchemas:
                if (value->is(Type::kArray)) {
                    open->insert(open->end(), value->items.begin(), value->items.end());
                } else {
                    open->push_back(value);
                }
                break;
            case Shape::kRegexMap:
                for (const auto& m : value->members) parse_regex(m.first, pointer, limits_);
                [[fallthrough]];
            case Shape::kSchemaMap:
            case Shape::kDependencies:
                for (const auto& m : value->members) {
                    if (!m.second->is(Type::kArray)) open->push_back(m.second);
                }
                break;
            default:
                break;
        }
    }
}

void SchemaAlgebra::check() {
    if (const JsonNode* dialect = root_->find("$schema");
        dialect != nullptr && dialect->is(Type::kString)) {
        draft7_ = dialect->text.find("draft-07") != std::string::npos ||
                  dialect->text.find("draft-06") != std::string::npos ||
                  dialect->text.find("draft-04") != std::string::npos;
        const bool known = draft7_ || dialect->text.find("/2020-12/") != std::string::npos ||
                           dialect->text.find("/2019-09/") != std::string::npos;
        if (!known)
            refuse("/$schema",
                   "$schema",
                   "unknown dialect " + quote_json(dialect->text) +
                       " (drafts 2020-12, 2019-09 and 7 are known)");
    }
    std::vector<const JsonNode*> open = {root_};
    std::vector<const JsonNode*> all;
    while (!open.empty()) {
        const JsonNode* s = open.back();
        open.pop_back();
        check_one(s, &open);
        all.push_back(s);
    }
    resources_[""] = root_;
    for (const JsonNode* s : all) {
        if (!s->is(Type::kObject)) continue;
        const std::string base = base_of(s);
        if (const JsonNode* id = s->find("$id")) {
            if (draft7_ && !id->text.empty() && id->text[0] == '#') {
                anchors_[{base, id->text.substr(1)}] = s;
            } else {
                resources_[base] = s;
            }
        }
        if (const JsonNode* a = s->find("$anchor")) anchors_[{base, a->text}] = s;
        if (const JsonNode* a = s->find("$dynamicAnchor")) {
            anchors_[{base, a->text}] = s;
            dynamic_anchors_[a->text].push_back(s);
        }
    }
    if (root_->is(Type::kObject)) resources_[base_of(root_)] = root_;
    for (const JsonNode* s :
         all) {  // every reference must lead somewhere, also one that is never followed
        if (!s->is(Type::kObject)) continue;
        for (const char* key : {"$ref", "$dynamicRef"}) {
            const JsonNode* ref = s->find(key);
            if (ref != nullptr) resolve(*ref, ref->text, key);
        }
    }
}

const JsonNode* SchemaAlgebra::walk_pointer(const JsonNode* from,
                                            const std::string& pointer,
                                            const JsonNode& at) {
    const JsonNode* n = from;
    for (size_t i = 0; i < pointer.size();) {
        const size_t end = std::min(pointer.find('/', i + 1), pointer.size());
        const std::string token = unescaped(percent_decoded(pointer.substr(i + 1, end - i - 1)));
        const JsonNode* next = n->is(Type::kObject) ? n->find(token) : nullptr;
        if (n->is(Type::kArray) && !token.empty() && token.size() < 8 &&
            token.find_first_not_of("0123456789") == std::string::npos) {
            const size_t index = std::stoul(token);
            if (index < n->items.size()) next = n->items[index];
        }
        if (next == nullptr) {
            refuse(at.pointer,
                   "$ref",
                   "the reference " + quote_json(at.text) + " leads nowhere: there is no " +
                       quote_json(token));
        }
        n = next;
        i = end;
    }
    return n;
}

const JsonNode* SchemaAlgebra::resolve(const JsonNode& at,
                                       const std::string& ref,
                                       const std::string& keyword) {
    const std::string target = join_uri(base_of(at.parent), ref);
    const size_t hash = target.find('#');
    const std::string base = target.substr(0, hash);
    const std::string fragment = hash == std::string::npos ? "" : target.substr(hash + 1);
    const auto resource = resources_.find(base);
    if (resource == resources_.end()) {
        refuse(at.pointer,
               keyword,
               "the reference " + quote_json(ref) +
                   " leads out of this document; remote references are not followed");
    }
    const JsonNode* found = nullptr;
    if (fragment.empty()) {
        found = resource->second;
    } else if (fragment[0] == '/') {
        found = walk_pointer(resource->second, fragment, at);
    } else {
        const auto anchor = anchors_.find({base, fragment});
        if (anchor == anchors_.end())
            refuse(at.pointer,
                   keyword,
                   "the reference " + quote_json(ref) + " leads nowhere: there is no such anchor");
        found = anchor->second;
    }
    if (!is_schema(*found))
        refuse(at.pointer,
               keyword,
               "the reference " + quote_json(ref) + " leads to something that is no schema");
    if (known_schemas_.count(found) == 0 && found->is(Type::kObject)) {
        // A schema under a name that is no keyword: checked when it is found.
        std::vector<const JsonNode*> open = {found};
        while (!open.empty()) {
            const JsonNode* s = open.back();
            open.pop_back();
            check_one(s, &open);
        }
    }
    return found;
}

Forms SchemaAlgebra::reference(const JsonNode&, const JsonNode& v, bool positive) {
    return literal({resolve(v, v.text, "$ref"), positive});
}

Forms SchemaAlgebra::dynamic_reference(const JsonNode& s, const JsonNode& v, bool positive) {
    if (s.find("$dynamicRef") == nullptr)
        refuse(s.pointer + "/$recursiveRef", "$recursiveRef", "$recursiveRef is not supported");
    const JsonNode* target = resolve(v, v.text, "$dynamicRef");
    const JsonNode* anchor = target->is(Type::kObject) ? target->find("$dynamicAnchor") : nullptr;
    const size_t hash = v.text.find('#');
    const bool dynamic =
        anchor != nullptr && hash != std::string::npos && v.text.substr(hash + 1) == anchor->text;
    if (dynamic && dynamic_anchors_[anchor->text].size() > 1) {
        refuse(v.pointer,
               "$dynamicRef",
               "there are several $dynamicAnchor " + quote_json(anchor->text) +
                   "; which one counts depends on the path");
    }
    return literal({target, positive});
}

}  // namespace deepinfer::grammar
