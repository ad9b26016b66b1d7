#include "base/mmap_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

namespace deepinfer {
namespace {

std::string write_temp(const std::string& content) {
    const std::string path = ::testing::TempDir() + "mmap_file_test_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
                             std::to_string(content.size());
    std::ofstream(path, std::ios::binary) << content;
    return path;
}

TEST(MmapFile, ShowsTheBytes) {
    const std::string path = write_temp(std::string("ab\0cd", 5));
    Result<MmapFile> f = MmapFile::open(path);
    ASSERT_TRUE(f.ok()) << f.status().to_string();
    ASSERT_EQ(f->bytes().size(), 5u);
    EXPECT_EQ(f->bytes()[3], 'c');
    EXPECT_EQ(f->path(), path);
    std::remove(path.c_str());
    EXPECT_EQ(f->bytes()[4], 'd') << "a mapping outlives the name";
}

TEST(MmapFile, MovesItsMapping) {
    const std::string path = write_temp("xyz");
    MmapFile a = std::move(MmapFile::open(path)).value();
    MmapFile b = std::move(a);
    EXPECT_EQ(b.bytes().size(), 3u);
    EXPECT_EQ(a.bytes().size(), 0u);  // NOLINT(bugprone-use-after-move): moved-from files are empty
    std::remove(path.c_str());
}

TEST(MmapFile, AFifoIsRefusedAtOnce) {
    const std::string path = write_temp("fifo");
    std::remove(path.c_str());
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // no writer: a plain open would wait for ever
    EXPECT_EQ(MmapFile::open(path).status().code(), StatusCode::kInvalidFile);
    EXPECT_EQ(read_file(path, 100).status().code(), StatusCode::kInvalidFile);
    std::remove(path.c_str());
}

TEST(MmapFile, AnEmptyFileIsFine) {
    const std::string path = write_temp("");
    Result<MmapFile> f = MmapFile::open(path);
    ASSERT_TRUE(f.ok());
    EXPECT_TRUE(f->bytes().empty());
    std::remove(path.c_str());
}

TEST(MmapFile, RefusesWhatIsNoFile) {
    EXPECT_EQ(MmapFile::open("/nonexistent/file").status().code(), StatusCode::kNotFound);
    EXPECT_EQ(MmapFile::open(::testing::TempDir()).status().code(), StatusCode::kInvalidFile);
    EXPECT_NE(MmapFile::open("/nonexistent/file").status().message().find("/nonexistent/file"),
              std::string::npos);
}

TEST(ReadFile, RefusesMoreThanTheLimitBeforeReading) {
    const std::string path = write_temp("0123456789");
    EXPECT_EQ(read_file(path, 10).value(), "0123456789");
    const Result<std::string> r = read_file(path, 9);
    EXPECT_EQ(r.status().code(), StatusCode::kInvalidFile);
    EXPECT_NE(r.status().message().find("10 bytes, at most 9"), std::string::npos)
        << r.status().message();
    EXPECT_EQ(read_file(path + ".gone", 9).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(read_file(::testing::TempDir(), 9).status().code(), StatusCode::kInvalidFile);
    std::remove(path.c_str());
}

}  // namespace
}  // namespace deepinfer
