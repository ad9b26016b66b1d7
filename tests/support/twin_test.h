// The laws that every row-wise op keeps, tested for every implementation present.
//
// An op's test file describes the op once, as OpCases, and takes part with
//
//   DI_TWIN_LAWS(RmsNorm, rms_norm_case(1, 0), rms_norm_case(64, 3));
//
// src/ops/twin_laws_test.cpp holds the tests: MatchesTwin, RowIgnoresItsBatch, ThreadsDoNotMatter,
// NanStaysInItsRow.
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "support/op_bench.h"

namespace deepinfer::testing {

/// One op at one shape. `run` makes the inputs of the given rows (each from its row id alone,
/// through OpBench::rows), runs the op and returns its outputs after bench.finish().
struct OpCase {
    std::string name;                   ///< letters, digits, underscores
    std::vector<Tolerance> tolerances;  ///< one per output
    std::function<std::vector<HostTensor>(OpBench& bench, const std::vector<int>& row_ids)> run;
    bool poison = true;  ///< false: the inputs of a row are all integers or fixed
};
inline std::ostream& operator<<(std::ostream& s, const OpCase& c) {
    return s << c.name;
}

/// All cases of one op. Made inside the tests: building them costs nothing where they are not run.
struct OpCases {
    const char* op;
    std::vector<OpCase> (*make)();
};
inline std::ostream& operator<<(std::ostream& s, const OpCases& c) {
    return s << c.op;
}

class TwinLaws : public ::testing::TestWithParam<std::tuple<Implementation, OpCases>> {
  protected:
    const Implementation& implementation() const { return std::get<0>(GetParam()); }
    std::vector<OpCase> cases() const { return std::get<1>(GetParam()).make(); }
};

inline std::string twin_test_name(const ::testing::TestParamInfo<TwinLaws::ParamType>& info) {
    return std::get<0>(info.param).name();
}

/// Every op that takes part, in the order of the files: what numeric_class_test.cpp walks.
inline std::vector<OpCases>& all_twin_cases() {
    static std::vector<OpCases> all;
    return all;
}

inline bool list_twin_cases(const OpCases& cases) {
    all_twin_cases().push_back(cases);
    return true;
}

/// DI_TWIN_LAWS(RmsNorm, case, case, …): the laws for every implementation over these cases.
#define DI_TWIN_LAWS(op, ...)                                                                     \
    std::vector<OpCase> op##TwinCases() {                                                         \
        return {__VA_ARGS__};                                                                     \
    }                                                                                             \
    [[maybe_unused]] const bool op##TwinListed = list_twin_cases({#op, &op##TwinCases});          \
    INSTANTIATE_TEST_SUITE_P(op,                                                                  \
                             TwinLaws,                                                            \
                             ::testing::Combine(::testing::ValuesIn(implementations()),           \
                                                ::testing::Values(OpCases{#op, &op##TwinCases})), \
                             twin_test_name)

/// Tests that run once per implementation.
class EveryImplementation : public ::testing::TestWithParam<Implementation> {};
inline std::string implementation_test_name(const ::testing::TestParamInfo<Implementation>& info) {
    return info.param.name();
}

/// Moves HostTensors into a vector (initializer lists would copy).
template <typename... T>
std::vector<HostTensor> outputs(T&&... t) {
    std::vector<HostTensor> v;
    (v.push_back(std::forward<T>(t)), ...);
    return v;
}

}  // namespace deepinfer::testing
