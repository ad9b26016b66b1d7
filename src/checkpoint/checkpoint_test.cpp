#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "checkpoint/checkpoint_test_files.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::checkpoint_path;
using testing::copy_checkpoint;
using ::testing::HasSubstr;
using testing::keep_all;
using testing::kIndexFile;
using testing::mutate_tensors;
using ::testing::Not;
using testing::RawTensor;
using testing::read_json;
using testing::shard_names;
using testing::spill;
using testing::TempDir;

namespace fs = std::filesystem;

size_t stored_bytes(const std::vector<int64_t>& shape, const std::string& dtype) {
    size_t n = dtype == "F32" ? 4 : dtype == "BF16" ? 2 : 1;
    for (int64_t d : shape) n *= static_cast<size_t>(d);
    return n;
}

/// Applies the `in` object of a mutation row to a copy of nano.
void apply_row(const json& in, const fs::path& dir) {
    std::set<std::string> removed;
    for (const json& name : in.value("delete", json::array())) removed.insert(name);
    std::map<std::string, std::string> retyped;
    const json dtypes = in.value("set_dtype", json::object());
    for (const auto& item : dtypes.items()) retyped[item.key()] = item.value();
    std::vector<RawTensor> added;
    if (in.contains("add")) {
        const json& a = in["add"];
        RawTensor t{a["name"], a["dtype"], a["shape"], ""};
        t.bytes.assign(stored_bytes(t.shape, t.dtype), '\0');
        added.push_back(t);
    }
    mutate_tensors(
        dir,
        [&](RawTensor& t) {
            if (in.contains("rename") && t.name == in["rename"][0]) t.name = in["rename"][1];
            const auto it = retyped.find(t.name);
            if (it != retyped.end()) t.dtype = it->second;
            return removed.count(t.name) == 0;
        },
        added);
}

// Field cases C-001 and the mutation rows of C-002.
TEST(Checkpoint, MutatedTensorSetsAreRefusedByName) {
    int rows = 0;
    for (const auto& c : read_json(testing::data_path("cases/checkpoint.json"))) {
        if (c["id"] != "C-001" && c["id"] != "C-002") continue;
        for (const auto& row : c["rows"]) {
            const json& want = row["want"];
            if (!want.is_object() || !want.contains("load"))
                continue;  // decode rows: tensor/dtype tests
            SCOPED_TRACE(row.dump());
            TempDir dir;
            copy_checkpoint("nano", dir);
            apply_row(row["in"], dir.path());
            const auto r = Checkpoint::open(dir.str());
            EXPECT_EQ(r.ok(), want["load"] == "ok") << r.status().message();
            for (const json& name : want.value("names_in_error", json::array())) {
                EXPECT_EQ(r.status().code(), StatusCode::kInvalidFile);
                EXPECT_THAT(r.status().message(), HasSubstr(name.get<std::string>()));
            }
            if (want.value("same_weights", false)) {
                const auto plain = Checkpoint::open(checkpoint_path("nano"));
                ASSERT_TRUE(plain.ok() && r.ok());
                for (const StoredTensor& t : plain->tensors()) {
                    const StoredTensor* o = r->find(t.name);
                    ASSERT_NE(o, nullptr) << t.name;
                    ASSERT_EQ(o->view.to_string(), t.view.to_string()) << t.name;
                    const size_t n = static_cast<size_t>(t.view.bytes());
                    ASSERT_EQ(std::memcmp(o->view.data, t.view.data, n), 0) << t.name;
                }
            }
            ++rows;
        }
    }
    EXPECT_EQ(rows, 11);
}

TEST(Checkpoint, ViewsShowTheStoredBytes) {
    for (const char* name : {"nano", "nano512", "demo"}) {
        const auto r = Checkpoint::open(checkpoint_path(name));
        ASSERT_TRUE(r.ok()) << r.status().message();
        size_t seen = 0;
        for (const std::string& shard : shard_names(checkpoint_path(name))) {
            for (const auto& item : testing::read_golden(checkpoint_path(name) + "/" + shard)) {
                const StoredTensor* t = r->find(item.first);
                ASSERT_NE(t, nullptr) << item.first;
                EXPECT_EQ(t->shard, shard);
                EXPECT_EQ(t->dtype, item.second.dtype);
                ASSERT_EQ(static_cast<size_t>(t->view.bytes()), item.second.bytes.size())
                    << item.first;
                ASSERT_EQ(
                    std::memcmp(t->view.data, item.second.bytes.data(), item.second.bytes.size()),
                    0)
                    << item.first;
                ++seen;
            }
        }
        EXPECT_EQ(seen, r->tensors().size());
        EXPECT_EQ(r->find("no.such.tensor"), nullptr);
    }
}

