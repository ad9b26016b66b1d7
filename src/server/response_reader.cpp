#include "server/response_reader.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace deepinfer::server {
namespace {

constexpr size_t kMaxHead = 64 << 10;

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](char c) {
        return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    return out;
}

}  // namespace

void ResponseReader::feed(std::string_view bytes, std::string* body) {
    if (state_ == State::kDone || state_ == State::kFault) return;
    pending_.append(bytes);
    if (state_ == State::kHead) head(body);
    if (state_ != State::kBody) return;
    if (chunked_) return chunked(body);
    if (until_close_) {
        *body += pending_;
        pending_.clear();
        return;
    }
    const size_t n = std::min(pending_.size(), static_cast<size_t>(left_));
    body->append(pending_, 0, n);
    pending_.erase(0, n);
    left_ -= static_cast<int64_t>(n);
    if (left_ == 0) state_ = State::kDone;
}

void ResponseReader::end() {
    if (state_ == State::kBody && until_close_) {
        state_ = State::kDone;
    } else if (state_ != State::kDone) {
        state_ = State::kFault;
    }
}

void ResponseReader::head(std::string* body) {
    const size_t end = pending_.find("\r\n\r\n");
    if (end == std::string::npos) {
        if (pending_.size() > kMaxHead) state_ = State::kFault;
        return;
    }
    const std::string head = lower(std::string_view(pending_).substr(0, end + 2));
    pending_.erase(0, end + 4);
    const bool known = head.rfind("http/1.1 ", 0) == 0 || head.rfind("http/1.0 ", 0) == 0;
    if (!known || head.size() < 12) {
        state_ = State::kFault;
        return;
    }
    status_ = std::atoi(head.c_str() + 9);
    if (status_ >= 100 && status_ < 200) {  // an interim answer; the real one follows
        ResponseReader::head(body);
        return;
    }
    const auto field = [&head](const char* name) {
        const std::string key = std::string("\r\n") + name + ":";
        const size_t at = head.find(key);
        if (at == std::string::npos) return std::string();
        const size_t begin = head.find_first_not_of(" \t", at + key.size());
        return head.substr(begin, head.find("\r\n", begin) - begin);
    };
    keep_alive_ = field("connection") != "close" && head.rfind("http/1.1", 0) == 0;
    chunked_ = field("transfer-encoding") == "chunked";
    const std::string length = field("content-length");
    state_ = State::kBody;
    if (status_ == 204 || status_ == 304) {
        state_ = State::kDone;
    } else if (!chunked_ && !length.empty()) {
        left_ = std::atoll(length.c_str());
        if (left_ <= 0) state_ = State::kDone;
    } else if (!chunked_) {
        until_close_ = true;
    }
}

void ResponseReader::chunked(std::string* body) {
    size_t at = 0;
    while (state_ == State::kBody) {
        if (in_chunk_) {
            const size_t n = std::min(pending_.size() - at, static_cast<size_t>(left_));
            body->append(pending_, at, n);
            at += n;
            left_ -= static_cast<int64_t>(n);
            if (left_ > 0 || pending_.size() - at < 2) break;
            at += 2;  // the line break after the chunk
            in_chunk_ = false;
            continue;
        }
        const size_t line = pending_.find("\r\n", at);
        if (line == std::string::npos) break;
        char* end = nullptr;
        left_ = std::strtoll(pending_.c_str() + at, &end, 16);
        if (end == pending_.c_str() + at || left_ < 0) {
            state_ = State::kFault;
            return;
        }
        if (left_ == 0) {
            // No trailers are expected; the empty line ends the body.
            if (pending_.size() < line + 4) break;
            state_ = State::kDone;
            at = line + 4;
            break;
        }
        at = line + 2;
        in_chunk_ = true;
    }
    pending_.erase(0, at);
}

}  // namespace deepinfer::server
