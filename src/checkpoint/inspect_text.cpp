// render_inspection(): the inspection report as text for people.
#include <cstdio>
#include <utility>
#include <vector>

#include "checkpoint/strict_json.h"
#include "deepinfer/checkpoint.h"

namespace deepinfer {
namespace {

using Json = nlohmann::ordered_json;

std::string size_text(double bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes >= 1024 && u + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        ++u;
    }
    char buffer[48];
    std::snprintf(buffer, sizeof buffer, u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
    return buffer;
}

std::string count_text(double n) {
    const char* units[] = {"", " K", " M", " B"};
    size_t u = 0;
    while (n >= 1000 && u + 1 < sizeof units / sizeof *units) {
        n /= 1000;
        ++u;
    }
    char buffer[48];
    std::snprintf(buffer, sizeof buffer, u == 0 ? "%.0f%s" : "%.1f%s", n, units[u]);
    return buffer;
}

std::string pad(std::string text, size_t width) {
    if (text.size() < width) text.append(width - text.size(), ' ');
    return text;
}

/// A field as one word: "-" for null and false, "yes" for true.
std::string cell(const Json& value) {
    if (value.is_null()) return "-";
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "-";
    return value.is_string() ? value.get<std::string>() : value.dump();
}

void render_layers(const Json& layers, std::string& out) {
    const std::vector<std::pair<const char*, size_t>> columns = {{"name", 12},
                                                                 {"half", 9},
                                                                 {"ratio", 7},
                                                                 {"mode", 9},
                                                                 {"kv_source", 11},
                                                                 {"index_source", 14},
                                                                 {"candidate", 11},
                                                                 {"engram_table", 14},
                                                                 {"dspark_tap", 10}};
    out += "\nlayers\n  ";
    for (const auto& c : columns) out += pad(c.first, c.second);
    out += "\n";
    for (const Json& layer : layers) {
        std::string line = "  ";
        for (const auto& c : columns) line += pad(cell(layer.at(c.first)), c.second);
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
}

std::string render(const Json& report, const InspectionText& options) {
    std::string out = "checkpoint " + report.at("directory").get<std::string>() + "\n";
    const Json& refused = report.at("refused");
    if (report.at("loadable").get<bool>()) {
        out += "loads: yes\n";
    } else {
        out += "loads: no, refused because\n";
        for (const Json& r : refused) out += "  " + r.get<std::string>() + "\n";
    }
    if (report.contains("geometry")) {
        out += "\ngeometry\n";
        for (const auto& item : report.at("geometry").items()) {
            out += "  " + pad(item.key(), 30) + " " + cell(item.value()) + "\n";
        }
    }
    if (report.contains("layers")) render_layers(report.at("layers"), out);
    if (report.contains("parameters")) {
        out += "\nparameters\n";
        for (const auto& item : report.at("parameters").items()) {
            out += "  " + pad(item.key(), 30) + " " + count_text(item.value().get<double>()) + "\n";
        }
        out += "\nbytes by kind (" + report.at("num_tensors").dump() + " tensors)\n";
        for (const auto& item : report.at("bytes_by_kind").items()) {
            out += "  " + pad(item.key(), 30) + " " + size_text(item.value().get<double>()) + "\n";
        }
    }
    if (report.contains("cache")) {
        out += "\ncache\n";
        for (const auto& item : report.at("cache").items()) {
            out += "  " + pad(item.key(), 30) + " " + size_text(item.value().get<double>()) + "\n";
        }
    }
    if (report.contains("ignored_tensors") && !report.at("ignored_tensors").empty()) {
        out += "\nignored tensors\n";
        for (const Json& name : report.at("ignored_tensors")) {
            out += "  " + name.get<std::string>() + "\n";
        }
    }
    if (options.list_tensors && report.contains("tensors")) {
        out += "\ntensors\n";
        for (const Json& t : report.at("tensors")) {
            out += "  " + pad(t.at("name").get<std::string>(), 48) + " " +
                   pad(t.at("dtype").get<std::string>(), 8) + " " + pad(t.at("shape").dump(), 18) +
                   " " + pad(size_text(t.at("bytes").get<double>()), 11) + " " +
                   t.at("shard").get<std::string>() + "\n";
        }
    }
    return out;
}

}  // namespace

Result<std::string> render_inspection(const std::string& report, const InspectionText& options) {
    try {
        return render(Json::parse(report), options);
    } catch (const std::exception& e) {
        return Status(StatusCode::kInvalidArgument,
                      std::string("not an inspection report: ") + e.what());
    }
}

}  // namespace deepinfer