TEST(Checkpoint, PackedFp4CountsValuesNotBytes) {
    const auto r = Checkpoint::open(checkpoint_path("nano"));
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->find("layers.4.ffn.experts.0.w1.weight")->view.to_string(), "fp4_e2m1[64, 256]");
    EXPECT_EQ(r->find("layers.4.ffn.experts.0.w1.scale")->view.to_string(), "ue8m0[64, 8]");
    EXPECT_EQ(r->find("layers.4.attn.wkv.weight")->view.to_string(), "fp8_e4m3[64, 256]");
    EXPECT_EQ(r->find("layers.4.attn.wkv.scale")->view.to_string(), "ue8m0[2, 8]");
    EXPECT_EQ(r->find("layers.4.attn.attn_sink")->view.to_string(), "f32[8]");
    EXPECT_EQ(r->find("image_start")->view.to_string(), "bf16[256]");
}

TEST(Checkpoint, WrongShapesSayFoundExpectedAndWhere) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    mutate_tensors(dir.path(), [](RawTensor& t) {
        if (t.name == "layers.3.attn.wq_b.weight") std::swap(t.shape[0], t.shape[1]);
        if (t.name == "norm.weight") t.shape = {16, 16};
        return true;
    });
    const auto r = Checkpoint::open(dir.str());
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(),
                AllOf(HasSubstr("layers.3.attn.wq_b.weight is [128, 512], expected [512, 128] "
                                "(num_attention_heads * head_dim, q_lora_rank), model-0000"),
                      HasSubstr("norm.weight is [16, 16], expected [256]")));
}

TEST(Checkpoint, MissingAndUnexpectedNamesStandInOneMessage) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    mutate_tensors(dir.path(), [](RawTensor& t) {
        if (t.name == "head.weight") t.name = "lm_head.weight";
        return t.name.rfind("layers.0.ffn.experts.", 0) != 0;
    });
    const auto r = Checkpoint::open(dir.str());
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(),
                AllOf(HasSubstr("73 tensors missing"),
                      HasSubstr("head.weight"),
                      HasSubstr("1 tensor not expected: lm_head.weight")));
    for (int e = 0; e < 12; ++e) {
        EXPECT_THAT(r.status().message(),
                    HasSubstr("layers.0.ffn.experts." + std::to_string(e) + ".w3.scale"));
    }
}

TEST(Checkpoint, PlainTensorsMayBeF32OrBf16) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    mutate_tensors(dir.path(), [](RawTensor& t) {
        if (t.dtype != "BF16") return true;
        std::string wide;
        for (size_t i = 0; i < t.bytes.size(); i += 2)
            wide += std::string(2, '\0') + t.bytes.substr(i, 2);
        t.dtype = "F32";
        t.bytes = wide;
        return true;
    });
    const auto r = Checkpoint::open(dir.str());
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_EQ(r->find("embed.weight")->view.to_string(), "f32[2048, 256]");
    TempDir other;
    copy_checkpoint("nano", other);
    mutate_tensors(other.path(), [](RawTensor& t) {
        if (t.name == "norm.weight") t.dtype = "F16";
        return true;
    });
    const auto refused = Checkpoint::open(other.str());
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(),
                HasSubstr("norm.weight has dtype F16, expected BF16 or F32"));
}

TEST(Checkpoint, NanScalesAreRefusedExceptInEngramTables) {
    struct Row {
        const char* name;
        bool refused;
    };
    const Row rows[] = {{"layers.3.attn.wq_a.scale", true},
                        {"layers.3.ffn.experts.11.w2.scale", true},
                        {"mtp.1.ffn.shared_experts.w1.scale", true},
                        {"layers.1.engram.wkv.scale", true},
                        {"layers.1.engram.embed.scale", false}};
    for (const Row& row : rows) {
        SCOPED_TRACE(row.name);
        TempDir dir;
        copy_checkpoint("nano", dir);
        int64_t columns = 0;
        size_t at = 0;
        mutate_tensors(dir.path(), [&](RawTensor& t) {
            if (t.name != row.name) return true;
            at = t.bytes.size() - 1;
            columns = t.shape[1];
            t.bytes[at] = '\xff';
            return true;
        });
        const auto r = Checkpoint::open(dir.str());
        EXPECT_EQ(r.ok(), !row.refused) << r.status().message();
        if (!row.refused) continue;
        const int64_t last = static_cast<int64_t>(at);
        EXPECT_THAT(r.status().message(),
                    HasSubstr(std::string(row.name) + " has the NaN scale 255 at [" +
                              std::to_string(last / columns) + ", " +
                              std::to_string(last % columns) + "]"));
    }
}

