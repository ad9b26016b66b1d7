#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/checkpoint_test_files.h"
#include "deepinfer/checkpoint.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::checkpoint_path;
using testing::copy_checkpoint;
using ::testing::HasSubstr;
using testing::mutate_tensors;
using testing::RawTensor;
using testing::read_json;
using testing::spill;
using testing::TempDir;

namespace fs = std::filesystem;

json inspect(const std::string& dir) {
    const auto r = inspect_checkpoint(dir);
    EXPECT_TRUE(r.ok()) << r.status().message();
    return r.ok() ? json::parse(r.value()) : json();
}

TEST(Inspect, NanoLoadsAndShowsItsRoles) {
    const json report = inspect(checkpoint_path("nano"));
    EXPECT_EQ(report["loadable"], true);
    EXPECT_EQ(report["refused"], json::array());
    EXPECT_EQ(report["geometry"]["hidden_size"], 256);
    const json& layers = report["layers"];
    ASSERT_EQ(layers.size(), 15u);
    const std::vector<std::string> modes = {"window",
                                            "window",
                                            "full",
                                            "reuse",
                                            "full",
                                            "reuse",
                                            "full",
                                            "reuse",
                                            "reindex",
                                            "reuse",
                                            "reindex",
                                            "reuse",
                                            "draft",
                                            "draft",
                                            "draft"};
    const std::vector<int> kv = {-1, -1, 2, 2, 4, 4, 6, 6, 6, 6, 6, 6, -1, -1, -1};
    const std::vector<int> index = {-1, -1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, -1, -1, -1};
    for (size_t l = 0; l < 15; ++l) {
        SCOPED_TRACE(l);
        EXPECT_EQ(layers[l]["mode"], modes[l]);
        EXPECT_EQ(layers[l]["kv_source"], kv[l] < 0 ? json(nullptr) : json(kv[l]));
        EXPECT_EQ(layers[l]["index_source"], index[l] < 0 ? json(nullptr) : json(index[l]));
        EXPECT_EQ(layers[l]["candidate"],
                  l == 6              ? json("source")
                  : l == 8 || l == 10 ? json("filtered")
                                      : json(nullptr));
        EXPECT_EQ(layers[l]["engram_table"], l == 1 ? json(0) : l == 4 ? json(1) : json(nullptr));
        EXPECT_EQ(layers[l]["dspark_tap"], l >= 9 && l <= 11);
        EXPECT_EQ(layers[l]["half"], l >= 12 ? json(nullptr) : json(l < 6 ? "encoder" : "decoder"));
    }
    EXPECT_EQ(layers[12]["name"], "mtp.0");
    EXPECT_EQ(report["num_tensors"], 1535);
    EXPECT_EQ(report["tensors"].size(), 1535u);
    EXPECT_NEAR(report["parameters"]["total"].get<double>() / 1e6, 15.1, 0.05);
    uint64_t listed = 0, by_kind = 0;
    for (const json& t : report["tensors"]) listed += t["bytes"].get<uint64_t>();
    for (const auto& item : report["bytes_by_kind"].items())
        by_kind += item.value().get<uint64_t>();
    EXPECT_EQ(listed, by_kind);
    EXPECT_EQ(listed,
              read_json(checkpoint_path("nano") +
                        "/model.safetensors.index.json")["metadata"]["total_size"]);
    // Sources 2 and 4 with an entry for two tokens, source 6 with one for each: 2 · (36 + 17)
    // bytes.
    EXPECT_EQ(report["cache"]["global_bytes_per_token"], 106);
    EXPECT_EQ(report["cache"]["window_bytes_per_sequence"], 15 * 16 * 66);
    EXPECT_GT(report["parameters"]["draft"], 0);
}

