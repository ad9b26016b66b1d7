// The sandbox of a picture worker.
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "vision/picture_worker.h"

namespace deepinfer {
namespace {

// Beyond what the process maps already: an 8192 x 8192 picture with 16-bit alpha is 512 MiB, its
// decoder's rows, the result and the resized picture come on top.
constexpr rlim_t kMoreMemory = rlim_t{2} << 30;

Status failed(const char* what) {
    return Status(StatusCode::kInternal, std::string("picture sandbox: ") + what);
}

rlim_t mapped_bytes() {
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    if (f == nullptr) return 0;
    unsigned long pages = 0;
    const int got = std::fscanf(f, "%lu", &pages);
    std::fclose(f);
    return got == 1 ? static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) : 0;
}

bool limit(int resource, rlim_t value) {
    const rlimit r{value, value};
    return setrlimit(static_cast<__rlimit_resource_t>(resource), &r) == 0;
}

}  // namespace

Status enter_picture_sandbox() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    // A sanitizer reserves terabytes of address space.
    const rlim_t mapped = mapped_bytes();
    if (mapped == 0 || !limit(RLIMIT_AS, mapped + kMoreMemory)) return failed("RLIMIT_AS");
#endif
    if (!limit(RLIMIT_CORE, 0)) return failed("RLIMIT_CORE");
    if (!limit(RLIMIT_FSIZE, 0)) return failed("RLIMIT_FSIZE");
    if (!limit(RLIMIT_NPROC, 0)) return failed("RLIMIT_NPROC");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed("PR_SET_NO_NEW_PRIVS");
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return failed("PR_SET_DUMPABLE");

    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (filter == nullptr) return failed("seccomp_init");
    bool ok = true;
    for (const int call : {SCMP_SYS(recvmsg),        SCMP_SYS(sendmsg),      SCMP_SYS(read),
                           SCMP_SYS(write),          SCMP_SYS(close),        SCMP_SYS(mmap),
                           SCMP_SYS(munmap),         SCMP_SYS(mremap),       SCMP_SYS(mprotect),
                           SCMP_SYS(madvise),        SCMP_SYS(brk),          SCMP_SYS(futex),
                           SCMP_SYS(fstat),          SCMP_SYS(newfstatat),   SCMP_SYS(getrandom),
                           SCMP_SYS(clock_gettime),  SCMP_SYS(sched_yield),  SCMP_SYS(getpid),
                           SCMP_SYS(gettid),         SCMP_SYS(tgkill),       SCMP_SYS(rt_sigaction),
                           SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(exit),
                           SCMP_SYS(exit_group)}) {
        ok = ok && seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0) == 0;
    }
    ok = ok && seccomp_load(filter) == 0;
    seccomp_release(filter);
    return ok ? Status() : failed("seccomp_load");
}

}  // namespace deepinfer
