#include "ops/backend.h"

#include <map>

namespace deepinfer {
namespace {

std::map<std::string, BackendFactory>& factories() {
    static std::map<std::string, BackendFactory> f;
    return f;
}

}  // namespace

void register_backend(const std::string& name, BackendFactory factory) {
    factories()[name] = std::move(factory);
}

Result<std::unique_ptr<Backend>> create_backend(const std::string& name,
                                                const BackendOptions& options) {
    const auto it = factories().find(name);
    if (it != factories().end()) return it->second(options);
    std::string list;
    for (const auto& [n, f] : factories()) list += (list.empty() ? "" : ", ") + n;
    return Status(StatusCode::kInvalidArgument,
                  "backend '" + name + "' is not compiled into this program; compiled: " + list);
}

std::vector<std::string> compiled_backends() {
    std::vector<std::string> out;
    for (const auto& [n, f] : factories()) out.push_back(n);
    return out;
}

}  // namespace deepinfer
