#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"
#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;
using testing::slurp;
using testing::spill;
using testing::TempDir;

std::span<const uint8_t> as_bytes(const std::string& s) {
    return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

std::string with_header(const std::string& header, size_t data_bytes) {
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 255u);
    return out + header + std::string(data_bytes, '\0');
}

Result<std::vector<SafetensorsEntry>> parse(const std::string& file) {
    return parse_safetensors(as_bytes(file), "shard");
}

/// Opens the file in a process that may map 256 MB at most: a loader that allocates by a bad number
/// dies. AddressSanitizer reserves more than that for itself, so the limit is left out there.
bool opens_within_256_mb(const std::string& path) {
    const pid_t child = ::fork();
    if (child == 0) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        const rlimit limit{256u << 20, 256u << 20};
        if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(3);
#endif
        Result<MmapFile> file = MmapFile::open(path);
        if (!file.ok()) ::_exit(2);
        ::_exit(parse_safetensors(file->bytes(), path).ok() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "the reader died by signal " << WTERMSIG(status);
    EXPECT_LE(WEXITSTATUS(status), 1);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Field case C-004.
TEST(Safetensors, HostileHeadersAreRefusedBeforeTheirNumbersAreUsed) {
    const auto cases =
        nlohmann::ordered_json::parse(slurp(testing::data_path("cases/checkpoint.json")));
    TempDir dir;
    int rows = 0;
    for (const auto& c : cases) {
        if (c["id"] != "C-004") continue;
        for (const auto& row : c["rows"]) {
            SCOPED_TRACE(row.dump());
            const auto& in = row["in"];
            std::string file;
            if (in.contains("raw_bytes")) {
                file = std::string(4, '\xff');
            } else {
                const std::string header = in["header"].dump();
                const size_t data = in["data_bytes"];
                file = with_header(header, data);
                uint64_t length = header.size();
                if (in["header_len"] == "file size - 7")
                    length = file.size() - 7;
                else if (in["header_len"].is_string())
                    length = std::stoull(in["header_len"].get<std::string>());
                for (size_t i = 0; i < 8; ++i)
                    file[i] = static_cast<char>((length >> (8 * i)) & 255u);
            }
            const std::string path = dir.str() + "/row.safetensors";
            spill(path, file);
            EXPECT_EQ(opens_within_256_mb(path), row["want"] == "loads");
            EXPECT_EQ(parse(file).ok(), row["want"] == "loads");
            ++rows;
        }
    }
    EXPECT_EQ(rows, 14);
}

struct Hostile {
    const char* header;
    size_t data_bytes;
    const char* message;  // part of the refusal; nullptr = accepted
};

TEST(Safetensors, EveryBrokenHeaderHasItsSentence) {
    const Hostile rows[] = {
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, nullptr},
        {R"({})", 0, nullptr},
        {R"({"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}   )",
         1,
         nullptr},
        {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
         1,
         nullptr},
        {R"([])", 0, "no JSON object"},
        {R"( {})", 0, "no JSON object"},
        {R"({)", 0, "not valid JSON"},
        {R"({}{})", 0, "not valid JSON"},
        {R"({"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}})", 8, "not valid JSON"},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
         8,
         "appears twice"},
        {R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
         8,
         "appears twice"},
        {R"({"w":7})", 0, "expected an object"},
        {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty name"},
        {R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8, "no dtype"},
        {R"({"w":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})", 8, "no dtype"},
        {R"({"w":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})", 8, "unknown dtype"},
        {R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8, "no shape"},
        {R"({"w":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "no shape"},
        {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "dimension -2"},
        {R"({"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "dimension 2.0"},
        {R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})",
         8,
         "dimension"},
        {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})",
         8,
         "overflows"},
        {R"({"w":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})",
         0,
         "overflows"},
        {R"({"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
         1,
         "9 dimensions"},
        {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "data_offsets missing"},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "expected 8 for F32 [2]"},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8, "unknown key"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
         6,
         "overlap"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
         10,
         "hole"},
        {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8, "hole"},
        {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5, "follow the last tensor"},
        {R"({"__metadata__":[]})", 0, "__metadata__ is no object"},
        {R"({"__metadata__":{"a":1}})", 0, "no string"},
        {R"({"w":[[[[[[[[[[]]]]]]]]]]})", 0, "nested deeper than 8"},
    };
    for (const Hostile& row : rows) {
        SCOPED_TRACE(row.header);
        const auto result = parse(with_header(row.header, row.data_bytes));
        EXPECT_EQ(result.ok(), row.message == nullptr) << result.status().message();
        if (row.message != nullptr) {
            EXPECT_EQ(result.status().code(), StatusCode::kInvalidFile);
            EXPECT_THAT(result.status().message(), HasSubstr(row.message));
        }
    }
}

