#include "bench_compare.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace deepinfer::cli {
namespace {

using nlohmann::json;

struct Metric {
    const char* name;
    bool more_is_better;
    bool main;  ///< compared unless figures are named
};
constexpr Metric kMetrics[] = {{"output_tokens_per_s", true, true},
                               {"total_tokens_per_s", true, false},
                               {"requests_per_s", true, false},
                               {"prefill_tokens_per_s", true, true},
                               {"avg_SPS", true, false},
                               {"tps_measured", true, true},
                               {"ttft_p50_ms", false, true},
                               {"ttft_p99_ms", false, false},
                               {"itl_p50_ms", false, true},
                               {"itl_p99_ms", false, false},
                               {"e2e_p50_ms", false, false},
                               {"prefill_latency_p50_ms", false, false},
                               {"med_us", false, true},
                               {"share", true, false}};
/// What one tag may not mix.
constexpr const char* kTagFields[] = {"bench",
                                      "model",
                                      "model_config_sha256",
                                      "backend",
                                      "ep_size",
                                      "dp",
                                      "cp",
                                      "context",
                                      "nextn",
                                      "varlen",
                                      "yoco_mode",
                                      "batch_invariant",
                                      "extra_experts_asked"};
/// What must agree for two records to be of a kind.
constexpr const char* kKindFields[] = {"bench",
                                       "host",
                                       "cpu",
                                       "model",
                                       "backend",
                                       "isa",
                                       "threads",
                                       "batch",
                                       "batch_invariant",
                                       "op",
                                       "shape",
                                       "rows",
                                       "dtype"};
/// Settings that do not change what is measured, only how often.
constexpr const char* kCounting[] = {
    "repeat", "warmup", "windows", "warmup_steps", "settle_s", "window_ms", "engine"};

json field(const json& record, const char* name) {
    return record.contains(name) ? record.at(name) : json();
}

Result<std::vector<json>> read_records(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return Status(StatusCode::kNotFound, "cannot read " + path);
    std::vector<json> records;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = path + ":" + std::to_string(number) + ": ";
        json record = json::parse(line, nullptr, false);
        if (record.is_discarded()) return Status(StatusCode::kInvalidFile, where + "no JSON");
        if (!record.is_object() || !record.contains("bench") || !record.contains("host"))
            return Status(StatusCode::kInvalidFile,
                          where + "no measurement record (bench and host are missing)");
        records.push_back(std::move(record));
    }
    return records;
}

Status check_tags(const std::vector<json>& records) {
    std::map<std::string, const json*> first_of;
    for (const json& record : records) {
        const json tag = field(record, "tag");
        if (!tag.is_string() || tag.get<std::string>().empty()) continue;
        const json& first = *first_of.emplace(tag.get<std::string>(), &record).first->second;
        for (const char* name : kTagFields) {
            if (field(first, name) == field(record, name)) continue;
            return {StatusCode::kInvalidFile,
                    "tag '" + tag.get<std::string>() + "' mixes " + name + " " +
                        field(first, name).dump() + " and " + field(record, name).dump() +
                        "; give the series different tags"};
        }
    }
    return {};
}

std::string kind_of(const json& record) {
    json key = json::array();
    for (const char* name : kKindFields) key.push_back(field(record, name));
    json settings = field(record, "settings");
    for (const char* name : kCounting) {
        if (settings.is_object()) settings.erase(name);
    }
    key.push_back(settings);
    return key.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string label_of(const json& record) {
    const auto text = [&](const char* name) {
        const json v = field(record, name);
        return v.is_string() ? v.get<std::string>() : v.is_null() ? "" : v.dump();
    };
    if (field(record, "op").is_string())
        return text("op") + " " + text("shape") + " rows " + text("rows");
    return text("bench") + " batch " + text("batch");
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    const size_t half = v.size() / 2;
    return v.size() % 2 == 1 ? v[half] : (v[half - 1] + v[half]) / 2;
}

struct Group {
    std::string label;
    std::vector<const json*> side[2];
};

std::vector<double> values(const std::vector<const json*>& records, const char* metric) {
    std::vector<double> out;
    for (const json* r : records) {
        const json v = field(*r, metric);
        if (v.is_number() && v.get<double>() > 0) out.push_back(v.get<double>());
    }
    return out;
}

}  // namespace

Result<Comparison> compare_records(const CompareOptions& o) {
    std::vector<Metric> metrics;
    for (const Metric& m : kMetrics) {
        const bool named = std::find(o.metrics.begin(), o.metrics.end(), m.name) != o.metrics.end();
        if (o.metrics.empty() ? m.main : named) metrics.push_back(m);
    }
    for (const std::string& name : o.metrics) {
        if (std::none_of(std::begin(kMetrics), std::end(kMetrics), [&](const Metric& m) {
                return name == m.name;
            }))
            return Status(StatusCode::kInvalidArgument, "--metric " + name + ": no such figure");
    }
    std::vector<json> records[2];
    std::map<std::string, Group> groups;
    for (const int side : {0, 1}) {
        Result<std::vector<json>> read = read_records(side == 0 ? o.old_path : o.new_path);
        if (!read.ok()) return read.status();
        records[side] = std::move(read).value();
        DI_RETURN_IF_ERROR(check_tags(records[side]));
        for (const json& r : records[side]) {
            Group& g = groups[kind_of(r)];
            g.label = label_of(r);
            g.side[side].push_back(&r);
        }
    }
    Comparison out;
    for (const auto& [kind, group] : groups) {
        for (const Metric& m : metrics) {
            const std::vector<double> a = values(group.side[0], m.name),
                                      b = values(group.side[1], m.name);
            if (a.empty() || b.empty()) continue;
            const double x = median(a), y = median(b);
            const double change = (m.more_is_better ? y / x : x / y) - 1;
            const bool worse = change < -o.limit;
            out.worse = out.worse || worse;
            char line[512];
            std::snprintf(line,
                          sizeof line,
                          "%s%-56s %-22s %12.3f -> %12.3f  %+7.1f%%\n",
                          worse              ? "WORSE  "
                          : change > o.limit ? "better "
                                             : "       ",
                          group.label.c_str(),
                          m.name,
                          x,
                          y,
                          100 * change);
            out.text += line;
        }
    }
    if (out.text.empty()) {
        return Status(StatusCode::kNotFound,
                      "nothing to compare: no record of one file has its like in the other");
    }
    return out;
}

}  // namespace deepinfer::cli
