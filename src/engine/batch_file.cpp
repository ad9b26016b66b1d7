#include "engine/batch_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace deepinfer {

Result<std::unique_ptr<BatchFile>> BatchFile::open(const std::string& path,
                                                   const std::vector<std::string>& id_members) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0) {
        return Status(StatusCode::kInvalidFile,
                      path + ": cannot be opened: " + std::strerror(errno));
    }
    std::unique_ptr<BatchFile> file(new BatchFile(fd, path));
    struct stat st {};
    if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return Status(StatusCode::kInvalidFile,
                      path + " is no regular file; answers are read back to go on after a crash");
    }
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return Status(StatusCode::kUnavailable, path + ": another run is writing it");
    }
    DI_RETURN_IF_ERROR(file->load(id_members));
    return file;
}

BatchFile::~BatchFile() {
    ::close(fd_);
}

Status BatchFile::load(const std::vector<std::string>& id_members) {
    constexpr size_t kPiece = 1 << 20;
    std::string text;
    std::vector<char> piece(kPiece);
    int64_t line_number = 0;
    off_t whole = 0;  // bytes in whole lines
    for (;;) {
        const ssize_t n = ::read(fd_, piece.data(), piece.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return Status(StatusCode::kInvalidFile,
                          path_ + ": read failed: " + std::strerror(errno));
        }
        if (n == 0) break;
        text.append(piece.data(), static_cast<size_t>(n));
        size_t begin = 0;
        for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
            ++line_number;
            const nlohmann::json line =
                nlohmann::json::parse(text.begin() + static_cast<int64_t>(begin),
                                      text.begin() + static_cast<int64_t>(end),
                                      nullptr,
                                      false);
            std::string id;
            bool found = false;
            for (const std::string& member : id_members) {
                if (found || !line.is_object() || !line.contains(member)) continue;
                found = line[member].is_string();
                if (found) id = line[member].get<std::string>();
            }
            if (!found) {
                return Status(StatusCode::kInvalidFile,
                              path_ + ": line " + std::to_string(line_number) +
                                  " is no answer of a batch run; it was left alone");
            }
            const bool repeated = line.contains("line") && line["line"].is_number_integer();
            answers_.emplace(id, repeated ? line["line"].get<int64_t>() : 0);
            ++num_answers_;
        }
        whole += static_cast<off_t>(begin);
        text.erase(0, begin);
    }
    // Only a beginning of one of our own answers is cut off; other text is somebody's data.
    const std::string kAnswerStart = "{\"id\":";
    if (!text.empty() && text.compare(0, kAnswerStart.size(), kAnswerStart, 0, text.size()) != 0) {
        return Status(StatusCode::kInvalidFile,
                      path_ + " ends in text that is no answer of a batch run; it was left alone");
    }
    if (!text.empty() && ::ftruncate(fd_, whole) != 0) {
        return Status(StatusCode::kInvalidFile,
                      path_ + ": cannot cut off the torn last line: " + std::strerror(errno));
    }
    if (::lseek(fd_, whole, SEEK_SET) < 0) {
        return Status(StatusCode::kInvalidFile, path_ + ": cannot seek: " + std::strerror(errno));
    }
    return {};
}

Status BatchFile::append(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return Status(StatusCode::kResourceExhausted,
                          path_ + ": write failed: " + std::strerror(errno));
        }
        done += static_cast<size_t>(n);
    }
    if (::fdatasync(fd_) != 0) {
        return Status(StatusCode::kResourceExhausted,
                      path_ + ": sync failed: " + std::strerror(errno));
    }
    return {};
}

}  // namespace deepinfer
