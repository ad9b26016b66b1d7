#include "engine/model_fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/golden_file.h"
#include "support/scratch_dir.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

/// A copy of the nano checkpoint that the test may spoil.
class Copy {
  public:
    explicit Copy(const std::string& name) : dir_(scratch_.path() / name) {
        fs::copy(testing::checkpoint_path("nano"), dir_, fs::copy_options::recursive);
    }
    CacheKey fingerprint() const {
        const Result<Checkpoint> c = Checkpoint::open(dir_.string());
        EXPECT_TRUE(c.ok()) << c.status().to_string();
        return model_fingerprint(c.value());
    }
    const fs::path& dir() const { return dir_; }

  private:
    testing::ScratchDir scratch_;
    fs::path dir_;
};

TEST(ModelFingerprint, TheDirectoryDoesNotCountTheContentsDo) {
    const Copy a("a"), b("b");
    const CacheKey same = a.fingerprint();
    EXPECT_EQ(b.fingerprint(), same);
    // The last byte of a shard belongs to some tensor's end.
    for (const fs::directory_entry& entry : fs::directory_iterator(b.dir())) {
        if (entry.path().extension() != ".safetensors") continue;
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(-1, std::ios::end);
        const char last = static_cast<char>(file.get());
        file.seekp(-1, std::ios::end);
        file.put(static_cast<char>(last ^ 1));
        break;
    }
    EXPECT_NE(b.fingerprint(), same);
}

}  // namespace
}  // namespace deepinfer
