#include "server/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "recipe/json_value.h"
#include "recipe/utf8_stream.h"

namespace deepinfer::server {
namespace {

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

std::string timestamp() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() %
        1000;
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char text[40];
    const size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text + n, sizeof text - n, ".%03dZ", static_cast<int>(ms));
    return text;
}

}  // namespace

Result<LogLevel> log_level_from_name(std::string_view name) {
    for (int i = 0; i < 4; ++i)
        if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
    return Status(StatusCode::kInvalidArgument,
                  "log level '" + std::string(name) + "', expected debug, info, warning or error");
}

LogFields& LogFields::text(std::string_view name, std::string_view value) {
    body_ += ",\"" + std::string(name) + "\":" + recipe::json_quote(recipe::valid_utf8(value));
    return *this;
}
LogFields& LogFields::integer(std::string_view name, int64_t value) {
    body_ += ",\"" + std::string(name) + "\":" + std::to_string(value);
    return *this;
}
LogFields& LogFields::number(std::string_view name, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.3f", std::isfinite(value) ? value : 0.0);
    body_ += ",\"" + std::string(name) + "\":" + text;
    return *this;
}

Result<std::unique_ptr<Log>> Log::open(const std::string& path, LogLevel level) {
    int fd = STDERR_FILENO;
    if (!path.empty()) {
        fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
        if (fd < 0)
            return Status(StatusCode::kInvalidArgument,
                          "log file " + path + ": " + std::strerror(errno));
    }
    return std::unique_ptr<Log>(new Log(fd, path, level));
}

Log::Log(int fd, std::string path, LogLevel level)
    : path_(std::move(path)), level_(level), fd_(fd), thread_([this] { run(); }) {}

Log::~Log() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (!path_.empty()) ::close(fd_);
}

void Log::write(LogLevel level, std::string_view event, const LogFields& fields) {
    if (level < level_) return;
    std::string line = "{\"time\":\"" + timestamp() + "\",\"level\":\"" +
                       kLevelNames[static_cast<int>(level)] + "\",\"event\":\"" +
                       std::string(event) + "\"" + fields.str() + "}\n";
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (pending_.size() + line.size() > kMaxPending) {
            ++dropped_;
            return;
        }
        pending_ += line;
    }
    wake_.notify_one();
}

void Log::reopen() {
    if (path_.empty()) return;
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) return;  // the old file goes on
    const std::lock_guard<std::mutex> lock(mutex_);
    ::dup3(fd, fd_, O_CLOEXEC);  // the number that the writing thread uses stays the same
    ::close(fd);
}

void Log::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
        if (pending_.empty()) return;
        std::string lines;
        lines.swap(pending_);
        const int fd = fd_;
        lock.unlock();
        for (size_t at = 0; at < lines.size();) {
            const ssize_t n = ::write(fd, lines.data() + at, lines.size() - at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;  // nowhere to complain
            at += static_cast<size_t>(n);
        }
        lock.lock();
    }
}

}  // namespace deepinfer::server
