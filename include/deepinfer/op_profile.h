// Which ops the steps of a running engine are made of, what they cost and how long they took.
//
//   register_profiled_backend("cpu");            // adds "cpu+profile"
//   config.backend = "cpu+profile";              // an engine as usual
//   start_op_profile(); … steps …; for (const ProfiledOp& op : stop_op_profile()) …
//
// Costs come from the shapes of the calls, by the accounts of op_bench.h: weights and cache rows
// once, activations in and out once. Outside a profile a call costs one test of a flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

/// Calls of one op with one cost.
struct ProfiledOp {
    std::string op;  ///< name in the op table
    int64_t calls = 0;
    double seconds = 0;           ///< all calls together, on the engine's thread
    double bytes = 0, flops = 0;  ///< one call
    double stored = 0;            ///< of the bytes: weights and cache rows
};

/// Makes backend "NAME+profile" of the registered backend NAME. Before any thread exists; engines
/// on it one after the other.
void register_profiled_backend(const std::string& name);

/// Recording begins and ends between two steps (at the op that every step begins with), so that
/// whole steps are counted.
void start_op_profile();
/// What was recorded; waits for no step. `steps` (if not null): how many.
std::vector<ProfiledOp> stop_op_profile(int64_t* steps = nullptr);

/// Roofs of the profiled backend that is open, measured now on its threads while no step runs:
/// bytes a second of reading a working set of that size again and again, flops a second of the
/// widest multiply-add.
double profiled_read_roof(double working_set_bytes);
double profiled_dot_roof();

}  // namespace deepinfer
