// check-constraint: what of a constraint is enforced or refused, and which texts it accepts.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "command.h"
#include "deepinfer/structured_output.h"

namespace deepinfer::cli {
namespace {

struct Options {
    ConstraintOptions constraint;
    std::string texts, cases;
    bool json = false, lenient = false;
};

int run_cases(const std::string& path) {
    std::ifstream file;
    if (path != "-") {
        file.open(path);
        if (!file) return fail({StatusCode::kNotFound, "--cases " + path + " cannot be read"});
    }
    std::istream& in = path == "-" ? std::cin : file;
    std::string line;
    while (std::getline(in, line)) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        std::printf("%s\n", check_constraint_json_line(line).c_str());
    }
    std::fflush(stdout);
    return std::ferror(stdout) != 0 ? kExitFailed : kExitOk;
}

Status read_texts(const std::string& path, std::vector<std::string>* texts) {
    std::ifstream file(path);
    if (!file) return {StatusCode::kNotFound, "--texts " + path + " cannot be read"};
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
        if (!j.is_string())
            return {StatusCode::kInvalidFile,
                    path + ", line " + std::to_string(number) + ": expected one JSON string"};
        texts->push_back(j.get<std::string>());
    }
    return {};
}

void print_findings(const char* title, const std::vector<ConstraintFinding>& list) {
    for (const ConstraintFinding& f : list) {
        std::printf("%s %s%s%s\n",
                    title,
                    f.pointer.c_str(),
                    f.pointer.empty() ? "" : ": ",
                    f.reason.c_str());
    }
}

int run(Options& o) {
    if (!o.cases.empty()) return run_cases(o.cases);
    Result<StructuredOutputArgs> args = o.constraint.read();
    if (!args.ok()) return fail(args.status());
    if (args->empty())
        return fail({StatusCode::kInvalidArgument,
                     "expected one of --json-schema, --regex, --ebnf, --choice, --structural-tag, "
                     "or --cases"});
    args->strict = !o.lenient;
    std::vector<std::string> texts;
    if (!o.texts.empty()) {
        if (Status s = read_texts(o.texts, &texts); !s.ok()) return fail(s);
    }
    const ConstraintReport report = check_constraint(args.value(), texts);
    if (o.json) {
        std::printf("%s\n", constraint_report_json(report).c_str());
    } else {
        std::printf("%s\n", report.ok ? "enforced" : "refused");
        print_findings("  refused", report.refused);
        print_findings("  note", report.notes);
        for (size_t i = 0; i < report.accepted.size(); ++i) {
            std::printf("  %s %s\n",
                        report.accepted[i] ? "accepts" : "rejects",
                        nlohmann::json(texts[i])
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
        }
    }
    return report.ok ? kExitOk : kExitFailed;
}

}  // namespace

Run add_check_constraint(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App& app = *root.add_subcommand(
        "check-constraint", "What a constraint enforces or refuses, and which texts it accepts");
    add_constraint_options(app, o->constraint);
    app.add_option(
        "--texts", o->texts, "File with one JSON string a line: complete outputs to judge");
    app.add_option(
        "--cases",
        o->cases,
        "JSON Lines {\"so_args\":{…},\"texts\":[…]} in bulk (- = stdin), answers in order");
    app.add_flag(
        "--lenient", o->lenient, "strict: false; leave out what cannot be enforced, and list it");
    app.add_flag("--json", o->json, "One JSON document on stdout");
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
