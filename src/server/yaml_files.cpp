// The two YAML files that an operator writes: options and keys. This file alone includes yaml-cpp.
#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include "deepinfer/server.h"
#include "server/api_keys.h"

namespace deepinfer {
namespace {

Status invalid(const std::string& path, const YAML::Mark& mark, const std::string& what) {
    const std::string line = mark.is_null() ? "" : ":" + std::to_string(mark.line + 1);
    return {StatusCode::kInvalidArgument, path + line + ": " + what};
}

Result<YAML::Node> load_yaml(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0)
        return Status(StatusCode::kNotFound, path + ": no such file");
    if (!S_ISREG(info.st_mode) || info.st_size > (4 << 20))
        return Status(StatusCode::kInvalidArgument, path + ": expected a file of at most 4 MiB");
    try {
        return YAML::LoadFile(path);
    } catch (const YAML::Exception& e) {
        return invalid(path, e.mark, e.msg);
    }
}

using Options = std::vector<std::pair<std::string, std::vector<std::string>>>;

Result<Options> options_of(const std::string& path, const YAML::Node& root) {
    Options out;
    if (root.IsNull()) return out;
    if (!root.IsMap()) return invalid(path, root.Mark(), "expected a map of options");
    for (const auto& entry : root) {
        if (!entry.first.IsScalar())
            return invalid(path, entry.first.Mark(), "the name of an option is no word");
        const std::string name = entry.first.as<std::string>();
        for (const auto& [known, values] : out)
            if (known == name)
                return invalid(path, entry.first.Mark(), name + " stands here a second time");
        std::vector<std::string> values;
        if (entry.second.IsScalar()) {
            values.push_back(entry.second.as<std::string>());
        } else if (entry.second.IsSequence()) {
            for (const YAML::Node& item : entry.second) {
                if (!item.IsScalar())
                    return invalid(path, item.Mark(), name + ": expected a list of plain values");
                values.push_back(item.as<std::string>());
            }
        } else {
            return invalid(path, entry.second.Mark(), name + ": expected a value or a list");
        }
        out.emplace_back(name, std::move(values));
    }
    return out;
}

Result<server::ApiKey> key_of(const std::string& path, const YAML::Node& node) {
    if (!node.IsMap()) return invalid(path, node.Mark(), "a key is no map");
    server::ApiKey key;
    std::string digest;
    for (const auto& entry : node) {
        const std::string name = entry.first.as<std::string>();
        const YAML::Node& value = entry.second;
        if (name == "scopes") {
            for (const YAML::Node& item : value) {
                const std::string scope = item.as<std::string>();
                const int bit = scope == "infer"     ? server::kScopeInfer
                                : scope == "metrics" ? server::kScopeMetrics
                                : scope == "admin"   ? server::kScopeAdmin
                                                     : 0;
                if (bit == 0)
                    return invalid(path,
                                   item.Mark(),
                                   "scope '" + scope + "', expected infer, metrics or admin");
                key.scopes |= bit;
            }
        } else if (name == "id") {
            key.id = value.as<std::string>();
        } else if (name == "tenant") {
            key.tenant = value.as<std::string>();
        } else if (name == "sha256") {
            digest = value.as<std::string>();
        } else if (name == "expires") {
            Result<int64_t> time = server::parse_utc(value.as<std::string>());
            if (!time.ok()) return invalid(path, value.Mark(), time.status().message());
            key.expires_s = time.value();
        } else if (name == "max_concurrent" || name == "requests_per_minute") {
            const int64_t number = value.as<int64_t>();
            if (number < 1) return invalid(path, value.Mark(), name + ": expected at least 1");
            (name == "max_concurrent" ? key.max_concurrent : key.requests_per_minute) = number;
        } else {
            return invalid(path, entry.first.Mark(), "a key has no member '" + name + "'");
        }
    }
    if (key.id.empty()) return invalid(path, node.Mark(), "a key without id");
    if (key.scopes == 0) return invalid(path, node.Mark(), "key '" + key.id + "' has no scopes");
    if (digest.size() != 64 ||
        digest.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        return invalid(path,
                       node.Mark(),
                       "key '" + key.id + "': sha256 is expected to have 64 hexadecimal digits");
    for (size_t i = 0; i < 32; ++i)
        key.digest[i] = static_cast<unsigned char>(std::stoi(digest.substr(2 * i, 2), nullptr, 16));
    if (key.tenant.empty()) key.tenant = key.id;
    return key;
}

}  // namespace

Result<Options> read_option_file(const std::string& path) {
    Result<YAML::Node> root = load_yaml(path);
    if (!root.ok()) return root.status();
    try {
        return options_of(path, root.value());
    } catch (const YAML::Exception& e) {
        return invalid(path, e.mark, e.msg);
    }
}

namespace server {

Result<std::shared_ptr<const KeyRing>> KeyRing::load(const std::string& path) {
    Result<YAML::Node> root = load_yaml(path);
    if (!root.ok()) return root.status();
    try {
        const YAML::Node& map = root.value();
        if (!map.IsMap() || map.size() != 1 || !map["keys"] || !map["keys"].IsSequence())
            return invalid(path, map.Mark(), "expected one member, the list `keys`");
        std::vector<ApiKey> keys;
        for (const YAML::Node& node : map["keys"]) {
            Result<ApiKey> key = key_of(path, node);
            if (!key.ok()) return key.status();
            keys.push_back(std::move(key).value());
        }
        Result<std::shared_ptr<const KeyRing>> ring = from_keys(std::move(keys));
        if (!ring.ok()) return Status(ring.status().code(), path + ": " + ring.status().message());
        return ring;
    } catch (const YAML::Exception& e) {
        return invalid(path, e.mark, e.msg);
    }
}

}  // namespace server
}  // namespace deepinfer
