#include "base/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace deepinfer {
namespace {

struct Fd {
    int fd;
    ~Fd() {
        if (fd >= 0) ::close(fd);
    }
};

}  // namespace

MmapFile::~MmapFile() {
    if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

MmapFile::MmapFile(MmapFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MmapFile& MmapFile::operator=(MmapFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(path_, other.path_);
    return *this;
}

// O_NONBLOCK: opening a FIFO without a writer would wait for ever before fstat can refuse it.
Result<MmapFile> MmapFile::open(const std::string& path) {
    Fd f{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f.fd < 0)
        return Status(StatusCode::kNotFound, "cannot open " + path + ": " + std::strerror(errno));
    struct stat st {};
    if (::fstat(f.fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return Status(StatusCode::kInvalidFile, path + " is not a regular file");
    }
    MmapFile out;
    out.path_ = path;
    out.size_ = static_cast<size_t>(st.st_size);
    if (out.size_ > 0) {
        void* p = ::mmap(nullptr, out.size_, PROT_READ, MAP_PRIVATE, f.fd, 0);
        if (p == MAP_FAILED) {
            out.size_ = 0;
            return Status(StatusCode::kResourceExhausted,
                          "cannot map " + path + ": " + std::strerror(errno));
        }
        out.data_ = static_cast<const uint8_t*>(p);
    }
    return out;
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
    Fd f{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f.fd < 0)
        return Status(StatusCode::kNotFound, "cannot open " + path + ": " + std::strerror(errno));
    struct stat st {};
    if (::fstat(f.fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return Status(StatusCode::kInvalidFile, path + " is not a regular file");
    }
    if (static_cast<size_t>(st.st_size) > max_bytes) {
        return Status(StatusCode::kInvalidFile,
                      path + " has " + std::to_string(st.st_size) + " bytes, at most " +
                          std::to_string(max_bytes) + " are expected");
    }
    std::string out(static_cast<size_t>(st.st_size), '\0');
    size_t got = 0;
    while (got < out.size()) {
        const ssize_t n = ::read(f.fd, out.data() + got, out.size() - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return Status(StatusCode::kInvalidFile, "cannot read " + path + " to its end");
        got += static_cast<size_t>(n);
    }
    return out;
}

}  // namespace deepinfer
