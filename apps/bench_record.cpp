#include "bench_record.h"

#include <openssl/evp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#ifndef DEEPINFER_COMMIT
#define DEEPINFER_COMMIT "unknown"
#endif

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::string host_name() {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0) return "unknown";
    return name;
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
        if (line.rfind("model name", 0) != 0) continue;
        const size_t colon = line.find(": ");
        if (colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown";
}

/// The line of Engine::description() that says which backend and kernels run.
std::string backend_line(const Engine& engine) {
    const std::string text = engine.description();
    const std::string label = "\nbackend  ";
    const size_t begin = text.find(label);
    if (begin == std::string::npos) return "";
    return text.substr(begin + label.size(), text.find('\n', begin + 1) - begin - label.size());
}

/// "avx512" of "cpu, avx512 kernels, 2 threads"; empty where a backend has no such levels.
std::string isa_of(const std::string& line) {
    const size_t end = line.find(" kernels");
    if (end == std::string::npos) return "";
    const size_t begin = line.rfind(' ', end - 1);
    return line.substr(begin + 1, end - begin - 1);
}

/// SHA-256 of config.json and the tensor index: tells geometries and formats apart, not trained
/// weights. Of a generated model, the text of --synthetic and the config.json that it may name.
std::string config_sha256(const EngineConfig& config) {
    const std::filesystem::path dir(config.model_dir);
    std::vector<std::filesystem::path> files = {dir / "config.json",
                                                dir / "model.safetensors.index.json"};
    if (!config.synthetic.empty())
        files = {config.synthetic.substr(0, config.synthetic.rfind(':')), config.synthetic};
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    if (context == nullptr) return "";
    EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
    EVP_DigestUpdate(context, config.synthetic.data(), config.synthetic.size());
    for (const std::filesystem::path& path : files) {
        std::ifstream file(path, std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(file), {});
        EVP_DigestUpdate(context, bytes.data(), bytes.size());
    }
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context, digest, &size);
    EVP_MD_CTX_free(context);
    std::string hex;
    for (unsigned int i = 0; i < size; ++i) {
        constexpr char kDigits[] = "0123456789abcdef";
        hex += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
    }
    return hex;
}

double rounded(double value) {
    return std::round(value * 1e4) / 1e4;
}

}  // namespace

double Sample::quantile(double share) const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const double rank = std::ceil(share * static_cast<double>(sorted.size()));
    const auto index = static_cast<size_t>(std::max(rank - 1, 0.0));
    return sorted[std::min(index, sorted.size() - 1)];
}

double Sample::median() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

void Sample::put_percentiles(const std::string& name,
                             const std::string& unit,
                             ordered_json* record) const {
    for (const auto& [label, share] :
         {std::pair<const char*, double>{"_p50", 0.5}, {"_p90", 0.9}, {"_p99", 0.99}}) {
        (*record)[name + label + unit] =
            empty() ? ordered_json() : ordered_json(rounded(quantile(share)));
    }
}

void Sample::put_spread(const std::string& name,
                        const std::string& unit,
                        ordered_json* record) const {
    (*record)[name + unit] = empty() ? ordered_json() : ordered_json(rounded(median()));
    (*record)[name + "_min" + unit] = empty() ? ordered_json() : ordered_json(rounded(quantile(0)));
    (*record)[name + "_max" + unit] = empty() ? ordered_json() : ordered_json(rounded(quantile(1)));
}

ordered_json machine_record(const std::string& bench,
                            const std::string& tag,
                            const std::string& note,
                            int threads,
                            const std::string& backend,
                            const std::string& backend_line) {
    ordered_json r;
    r["bench"] = bench;
    r["tag"] = tag;
    r["time"] = utc_now();
    r["commit"] = DEEPINFER_COMMIT;
    r["version"] = DEEPINFER_VERSION;
    r["host"] = host_name();
    r["cpu"] = cpu_name();
    r["isa"] = isa_of(backend_line);
    r["threads"] = threads;
    r["backend"] = backend;
    r["device"] = backend_line;
    r["note"] = note;
    return r;
}

ordered_json start_record(const std::string& bench,
                          const std::string& tag,
                          const std::string& note,
                          const Engine& engine,
                          ordered_json settings) {
    const EngineConfig& c = engine.config();
    settings["engine"] = ordered_json::parse(c.to_json());
    ordered_json r = machine_record(bench, tag, note, c.threads, c.backend, backend_line(engine));
    std::filesystem::path dir(c.model_dir);
    r["model"] = !c.synthetic.empty()
                     ? "synthetic:" + c.synthetic
                     : (dir.has_filename() ? dir : dir.parent_path()).filename().string();
    r["model_config_sha256"] = config_sha256(c);
    r["ep_size"] = c.ep;
    r["dp"] = c.dp;
    r["cp"] = c.cp;
    r["nextn"] = c.nextn;
    r["varlen"] = c.varlen;
    r["yoco_mode"] = c.truncation.empty() ? "off" : c.truncation;
    r["yoco_keep"] = c.keep_tokens;
    r["replay"] = c.replay;
    r["batch_invariant"] = c.batch_invariant;
    r["extra_experts_asked"] = c.extra_experts;
    r["extra_experts_actual"] =
        c.extra_experts;  // refused unless 0, so what was asked is what runs
    r["settings"] = std::move(settings);
    return r;
}

ordered_json start_plain_record(const std::string& bench,
                                const std::string& tag,
                                const std::string& note,
                                ordered_json settings) {
    ordered_json r;
    r["bench"] = bench;
    r["tag"] = tag;
    r["time"] = utc_now();
    r["commit"] = DEEPINFER_COMMIT;
    r["version"] = DEEPINFER_VERSION;
    r["host"] = host_name();
    r["cpu"] = cpu_name();
    for (const char* none : {"isa", "backend", "device", "model"}) r[none] = "";
    r["threads"] = 0;
    r["settings"] = std::move(settings);
    r["note"] = note;
    return r;
}

std::string build_commit() {
    return DEEPINFER_COMMIT;
}

int64_t peak_rss_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace deepinfer::cli
