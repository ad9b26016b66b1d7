#include "vision/picture_message.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace deepinfer {
namespace {

constexpr int kMaxFds = 2;

}  // namespace

bool send_message(int socket, const void* data, size_t bytes, const int* fds, int num_fds) {
    const auto* at = static_cast<const char*>(data);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
    while (bytes > 0) {
        iovec part{const_cast<char*>(at), bytes};
        msghdr m{};
        m.msg_iov = &part;
        m.msg_iovlen = 1;
        if (num_fds > 0) {
            m.msg_control = control;
            m.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<size_t>(num_fds));
            cmsghdr* c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<size_t>(num_fds));
            std::memcpy(CMSG_DATA(c), fds, sizeof(int) * static_cast<size_t>(num_fds));
        }
        const ssize_t n = sendmsg(socket, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        num_fds = 0;  // sent with the first byte
        at += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool receive_message(int socket, void* data, size_t bytes, int* fds, int max_fds) {
    auto* at = static_cast<char*>(data);
    for (int i = 0; i < max_fds; ++i) fds[i] = -1;
    int have = 0;
    while (bytes > 0) {
        iovec part{at, bytes};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
        msghdr m{};
        m.msg_iov = &part;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        const ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
            const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; ++i) {
                int fd = -1;
                std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
                if (have < max_fds) {
                    fds[have++] = fd;
                } else {
                    close(fd);
                }
            }
        }
        at += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

}  // namespace deepinfer