TEST(Checkpoint, WideElementsAreAlignedWhereverTheyStand) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    // Three stray bytes in front shift every tensor of the shard to an odd address.
    for (const std::string& shard : shard_names(dir.path())) {
        std::vector<RawTensor> tensors = testing::read_shard(dir.path() / shard);
        const bool first = shard.find("00001") != std::string::npos;
        if (first) tensors.insert(tensors.begin(), {"mtp.0.embed.weight", "U8", {3}, "abc"});
        testing::write_shard(dir.path() / shard, tensors);
        if (!first) continue;
        json index = read_json(dir.path() / kIndexFile);
        index["weight_map"]["mtp.0.embed.weight"] = shard;
        spill(dir.path() / kIndexFile, index.dump());
    }
    const auto r = Checkpoint::open(dir.str());
    const auto plain = Checkpoint::open(checkpoint_path("nano"));
    ASSERT_TRUE(r.ok()) << r.status().message();
    ASSERT_TRUE(plain.ok());
    for (const StoredTensor& t : r->tensors()) {
        const uintptr_t size = static_cast<uintptr_t>(std::max(1, dtype_bits(t.view.dtype) / 8));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(t.view.data) % size, 0u) << t.name;
        const StoredTensor* o = plain->find(t.name);
        ASSERT_EQ(std::memcmp(t.view.data, o->view.data, static_cast<size_t>(t.view.bytes())), 0)
            << t.name;
    }
    EXPECT_EQ(r->find("mtp.0.embed.weight"), nullptr);
}

TEST(Checkpoint, ViewsOutliveAMove) {
    auto r = Checkpoint::open(checkpoint_path("nano"));
    ASSERT_TRUE(r.ok());
    const void* before = r->find("norm.weight")->view.data;
    Checkpoint moved = std::move(r).value();
    EXPECT_EQ(moved.find("norm.weight")->view.data, before);
    EXPECT_EQ(moved.config().hidden_size, 256);
    EXPECT_EQ(moved.dir(), checkpoint_path("nano"));
}

struct FileFault {
    const char* what;
    std::function<void(const fs::path&)> change;
    const char* message;
};

void edit_index(const fs::path& dir, const std::function<void(json&)>& change) {
    json index = read_json(dir / kIndexFile);
    change(index);
    spill(dir / kIndexFile, index.dump());
}

