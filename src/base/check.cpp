#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace deepinfer::internal {

void check_failed(const char* file, int line, const char* what, const std::string& detail) {
    std::fprintf(stderr,
                 "deepinfer: internal error at %s:%d: %s%s%s\n",
                 file,
                 line,
                 what,
                 detail.empty() ? "" : ": ",
                 detail.c_str());
    std::fflush(stderr);
    std::abort();
}

}  // namespace deepinfer::internal
