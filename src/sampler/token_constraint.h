// TokenConstraint: a form that the output must have, token by token (a grammar's matcher).
//
// One object serves one sub-sequence. Verification of drafts uses it like this: mask() for the
// first row; for each draft accept() it and take the next row's mask(); rollback() all of them;
// after the step commit() what stands.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace deepinfer {

/// Used by one thread at a time. Heeds the WorkBudget of that thread: once it is spent, the form
/// allows nothing any more.
class TokenConstraint {
  public:
    virtual ~TokenConstraint() = default;
    /// Bits of the tokens allowed next, (vocab + 31) / 32 words, given all accepted ones: bit v %
    /// 32 of word v / 32. All zero: nothing is allowed (the sequence ends with `empty_mask`).
    virtual std::vector<uint32_t> mask() = 0;
    /// Takes `token` as the next one. False, with the state unchanged: the form does not allow it
    /// (a draft that is wrong by form; a committed token never is).
    virtual bool accept(int32_t token) = 0;
    /// Takes a token that the last mask allowed and that stands. The work may be left for later:
    /// whoever asks next pays for it.
    virtual void commit(int32_t token) { DI_CHECK(accept(token)); }
    /// Undoes the last `count` successful accept() calls, count >= 0. Reaches back at least
    /// kMaxRollback tokens.
    virtual void rollback(int count) = 0;
    /// Whether the output may end after the accepted tokens. A stop string counts only then.
    virtual bool complete() { return true; }

    static constexpr int kMaxRollback = 64;
};

}  // namespace deepinfer