TEST(Checkpoint, BrokenFilesAndIndexTricksAreRefused) {
    const std::string shard = "model-00002-of-00002.safetensors";
    const auto set_shard = [](const char* value) {
        return [value](const fs::path& d) {
            edit_index(d, [value](json& i) { i["weight_map"]["norm.weight"] = value; });
        };
    };
    const std::vector<FileFault> rows = {
        {"no config", [](const fs::path& d) { fs::remove(d / "config.json"); }, "config.json"},
        {"no index, no single file",
         [](const fs::path& d) { fs::remove(d / kIndexFile); },
         "has neither"},
        {"index is no JSON",
         [](const fs::path& d) { spill(d / kIndexFile, "{"); },
         "not valid JSON"},
        {"index without map",
         [](const fs::path& d) { spill(d / kIndexFile, "{}"); },
         "no weight_map"},
        {"map is a list",
         [](const fs::path& d) { spill(d / kIndexFile, "{\"weight_map\":[]}"); },
         "no weight_map"},
        {"shard is no name",
         [](const fs::path& d) {
             edit_index(d, [](json& i) { i["weight_map"]["norm.weight"] = 5; });
         },
         "expected a file name"},
        {"absolute shard", set_shard("/etc/passwd"), "plain file name"},
        {"climbing shard", set_shard("../x.safetensors"), "plain file name"},
        {"dots alone", set_shard(".."), "plain file name"},
        {"folder", set_shard("sub/x.safetensors"), "plain file name"},
        {"empty shard", set_shard(""), "plain file name"},
        {"hidden shard", set_shard(".x"), "plain file name"},
        {"control byte", set_shard("a\nb"), "plain file name"},
        {"shard that is not there", set_shard("absent.safetensors"), "absent.safetensors"},
        {"entry in the wrong shard",
         [shard](const fs::path& d) {
             edit_index(d, [shard](json& i) {
                 json& place = i["weight_map"]["norm.weight"];
                 place = place == shard ? "model-00001-of-00002.safetensors" : shard;
             });
         },
         "norm.weight"},
        {"entry nobody has",
         [shard](const fs::path& d) {
             edit_index(d, [shard](json& i) { i["weight_map"]["extra.weight"] = shard; });
         },
         "extra.weight"},
        {"tensor without entry",
         [](const fs::path& d) {
             edit_index(d, [](json& i) { i["weight_map"].erase("norm.weight"); });
         },
         "the index does not name it"},
        {"truncated shard",
         [shard](const fs::path& d) {
             const std::string s = testing::slurp(d / shard);
             spill(d / shard, s.substr(0, s.size() - 1));
         },
         "truncated"},
        {"empty shard file", [shard](const fs::path& d) { spill(d / shard, ""); }, shard.c_str()},
        {"shard is a folder",
         [shard](const fs::path& d) {
             fs::remove(d / shard);
             fs::create_directory(d / shard);
         },
         "not a regular file"},
        {"shard leads outside",
         [shard](const fs::path& d) {
             fs::remove(d / shard);
             fs::create_symlink(fs::path(checkpoint_path("nano")) / shard, d / shard);
         },
         "inside the model directory"},
        {"config leads outside",
         [](const fs::path& d) {
             fs::remove(d / "config.json");
             fs::create_symlink("/etc/hostname", d / "config.json");
         },
         "inside the model directory"},
        {"link in a circle",
         [shard](const fs::path& d) {
             fs::remove(d / shard);
             fs::create_symlink(d / shard, d / shard);
         },
         shard.c_str()},
    };
    for (const FileFault& row : rows) {
        SCOPED_TRACE(row.what);
        TempDir dir;
        copy_checkpoint("nano", dir);
        ASSERT_TRUE(Checkpoint::open(dir.str()).ok());
        row.change(dir.path());
        const auto r = Checkpoint::open(dir.str());
        ASSERT_FALSE(r.ok());
        EXPECT_TRUE(r.status().code() == StatusCode::kInvalidFile ||
                    r.status().code() == StatusCode::kNotFound);
        EXPECT_THAT(r.status().message(), HasSubstr(row.message));
        EXPECT_THAT(r.status().message(), Not(HasSubstr("\n")));
    }
    EXPECT_EQ(Checkpoint::open("/no/such/dir").status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, LinksIntoTheBlobsOfAHubCacheAreFollowed) {
    TempDir root;
    const fs::path blobs = root.path() / "blobs", snapshot = root.path() / "snapshots" / "abc";
    fs::create_directories(blobs);
    fs::create_directories(snapshot);
    int n = 0;
    for (const auto& file : fs::directory_iterator(checkpoint_path("nano"))) {
        const std::string blob = "blob" + std::to_string(n++);
        fs::copy_file(file.path(), blobs / blob);
        fs::create_symlink(fs::path("../..") / "blobs" / blob, snapshot / file.path().filename());
    }
    const auto r = Checkpoint::open(snapshot.string());
    EXPECT_TRUE(r.ok()) << r.status().message();
}

TEST(Checkpoint, OneFileNeedsNoIndex) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    std::vector<RawTensor> all;
    for (const std::string& shard : shard_names(dir.path())) {
        for (RawTensor& t : testing::read_shard(dir.path() / shard)) all.push_back(std::move(t));
        fs::remove(dir.path() / shard);
    }
    fs::remove(dir.path() / kIndexFile);
    testing::write_shard(dir.path() / "model.safetensors", all);
    const auto r = Checkpoint::open(dir.str());
    EXPECT_TRUE(r.ok()) << r.status().message();
}

TEST(Checkpoint, TextOnlyConfigRefusesPictureWeightsAndForgivesTheirBias) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    json config = read_json(dir.path() / "config.json");
    config.erase("vision_config");
    spill(dir.path() / "config.json", config.dump());
    const auto r = Checkpoint::open(dir.str());
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(),
                AllOf(HasSubstr("vision.norm.weight"), HasSubstr("image_start")));
    mutate_tensors(dir.path(), [](RawTensor& t) {
        const bool vision = t.name.rfind("vision.", 0) == 0 || t.name.rfind("aligner.", 0) == 0 ||
                            t.name.rfind("image_", 0) == 0;
        return !vision && t.name.find("bias_vl") == std::string::npos;
    });
    const auto text_only = Checkpoint::open(dir.str());
    ASSERT_TRUE(text_only.ok()) << text_only.status().message();
    EXPECT_EQ(text_only->find("layers.0.ffn.gate.bias_vl"), nullptr);
}

