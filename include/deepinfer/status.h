// Status and Result<T>: how the library reports what outside input or a limit did.
//
// A Status is a code and a sentence that says what was found, what was expected and where. Broken
// contracts between our own parts are not statuses: they abort through DI_CHECK (src/base/check.h).
//
//   Result<Tokenizer> t = Tokenizer::load(path);
//   if (!t.ok()) return t.status();
//   use(t.value());
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace deepinfer {

enum class StatusCode {
    kOk,
    kInvalidArgument,    ///< a request, option or configuration is wrong (HTTP 400, exit code 2)
    kInvalidFile,        ///< a checkpoint or input file is wrong (exit code 3)
    kNotFound,           ///< a named thing does not exist
    kUnimplemented,      ///< refused by name: this version does not do it
    kOutOfRange,         ///< a request exceeds a stated size (context length, pool)
    kResourceExhausted,  ///< memory or another budget is used up
    kQueueFull,          ///< try again later (HTTP 429)
    kCancelled,          ///< the caller aborted it
    kUnavailable,        ///< the device or a peer failed
    kInternal,           ///< a fault of ours that was caught in time
};

/// Name of a code as it appears in messages and JSON, for example "invalid_argument".
const char* status_code_name(StatusCode code);

/// Cheap to copy when ok. Never throws.
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const { return code_ == StatusCode::kOk; }
    StatusCode code() const { return code_; }
    const std::string& message() const { return message_; }
    /// "invalid_file: layers.3.attn… is [4096, 1280], expected …"
    std::string to_string() const;

  private:
    StatusCode code_ = StatusCode::kOk;
    std::string message_;
};

/// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
    Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

    bool ok() const { return value_.has_value(); }
    const Status& status() const { return status_; }
    T& value() & { return *value_; }
    const T& value() const& { return *value_; }
    T&& value() && { return std::move(*value_); }
    T* operator->() { return &*value_; }
    const T* operator->() const { return &*value_; }

  private:
    std::optional<T> value_;
    Status status_;
};

/// Returns the Status of `expr` from the enclosing function unless it is ok.
#define DI_RETURN_IF_ERROR(expr)                 \
    do {                                         \
        ::deepinfer::Status di_status_ = (expr); \
        if (!di_status_.ok()) return di_status_; \
    } while (false)

}  // namespace deepinfer
