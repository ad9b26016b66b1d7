// From the engine's thread to a connection's: the deltas of one HTTP request.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "deepinfer/request.h"
#include "server/task.h"

namespace deepinfer::server {

/// One writer (the engine's thread), one reader (an I/O thread). Deltas that nobody takes are
/// joined choice by choice, so a slow reader costs memory for its own tokens only.
class Inbox {
  public:
    struct Item {
        int choice = 0;
        Output output;
    };

    Inbox(int num_choices, Wake wake) : wake_(std::move(wake)), unwanted_(num_choices) {}

    /// Engine's thread. False: the reader wants no more of this choice.
    bool push(int choice, const Output& output);
    /// Engine's thread: the prompt is being worked at.
    void begin();

    /// Reader: moves everything out.
    std::deque<Item> take();
    bool begun() const { return begun_; }
    void refuse(int choice) { unwanted_[static_cast<size_t>(choice)] = true; }

    /// Any thread: the reader is to give up.
    void cancel() {
        cancelled_ = true;
        notify();
    }
    bool cancelled() const { return cancelled_; }

  private:
    /// From this many waiting deltas on, a new one is joined to its choice's last one.
    static constexpr size_t kMaxItems = 32;

    void notify() {
        if (!woken_.exchange(true)) wake_();
    }

    const Wake wake_;
    std::vector<std::atomic<bool>> unwanted_;
    std::atomic<bool> woken_{false};
    std::atomic<bool> begun_{false};
    std::atomic<bool> cancelled_{false};
    std::mutex mutex_;
    std::deque<Item> items_;
};

}  // namespace deepinfer::server