TEST(Checkpoint, AConfigCannotAskForMillionsOfTensors) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    json config = read_json(dir.path() / "config.json");
    config["text_config"]["num_hidden_layers"] = 500;
    config["text_config"]["n_routed_experts"] = 4096;
    config["text_config"]["compress_ratios"] = std::vector<int>(503, 0);
    for (const char* list : {"kv_source_layer_ids", "index_source_layer_ids"}) {
        config["text_config"][list] = json::array();
    }
    config["text_config"].erase("candidate_source_layer_id");
    spill(dir.path() / "config.json", config.dump());
    const auto r = Checkpoint::open(dir.str());
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(), HasSubstr("at most 2000000 are supported"));
}

/// A line such as "VmHWM:  1234 kB" of /proc/self/status, in MiB.
int64_t status_mib(const std::string& key) {
    std::ifstream f("/proc/self/status");
    std::string word;
    while (f >> word) {
        int64_t kib = 0;
        if (word == key + ":" && f >> kib) return kib / 1024;
    }
    return -1;
}

// Field case C-005, as far as loading goes: a table of 4 GiB of holes must be neither read nor
// pinned.
TEST(Checkpoint, EngramTablesAreMappedButNotRead) {
    constexpr int64_t kRows = 134217728, kStored = 3144, kWidth = 32;
    TempDir dir;
    copy_checkpoint("nano", dir);
    std::string weight, scale;
    mutate_tensors(dir.path(), [&](RawTensor& t) {
        if (t.name == "layers.1.engram.embed.weight") weight = t.bytes;
        if (t.name == "layers.1.engram.embed.scale") scale = t.bytes;
        return t.name.rfind("layers.1.engram.embed.", 0) != 0;
    });
    ASSERT_EQ(weight.size(), static_cast<size_t>(kStored * kWidth));
    const nlohmann::ordered_json header = {
        {"layers.1.engram.embed.weight",
         {{"dtype", "F8_E4M3"}, {"shape", {kRows, kWidth}}, {"data_offsets", {0, kRows * kWidth}}}},
        {"layers.1.engram.embed.scale",
         {{"dtype", "F8_E8M0"},
          {"shape", {kRows, 1}},
          {"data_offsets", {kRows * kWidth, kRows * (kWidth + 1)}}}}};
    const std::string start = testing::safetensors_bytes(header, weight);
    const fs::path path = dir.path() / "engram.safetensors";
    spill(path, start);
    const int64_t data = static_cast<int64_t>(start.size()) - kStored * kWidth;
    std::error_code error;
    fs::resize_file(path, static_cast<uintmax_t>(data + kRows * (kWidth + 1)), error);
    if (error) GTEST_SKIP() << "no room for a sparse file of 4 GiB: " << error.message();
    {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekp(data + kRows * kWidth);
        f.write(scale.data(), static_cast<std::streamsize>(scale.size()));
    }
    struct stat st {};
    ASSERT_EQ(::stat(path.c_str(), &st), 0);
    if (st.st_blocks * 512 > (64 << 20)) GTEST_SKIP() << "this file system has no sparse files";
    edit_index(dir.path(), [](json& i) {
        i["weight_map"]["layers.1.engram.embed.weight"] = "engram.safetensors";
        i["weight_map"]["layers.1.engram.embed.scale"] = "engram.safetensors";
    });
    json config = read_json(dir.path() / "config.json");
    config["text_config"]["engram_num_embeddings"] = {kRows, 3424};
    spill(dir.path() / "config.json", config.dump());

    const int64_t rss_before = status_mib("VmRSS"), peak_before = status_mib("VmHWM");
    const auto begin = std::chrono::steady_clock::now();
    const auto r = Checkpoint::open(dir.str());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(r.ok()) << r.status().message();
    const int64_t rss = status_mib("VmRSS") - rss_before, peak = status_mib("VmHWM") - peak_before;
    RecordProperty("load_seconds", std::to_string(seconds.count()));
    RecordProperty("rss_growth_mib", std::to_string(rss));
    EXPECT_LT(rss, 64);
    EXPECT_LT(peak, 64);

    const StoredTensor* table = r->find("layers.1.engram.embed.weight");
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->view.to_string(), "fp8_e4m3[134217728, 32]");
    EXPECT_EQ(std::memcmp(table->view.data, weight.data(), weight.size()), 0);
    EXPECT_EQ(
        std::memcmp(r->find("layers.1.engram.embed.scale")->view.data, scale.data(), scale.size()),
        0);
}

}  // namespace
}  // namespace deepinfer
