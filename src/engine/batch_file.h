// The output file of a batch run: which answers it holds, and appending more of them safely.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

/// Holds a lock on the file for its life, so that two runs cannot mix their answers.
class BatchFile {
  public:
    /// Opens or creates `path`, cuts off a torn last line and notes which answers it holds: by id
    /// (the member "id", or one of `id_members`) and, for a repeated id, by "line". kInvalidFile:
    /// something that is no answer, or no regular file; kUnavailable: locked.
    static Result<std::unique_ptr<BatchFile>> open(const std::string& path,
                                                   const std::vector<std::string>& id_members);
    ~BatchFile();
    BatchFile(const BatchFile&) = delete;
    BatchFile& operator=(const BatchFile&) = delete;

    /// Whether there is an answer for this id. `line` 0: the id's first use in the input; else the
    /// number of the input line that uses it again.
    bool has_answer(const std::string& id, int64_t line) const {
        return answers_.count({id, line}) > 0;
    }
    int64_t num_answers() const { return num_answers_; }

    /// Appends whole lines with one write and waits until they are on the disk.
    Status append(const std::vector<std::string>& lines);

  private:
    BatchFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    Status load(const std::vector<std::string>& id_members);

    int fd_;
    std::string path_;
    std::set<std::pair<std::string, int64_t>> answers_;
    int64_t num_answers_ = 0;
};

}  // namespace deepinfer