TEST(Safetensors, EntriesComeInTheOrderOfTheirBytesWithFileOffsets) {
    const std::string header =
        R"({"b":{"dtype":"U8","shape":[2,2],"data_offsets":[3,7]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
    const auto entries = parse(with_header(header, 7));
    ASSERT_TRUE(entries.ok());
    ASSERT_EQ(entries->size(), 2u);
    EXPECT_EQ(entries.value()[0].name, "a");
    EXPECT_EQ(entries.value()[0].begin, 8 + header.size());
    EXPECT_EQ(entries.value()[1].name, "b");
    EXPECT_EQ(entries.value()[1].begin, 8 + header.size() + 3);
    EXPECT_EQ(entries.value()[1].end, 8 + header.size() + 7);
    EXPECT_EQ(entries.value()[1].shape, (std::vector<int64_t>{2, 2}));
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
    const std::string file =
        with_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
    ASSERT_TRUE(parse(file).ok());
    for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(parse(file.substr(0, n)).ok()) << n;
}

TEST(Safetensors, HeaderLengthHasALimitOfItsOwn) {
    // The file is long enough for the header it announces; 100 MB is the format's own limit.
    std::string file(8, '\0');
    const uint64_t length = kMaxSafetensorsHeaderBytes + 1;
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((length >> (8 * i)) & 255u);
    TempDir dir;
    const std::string path = dir.str() + "/big.safetensors";
    spill(path, file);
    std::filesystem::resize_file(path, 8 + length);  // sparse
    Result<MmapFile> mapped = MmapFile::open(path);
    ASSERT_TRUE(mapped.ok());
    const auto result = parse_safetensors(mapped->bytes(), path);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("at most 100000000"));
}

TEST(StrictJson, LimitsHold) {
    JsonLimits limits;
    limits.max_depth = 2;
    limits.max_nodes = 4;
    EXPECT_TRUE(parse_strict_json("[[1,2]]", limits, "t").ok());
    EXPECT_FALSE(parse_strict_json("[[[1]]]", limits, "t").ok());
    EXPECT_FALSE(parse_strict_json("[1,2,3,4]", limits, "t").ok());
    EXPECT_FALSE(parse_strict_json("", limits, "t").ok());
    EXPECT_FALSE(parse_strict_json("\"\xff\"", limits, "t").ok());
    EXPECT_FALSE(parse_strict_json("NaN", limits, "t").ok());
    const auto twice = parse_strict_json(R"({"a":1,"a":1})", limits, "t");
    EXPECT_THAT(twice.status().message(), HasSubstr("\"a\" appears twice"));
}

TEST(StrictJson, QuotedNamesAreSafeToPrint) {
    EXPECT_EQ(in_quotes("layers.0"), "\"layers.0\"");
    EXPECT_EQ(in_quotes(std::string("a\n\"\x01", 4)), "\"a\\x0a\\x22\\x01\"");
    EXPECT_LT(in_quotes(std::string(1000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace deepinfer
