// DI_CHECK: a broken contract of ours stops the process and prints both sides.
// Outside input never goes through these (see deepinfer/status.h). On in release too; inner loops
// use DI_DCHECK, which is on in debug and sanitizer builds only.
#pragma once

#include <sstream>
#include <string>

namespace deepinfer::internal {

[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* what,
                               const std::string& detail);

template <typename A, typename B>
[[noreturn]] void check_op_failed(
    const char* file, int line, const char* what, const A& a, const B& b) {
    std::ostringstream s;
    s << a << " against " << b;
    check_failed(file, line, what, s.str());
}

}  // namespace deepinfer::internal

#define DI_CHECK(cond)                                                                   \
    do {                                                                                 \
        if (!(cond)) ::deepinfer::internal::check_failed(__FILE__, __LINE__, #cond, ""); \
    } while (false)

#define DI_CHECK_MSG(cond, detail)                                                           \
    do {                                                                                     \
        if (!(cond)) ::deepinfer::internal::check_failed(__FILE__, __LINE__, #cond, detail); \
    } while (false)

#define DI_CHECK_OP_(a, op, b)                                        \
    do {                                                              \
        const auto di_a_ = (a);                                       \
        const auto di_b_ = (b);                                       \
        if (!(di_a_ op di_b_))                                        \
            ::deepinfer::internal::check_op_failed(                   \
                __FILE__, __LINE__, #a " " #op " " #b, di_a_, di_b_); \
    } while (false)

#define DI_CHECK_EQ(a, b) DI_CHECK_OP_(a, ==, b)
#define DI_CHECK_LE(a, b) DI_CHECK_OP_(a, <=, b)
#define DI_CHECK_LT(a, b) DI_CHECK_OP_(a, <, b)
#define DI_CHECK_GE(a, b) DI_CHECK_OP_(a, >=, b)

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
#define DI_DCHECK(cond) ((void)0)
#else
#define DI_DCHECK(cond) DI_CHECK(cond)
#endif
