// Structured log: one JSON object a line, written by a thread of its own so that no request waits
// for a disk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "deepinfer/status.h"

namespace deepinfer::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// debug, info, warning, error; kInvalidArgument for another word.
Result<LogLevel> log_level_from_name(std::string_view name);

/// Members of one line, as JSON. Texts are escaped; bytes that are no UTF-8 become U+FFFD.
class LogFields {
  public:
    LogFields& text(std::string_view name, std::string_view value);
    LogFields& integer(std::string_view name, int64_t value);
    LogFields& number(std::string_view name, double value);
    const std::string& str() const { return body_; }

  private:
    std::string body_;  // each member begins with a comma
};

/// Any thread may call it. Holds at most kMaxPending bytes of unwritten lines; what comes beyond is
/// dropped and counted.
class Log {
  public:
    static constexpr size_t kMaxPending = 4 << 20;

    /// "" is standard error. kUnavailable: the file cannot be opened for appending.
    static Result<std::unique_ptr<Log>> open(const std::string& path, LogLevel level);
    ~Log();
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    void write(LogLevel level, std::string_view event, const LogFields& fields = {});
    void set_level(LogLevel level) { level_ = level; }
    LogLevel level() const { return level_; }
    int64_t dropped() const { return dropped_; }
    /// Opens the file again (after a rotation); standard error stays.
    void reopen();

  private:
    Log(int fd, std::string path, LogLevel level);
    void run();

    std::string path_;
    std::atomic<LogLevel> level_;
    std::atomic<int64_t> dropped_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::string pending_;
    int fd_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace deepinfer::server
