// Puts load on a server: many streams at once from one thread, each answer looked at.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "deepinfer/http_client.h"
#include "server/response_reader.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;
using server::ResponseReader;

double ms_since(Clock::time_point t) {
    return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

class Load {
  public:
    explicit Load(const LoadOptions& options) : o_(options) {}
    ~Load() {
        for (Slot& slot : slots_) close(&slot);
        if (epoll_ >= 0) ::close(epoll_);
    }

    Result<LoadReport> run() {
        DI_RETURN_IF_ERROR(resolve());
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        slots_.resize(static_cast<size_t>(std::min(o_.streams, o_.requests)));
        const size_t n = static_cast<size_t>(o_.requests);
        report_.first_byte_ms.resize(n);
        report_.first_token_ms.resize(n);
        report_.total_ms.resize(n);
        const Clock::time_point begin = Clock::now();
        for (Slot& slot : slots_) begin_request(&slot);
        while (open_ > 0) {
            if (ms_since(begin) > static_cast<double>(o_.timeout_ms)) {
                for (Slot& slot : slots_)
                    if (slot.request >= 0) fault(&slot, "no end of the answer in time");
                break;
            }
            epoll_event events[64];
            const int count = epoll_wait(epoll_, events, 64, 200);
            for (int i = 0; i < count; ++i) ready(&slots_[events[i].data.u64], events[i].events);
        }
        report_.seconds = ms_since(begin) / 1000;
        if (report_.ok == 0 && report_.failed > 0)
            return Status(StatusCode::kUnavailable, report_.faults.front());
        return std::move(report_);
    }

  private:
    struct Slot {
        int fd = -1;
        int64_t request = -1;
        std::string out;
        size_t sent = 0;
        ResponseReader reader;
        EventReader events;
        std::string body;
        int64_t num_events = 0;
        Clock::time_point begun;
    };

    Status resolve() {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        const int fault =
            getaddrinfo(o_.url.host.c_str(), std::to_string(o_.url.port).c_str(), &hints, &found);
        if (fault != 0) return {StatusCode::kUnavailable, o_.url.host + ": " + gai_strerror(fault)};
        std::memcpy(&address_, found->ai_addr, found->ai_addrlen);
        address_size_ = found->ai_addrlen;
        freeaddrinfo(found);
        return {};
    }

    void begin_request(Slot* slot) {
        if (next_ >= o_.requests) return close(slot);
        slot->request = next_++;
        slot->reader = ResponseReader();
        slot->events = EventReader();
        slot->body.clear();
        slot->num_events = 0;
        slot->sent = 0;
        const std::string& body = o_.bodies[static_cast<size_t>(slot->request) % o_.bodies.size()];
        slot->out = "POST " + o_.url.path + o_.path + " HTTP/1.1\r\nhost: " + o_.url.host + ":" +
                    std::to_string(o_.url.port) + "\r\ncontent-type: application/json\r\n" +
                    "content-length: " + std::to_string(body.size()) + "\r\n";
        for (const auto& [name, value] : o_.fields) slot->out += name + ": " + value + "\r\n";
        slot->out += (o_.keep_alive ? "\r\n" : "connection: close\r\n\r\n") + body;
        slot->begun = Clock::now();
        ++open_;
        if (slot->fd < 0 && !connect(slot)) {
            next_ = o_.requests;  // no sense in going on
            return fault(slot, "cannot connect");
        }
        watch(slot, EPOLLIN | EPOLLOUT);
    }

    bool connect(Slot* slot) {
        slot->fd = ::socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (slot->fd < 0) return false;
        const int one = 1;
        setsockopt(slot->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        const int result =
            ::connect(slot->fd, reinterpret_cast<sockaddr*>(&address_), address_size_);
        if (result != 0 && errno != EINPROGRESS) return false;
        epoll_event event{};
        event.data.u64 = static_cast<uint64_t>(slot - slots_.data());
        epoll_ctl(epoll_, EPOLL_CTL_ADD, slot->fd, &event);
        return true;
    }

    void watch(Slot* slot, uint32_t what) {
        epoll_event event{};
        event.events = what;
        event.data.u64 = static_cast<uint64_t>(slot - slots_.data());
        epoll_ctl(epoll_, EPOLL_CTL_MOD, slot->fd, &event);
    }

    void close(Slot* slot) {
        if (slot->fd >= 0) ::close(slot->fd);
        slot->fd = -1;
    }

    void ready(Slot* slot, uint32_t what) {
        if (slot->request < 0) return close(slot);
        if ((what & EPOLLOUT) != 0 && slot->sent < slot->out.size()) {
            const ssize_t n = ::send(slot->fd,
                                     slot->out.data() + slot->sent,
                                     slot->out.size() - slot->sent,
                                     MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN) return fault(slot, "the connection broke");
            if (n > 0) slot->sent += static_cast<size_t>(n);
            if (slot->sent == slot->out.size()) watch(slot, EPOLLIN);
        }
        if ((what & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
        char buffer[32 << 10];
        const ssize_t n = ::recv(slot->fd, buffer, sizeof buffer, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            slot->reader.end();
        } else {
            receive(slot, {buffer, static_cast<size_t>(n)});
        }
        if (slot->reader.state() == ResponseReader::State::kFault)
            return fault(slot, "the answer was cut off");
        if (slot->reader.state() == ResponseReader::State::kDone) finish(slot);
    }

    void receive(Slot* slot, std::string_view bytes) {
        std::string piece;
        slot->reader.feed(bytes, &piece);
        report_.bytes += static_cast<int64_t>(bytes.size());
        if (piece.empty()) return;
        const size_t i = static_cast<size_t>(slot->request);
        if (report_.first_byte_ms[i] == 0) report_.first_byte_ms[i] = ms_since(slot->begun);
        const bool stream = piece.rfind("data:", 0) == 0 || piece.rfind("event:", 0) == 0 ||
                            piece.rfind(":", 0) == 0 || slot->num_events > 0;
        if (!stream) {
            slot->body += piece;
            return;
        }
        slot->events.feed(piece, [&](std::string_view, std::string_view data) {
            ++slot->num_events;
            ++report_.events;
            if (slot->num_events == 2) report_.first_token_ms[i] = ms_since(slot->begun);
            slot->body += data;
            slot->body += "\n";
            return true;
        });
    }

    void finish(Slot* slot) {
        const int64_t request = slot->request;
        report_.total_ms[static_cast<size_t>(request)] = ms_since(slot->begun);
        std::string what;
        if (o_.check) {
            what = o_.check(request, slot->reader.status(), slot->body);
        } else if (slot->reader.status() != 200) {
            what = "status " + std::to_string(slot->reader.status());
        }
        if (!what.empty()) return fault(slot, what);
        ++report_.ok;
        --open_;
        slot->request = -1;
        if (!slot->reader.keep_alive() || !o_.keep_alive) close(slot);
        begin_request(slot);
    }

    void fault(Slot* slot, const std::string& what) {
        ++report_.failed;
        if (report_.faults.size() < 10)
            report_.faults.push_back("request " + std::to_string(slot->request) + ": " + what);
        --open_;
        slot->request = -1;
        close(slot);
        begin_request(slot);
    }

    const LoadOptions& o_;
    LoadReport report_;
    std::vector<Slot> slots_;
    sockaddr_storage address_{};
    socklen_t address_size_ = 0;
    int epoll_ = -1;
    int64_t next_ = 0;
    int64_t open_ = 0;
};

}  // namespace

Result<LoadReport> run_load(const LoadOptions& options) {
    if (options.url.tls)
        return Status(StatusCode::kUnimplemented, "load over https is not in this version");
    if (options.bodies.empty() || options.requests < 1 || options.streams < 1)
        return Status(StatusCode::kInvalidArgument, "load needs a body, a request and a stream");
    return Load(options).run();
}

}  // namespace deepinfer