TEST(Inspect, ReleasedGeometryCosts890BytesAToken) {
    TempDir dir;
    spill(dir.path() / "config.json",
          testing::slurp(testing::data_path("checkpoints/release_config.json")));
    const json report = inspect(dir.str());
    EXPECT_EQ(report["loadable"], false);  // there are no shards
    ASSERT_EQ(report["refused"].size(), 1u);
    EXPECT_EQ(report["cache"]["global_bytes_per_token"], 890);
    EXPECT_EQ(report["cache"]["window_bytes_per_sequence"], 43 * 67584);
    EXPECT_EQ(report["layers"][20]["candidate"], "source");
    EXPECT_EQ(report["layers"][20]["half"], "decoder");
    EXPECT_EQ(report["layers"][36]["mode"], "reindex");
    EXPECT_FALSE(report.contains("tensors"));
}

TEST(Inspect, SaysWhatWouldBeRefusedAndShowsTheRest) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    mutate_tensors(dir.path(), [](RawTensor& t) {
        if (t.name == "norm.weight") t.name = "final_norm.weight";
        return t.name != "layers.5.ffn.experts.7.w2.weight";
    });
    json report = inspect(dir.str());
    EXPECT_EQ(report["loadable"], false);
    EXPECT_THAT(report["refused"].dump(),
                AllOf(HasSubstr("norm.weight is missing"),
                      HasSubstr("layers.5.ffn.experts.7.w2.weight is missing"),
                      HasSubstr("final_norm.weight is not expected")));
    EXPECT_EQ(report["bytes_by_kind"]["unexpected"], 512);
    EXPECT_EQ(report["layers"].size(), 15u);

    json config = read_json(dir.path() / "config.json");
    config["text_config"]["qk_norm"] = true;
    spill(dir.path() / "config.json", config.dump());
    report = inspect(dir.str());
    EXPECT_THAT(report["refused"].dump(), HasSubstr("qk_norm"));
    EXPECT_FALSE(report.contains("geometry"));
    EXPECT_EQ(inspect_checkpoint("/no/such/dir").status().code(), StatusCode::kNotFound);
}

TEST(Inspect, IgnoredLeftoversAreNamed) {
    TempDir dir;
    copy_checkpoint("nano", dir);
    mutate_tensors(dir.path(),
                   testing::keep_all,
                   {{"mtp.0.head.weight", "BF16", {2, 2}, std::string(8, '\0')}});
    const json report = inspect(dir.str());
    EXPECT_EQ(report["loadable"], true);
    EXPECT_EQ(report["ignored_tensors"], json::array({"mtp.0.head.weight"}));
}

TEST(Inspect, TextShowsGeometryRolesAndRefusals) {
    const auto report = inspect_checkpoint(checkpoint_path("demo"));
    ASSERT_TRUE(report.ok());
    const auto text = render_inspection(report.value(), InspectionText{});
    ASSERT_TRUE(text.ok());
    EXPECT_THAT(text.value(),
                AllOf(HasSubstr("loads: yes"),
                      HasSubstr("hidden_size"),
                      HasSubstr("reindex"),
                      HasSubstr("global_bytes_per_token"),
                      HasSubstr("7.8 M")));
    EXPECT_EQ(text.value().find("layers.0.attn.wq_a.weight"), std::string::npos);
    InspectionText with_tensors;
    with_tensors.list_tensors = true;
    EXPECT_THAT(render_inspection(report.value(), with_tensors).value(),
                HasSubstr("layers.0.attn.wq_a.weight"));

    TempDir empty;
    const auto broken = inspect_checkpoint(empty.str());
    ASSERT_TRUE(broken.ok());
    EXPECT_THAT(render_inspection(broken.value(), InspectionText{}).value(),
                AllOf(HasSubstr("loads: no"), HasSubstr("config.json")));
    for (const char* bad : {"", "{}", "[]", "7"}) {
        EXPECT_EQ(render_inspection(bad, InspectionText{}).status().code(),
                  StatusCode::kInvalidArgument)
            << bad;
    }
}

