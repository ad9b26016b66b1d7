// The output file of a batch run: which answers it holds, and appending more of them safely.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

/// Holds a lock on the file for its life, so that two runs cannot mix their answers.
class BatchFile {
  public:
    /// Opens or creates `path`, cuts off a torn last line and counts the answers per id (the member
    /// "id", or one of `id_members`). kInvalidFile: a whole line that is no answer; kUnavailable: locked.
    static Result<std::unique_ptr<BatchFile>> open(const std::string& path,
                                                   const std::vector<std::string>& id_members);
    ~BatchFile();
    BatchFile(const BatchFile&) = delete;
    BatchFile& operator=(const BatchFile&) = delete;

    /// Takes one earlier answer for this id, if there is one left.
    bool take_answer(const std::string& id);
    int64_t num_answers() const { return num_answers_; }

    /// Appends whole lines with one write and waits until they are on the disk.
    Status append(const std::vector<std::string>& lines);

  private:
    BatchFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    Status load(const std::vector<std::string>& id_members);

    int fd_;
    std::string path_;
    std::map<std::string, int64_t> answers_;
    int64_t num_answers_ = 0;
};

}  // namespace deepinfer
