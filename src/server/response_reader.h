// The client's side of HTTP: an answer's bytes -> status and body. Incremental, no sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::server {

class ResponseReader {
  public:
    enum class State { kHead, kBody, kDone, kFault };

    /// Takes bytes of one answer; appends what belongs to the body to *body.
    void feed(std::string_view bytes, std::string* body);
    /// The connection has ended: the end of a body without a length.
    void end();
    State state() const { return state_; }
    int status() const { return status_; }
    bool keep_alive() const { return keep_alive_ && !until_close_; }

  private:
    void head(std::string* body);
    void chunked(std::string* body);

    State state_ = State::kHead;
    std::string pending_;
    int status_ = 0;
    int64_t left_ = 0;  // of the body, or of the chunk
    bool chunked_ = false;
    bool until_close_ = false;
    bool keep_alive_ = true;
    bool in_chunk_ = false;
};

}  // namespace deepinfer::server
