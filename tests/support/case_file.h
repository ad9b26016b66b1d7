// The table-driven field cases under tests/data/cases.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace deepinfer::testing {

/// The case object with this id ("C-102") of tests/data/cases/<file>. Aborts with a message if
/// there is none.
nlohmann::json load_case(const std::string& file, const std::string& id);

/// Its rows, by value: `for (row : load_case(…)["rows"])` would loop over a destroyed temporary.
/// Aborts if there are none, so that a loop over them always tests something.
nlohmann::json case_rows(const std::string& file, const std::string& id);

}  // namespace deepinfer::testing
