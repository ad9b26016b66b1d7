// The laws that every row-wise op keeps, tested for every implementation present.
//
// An op's test file describes the op once, as OpCases, and instantiates the suite:
//
//   INSTANTIATE_TEST_SUITE_P(RmsNorm, TwinLaws, Combine(ValuesIn(implementations()),
//   ValuesIn(cases())), twin_test_name);
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

class TwinLaws : public ::testing::TestWithParam<std::tuple<Implementation, OpCase>> {
  protected:
    const Implementation& implementation() const { return std::get<0>(GetParam()); }
    const OpCase& op() const { return std::get<1>(GetParam()); }
};

inline std::string twin_test_name(const ::testing::TestParamInfo<TwinLaws::ParamType>& info) {
    return std::get<0>(info.param).name() + "_" + std::get<1>(info.param).name;
}

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
