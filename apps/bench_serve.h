// bench serve: the server's own cost, measured with load over loopback.
#pragma once

#include "command.h"

namespace deepinfer::cli {

struct BenchServeOptions {
    std::string url;  ///< "": a server in this process
    std::string api_key;
    bool engine = false;  ///< in this process: the real engine instead of the stand-in
    int64_t streams = 64;
    int64_t requests = 256;
    int64_t tokens = 64;     ///< of each answer
    int64_t step_us = 2000;  ///< of the stand-in
    int64_t prompt_words = 8;
    std::string tag, note, append;
};
void add_bench_serve_options(CLI::App& app, BenchServeOptions& options);
int run_bench_serve(const BenchServeOptions& options, CommonOptions& common);

}  // namespace deepinfer::cli