/// Sets environment variables for one test.
class ModelDir : public ::testing::Test {
  protected:
    void SetUp() override {
        for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
            const char* value = std::getenv(name);
            saved_.emplace_back(name, value == nullptr ? "" : value);
            ::unsetenv(name);
        }
        ::setenv("HOME", home_.str().c_str(), 1);
    }
    void TearDown() override {
        for (const auto& item : saved_) {
            if (item.second.empty())
                ::unsetenv(item.first.c_str());
            else
                ::setenv(item.first.c_str(), item.second.c_str(), 1);
        }
    }
    /// A cache entry of owner/name with one revision.
    fs::path make_entry(const fs::path& cache) {
        const fs::path entry = cache / "models--deepseek-ai--Tiny.v1";
        fs::create_directories(entry / "refs");
        fs::create_directories(entry / "snapshots" / "0123abcd");
        spill(entry / "refs" / "main", "0123abcd\n");
        return entry;
    }

    TempDir home_;
    std::vector<std::pair<std::string, std::string>> saved_;
};

TEST_F(ModelDir, FlagBeatsEnvironmentBeatsDemo) {
    TempDir a, b;
    EXPECT_EQ(resolve_model_dir(a.str(), b.str()).value(), a.str());
    EXPECT_EQ(resolve_model_dir("", b.str()).value(), b.str());
    const auto demo = resolve_model_dir("", "");
    ASSERT_TRUE(demo.ok()) << demo.status().message();
    EXPECT_THAT(demo.value(), HasSubstr("models/demo"));
    const auto bad = resolve_model_dir("/no/such/dir", b.str());
    ASSERT_FALSE(bad.ok());
    EXPECT_EQ(bad.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(bad.status().message(), HasSubstr("--model"));
    EXPECT_THAT(resolve_model_dir("", "/no/such/dir").status().message(),
                HasSubstr("DEEPINFER_HF_MODEL_DIR"));
}

TEST_F(ModelDir, HubIdIsFoundInTheLocalCache) {
    TempDir hub, hf_home, xdg;
    const std::string id = "deepseek-ai/Tiny.v1";
    const auto expect = [&](const fs::path& cache) {
        const auto r = resolve_model_dir(id, "");
        ASSERT_TRUE(r.ok()) << r.status().message();
        EXPECT_EQ(r.value(), (cache / "models--deepseek-ai--Tiny.v1/snapshots/0123abcd").string());
    };
    const fs::path standard = home_.path() / ".cache/huggingface/hub";
    make_entry(standard);
    expect(standard);
    ::setenv("XDG_CACHE_HOME", xdg.str().c_str(), 1);
    make_entry(xdg.path() / "huggingface/hub");
    expect(xdg.path() / "huggingface/hub");
    ::setenv("HF_HOME", hf_home.str().c_str(), 1);
    make_entry(hf_home.path() / "hub");
    expect(hf_home.path() / "hub");
    ::setenv("HF_HUB_CACHE", hub.str().c_str(), 1);
    make_entry(hub.path());
    expect(hub.path());
}

TEST_F(ModelDir, AbsentHubIdNamesTheCommandThatFetchesIt) {
    TempDir hub;
    ::setenv("HF_HUB_CACHE", hub.str().c_str(), 1);
    const std::string id = "deepseek-ai/Tiny.v1";
    const auto expect_absent = [&] {
        const auto r = resolve_model_dir(id, "");
        ASSERT_FALSE(r.ok());
        EXPECT_EQ(r.status().code(), StatusCode::kNotFound);
        EXPECT_THAT(r.status().message(), HasSubstr("hf download deepseek-ai/Tiny.v1"));
    };
    expect_absent();
    const fs::path entry = make_entry(hub.path());
    fs::remove(entry / "refs" / "main");
    expect_absent();
    spill(entry / "refs" / "main", "9999");
    expect_absent();
    for (const char* hostile : {"../../..", "", "a/b", ".hidden"}) {
        spill(entry / "refs" / "main", hostile);
        EXPECT_EQ(resolve_model_dir(id, "").status().code(), StatusCode::kInvalidFile) << hostile;
    }
}

TEST_F(ModelDir, OnlyPlainIdsAreLookedUp) {
    for (const char* odd :
         {"a/b/c", "../x", "/x", "x/", "a b/c", "a/..", "name", "a/.b", "a;b/c"}) {
        const auto r = resolve_model_dir(odd, "");
        ASSERT_FALSE(r.ok()) << odd;
        EXPECT_THAT(r.status().message(), HasSubstr("expected a model directory or a hub id"));
    }
}

}  // namespace
}  // namespace deepinfer
