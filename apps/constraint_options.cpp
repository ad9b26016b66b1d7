// --regex, --json-schema, --ebnf, --choice, --structural-tag: one constraint from the command line.
#include <cstdio>
#include <fstream>
#include <iterator>

#include "command.h"

namespace deepinfer::cli {
namespace {

Result<std::string> whole_file(const std::string& flag, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return Status(StatusCode::kNotFound, flag + " " + path + " cannot be read");
    return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

void add_constraint_options(CLI::App& app, ConstraintOptions& o) {
    app.add_option("--regex", o.regex, "The output matches this regular expression as a whole");
    app.add_option(
        "--json-schema", o.json_schema, "The output is JSON valid under the schema in this file");
    app.add_option(
        "--ebnf", o.ebnf, "The output is derived from rule root of the grammar in this file");
    app.add_option("--choice", o.choice, "The output is one of these texts: A|B|C");
    app.add_option("--structural-tag",
                   o.structural_tag,
                   "Free text with constrained regions, as the file says");
    app.add_option("--strict",
                   o.strict,
                   "1: refuse what cannot be enforced; 0: leave it out and list it on stderr")
        ->capture_default_str();
    app.add_option("--any-whitespace",
                   o.any_whitespace,
                   "0: JSON with one blank behind , and : and no other")
        ->capture_default_str();
}

Result<StructuredOutputArgs> ConstraintOptions::read() const {
    using Type = StructuredOutputArgs::Type;
    const struct {
        const char* flag;
        const std::string& value;
        Type type;
        bool file;
    } forms[] = {{"--regex", regex, Type::kRegex, false},
                 {"--json-schema", json_schema, Type::kJson, true},
                 {"--ebnf", ebnf, Type::kEbnf, true},
                 {"--choice", choice, Type::kChoice, false},
                 {"--structural-tag", structural_tag, Type::kStructuralTag, true}};
    StructuredOutputArgs args;
    const char* given = nullptr;
    for (const auto& form : forms) {
        if (form.value.empty()) continue;
        if (given != nullptr) {
            return Status(
                StatusCode::kInvalidArgument,
                std::string(given) + " and " + form.flag + ": only one constraint at a time");
        }
        given = form.flag;
        args.type = form.type;
        args.value = form.value;
        if (!form.file) continue;
        Result<std::string> text = whole_file(form.flag, form.value);
        if (!text.ok()) return text.status();
        args.value = std::move(text).value();
    }
    args.strict = strict;
    args.any_whitespace = any_whitespace;
    if (args.type == Type::kChoice) {
        for (size_t at = 0; at <= choice.size();) {
            const size_t end = std::min(choice.find('|', at), choice.size());
            args.choices.push_back(choice.substr(at, end - at));
            at = end + 1;
        }
        args.value.clear();
    }
    return args;
}

void show_constraint_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes)
        std::fprintf(stderr, "deepinfer: not enforced: %s\n", note.c_str());
}

}  // namespace deepinfer::cli
