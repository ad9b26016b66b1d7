// NumericClass: what a kernel promises about its bits, declared beside the place where the kernel
// is chosen, and checked before an engine starts.
//
//   choose(t.linear, &linear_ref<Acc>, "linear_ref", NumericClass::kRowInvariant);
//   check_numeric_classes(backend.ops(), NumericClass::kRowInvariant);   // names the op that has
//   less
//
// The declaration belongs to the function, not to the op: a table that gets another function for an
// op has no class for it until somebody says which, and an engine with batch_invariant refuses it.
// The promises are kept by src/ops/twin_laws_test.cpp; numeric_class_test.cpp sees that every op of
// the table takes part there.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "ops/op_table.h"

namespace deepinfer {

/// Ascending: each keeps the promises of those below it.
enum class NumericClass {
    kUndeclared,      ///< nobody said: never chosen
    kBatchDependent,  ///< same bits for the same launch; an order of sums may follow the number of
                      ///< rows (a kernel chosen by it, a split of k or of keys that fills the chip)
    kRowInvariant,    ///< a row's bits follow from that row and the weight: never from the number
                      ///< of rows, its place, its neighbours or the threads. One order of sums per
                      ///< weight and level, which other levels need not share
    kExact,           ///< and every implementation gives these bits: moves, integers, selection by
                      ///< (value, index), quantizers
};
/// "undeclared", "batch_dependent", "row_invariant", "exact"
const char* numeric_class_name(NumericClass c);

/// Identity of a kernel: its function, with the type taken off.
using KernelId = void (*)();
template <typename... Args>
KernelId kernel_id(void (*kernel)(Args...)) {
    return reinterpret_cast<KernelId>(kernel);
}

/// Remembers what `kernel` promises. Declaring it again with the same words changes nothing; with
/// other words is a caller bug. Any thread.
void declare_kernel(KernelId kernel, const std::string& name, NumericClass numeric_class);

/// Puts a kernel into a table and declares it.
template <typename... Args>
void choose(void (*&site)(Args...),
            void (*kernel)(Args...),
            const std::string& name,
            NumericClass numeric_class) {
    declare_kernel(kernel_id(kernel), name, numeric_class);
    site = kernel;
}

/// One op of a table that has a kernel.
struct OpSite {
    const char* op = "";  ///< member of OpTable
    KernelId kernel = nullptr;
    std::string kernel_name;  ///< empty: undeclared
    NumericClass numeric_class = NumericClass::kUndeclared;
};
/// Every op of the table that is not null, in the table's order.
std::vector<OpSite> op_sites(const OpTable& table);
/// Names of all ops of OpTable, chosen or not, in the same order.
std::vector<std::string> op_names();

/// kInvalidArgument names the first op whose kernel promises less than `least`, or nothing.
Status check_numeric_classes(const OpTable& table, NumericClass least);

/// "44 ops: 19 exact, 25 row_invariant", for the start-up log.
std::string numeric_summary(const OpTable& table);

}  // namespace deepinfer
