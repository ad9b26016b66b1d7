#include "support/case_file.h"

#include <fstream>

#include "base/check.h"
#include "support/golden_file.h"

namespace deepinfer::testing {

nlohmann::json load_case(const std::string& file, const std::string& id) {
    std::ifstream f(data_path("cases/" + file));
    DI_CHECK_MSG(static_cast<bool>(f), file);
    for (const nlohmann::json& c : nlohmann::json::parse(f)) {
        if (c["id"] == id) return c;
    }
    DI_CHECK_MSG(false, id + " is not in " + file);
    return {};
}

nlohmann::json case_rows(const std::string& file, const std::string& id) {
    nlohmann::json rows = load_case(file, id)["rows"];
    DI_CHECK_MSG(rows.is_array() && !rows.empty(), id + " has no rows");
    return rows;
}

}  // namespace deepinfer::testing
