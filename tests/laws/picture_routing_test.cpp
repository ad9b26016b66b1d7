// C-077: rows of a picture are routed by their own bias and n-gram memory leaves them alone; what
// makes a row a picture's is its place in a span, not its id.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "judge/sequence.h"
#include "support/golden_file.h"
#include "support/scratch_dir.h"
#include "support/seeded_random.h"

namespace deepinfer {
namespace {

using testing::checkpoint_path;
using testing::ScratchDir;
using testing::SeededRandom;

constexpr int64_t kText = 20, kSpan = 4;  // start, one cell, newline, end
constexpr int32_t kMarkers = 2030;        // ids from here on are special

bool ends_with(const std::string& s, const std::string& end) {
    return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

/// A copy of nano whose F32 tensors `value(name, i)` overwrites where it is not NaN.
std::string rewritten(const ScratchDir& scratch,
                      const std::string& name,
                      const std::function<float(const std::string&, int64_t)>& value) {
    namespace fs = std::filesystem;
    const fs::path dir = scratch.path() / name;
    fs::copy(checkpoint_path("nano"), dir, fs::copy_options::recursive);
    for (const fs::directory_entry& file : fs::recursive_directory_iterator(dir)) {
        if (file.path().extension() != ".safetensors") continue;
        std::fstream io(file.path(), std::ios::in | std::ios::out | std::ios::binary);
        uint64_t size = 0;
        io.read(reinterpret_cast<char*>(&size), sizeof(size));
        std::string text(size, '\0');
        io.read(text.data(), static_cast<std::streamsize>(size));
        const nlohmann::json header = nlohmann::json::parse(text);
        for (const auto& [tensor, entry] : header.items()) {
            if (tensor == "__metadata__" || entry["dtype"] != "F32") continue;
            const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
            for (uint64_t at = begin; at < end; at += sizeof(float)) {
                const float v = value(tensor, static_cast<int64_t>((at - begin) / sizeof(float)));
                if (v != v) continue;
                io.seekp(static_cast<std::streamoff>(8 + size + at));
                io.write(reinterpret_cast<const char*>(&v), sizeof(v));
            }
        }
    }
    return dir.string();
}

/// +100 on three experts from `first`, −100 elsewhere: they win whatever the scores are.
float favour(int64_t expert, int64_t first) {
    return expert >= first && expert < first + 3 ? 100.0F : -100.0F;
}

struct Recorded {
    std::map<int, std::vector<std::vector<int32_t>>> experts;  ///< layer → row → ids
    std::map<int, std::vector<uint8_t>> before, after;         ///< layer → streams around Engram
    std::map<int, std::vector<std::vector<int32_t>>> hashes;   ///< layer → row → table rows
};

class Model {
  public:
    explicit Model(const std::string& dir, const std::string& backend = "cpu") {
        static const bool registered = [] {
            register_ref_backends();
            register_cpu_backend();
            return true;
        }();
        (void)registered;
        ModelLimits limits;
        limits.max_rows = limits.max_logit_rows = limits.max_positions = 128;
        limits.max_seqs = 1;
        limits.max_draft_seqs = 1;
        limits.block_tokens = 16;
        Result<LoadedModel> m = load_model(dir, backend, {}, limits);
        EXPECT_TRUE(m.ok()) << m.status().to_string();
        if (!m.ok()) std::abort();
        model_ = std::move(m).value();
        sequence_ = LoneSequence::create(*model_.model, 128).value();
        SeededRandom random("picture");
        image_.num_tokens = kSpan;
        for (int64_t i = 0; i < kSpan * config().hidden_size; ++i)
            image_.rows.push_back(to_bf16(static_cast<float>(random.below(200)) / 100.0F - 1.0F));
    }

    const ModelConfig& config() const { return model_.model->config(); }
    LoneSequence& sequence() { return *sequence_; }

    /// 20 tokens, a span (or its ids as text), 20 tokens.
    std::vector<int32_t> prompt() const {
        SeededRandom random("prompt");
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < 2 * kText + kSpan; ++i) {
            const bool inside = i >= kText && i < kText + kSpan;
            ids.push_back(inside ? static_cast<int32_t>(config().image_token_id)
                                 : static_cast<int32_t>(random.below(kMarkers)));
        }
        return ids;
    }
    void place_picture() { sequence_->set_images({{kText, &image_}}); }

    Recorded run(const std::vector<int32_t>& ids) {
        Recorded r;
        ForwardHooks hooks;
        std::vector<uint8_t> streams;
        hooks.observe = [&](const char* name, int layer, int64_t, const Tensor& value) {
            const std::string what = name;
            if (what == "x") streams = to_host(*model_.backend, value);
            if (what == "expert_ids") r.experts[layer] = rows_of(value);
            if (what == "engram_hash") {
                r.hashes[layer] = rows_of(value);
                r.before[layer] = streams;
            }
            if (what == "engram_out") r.after[layer] = to_host(*model_.backend, value);
        };
        sequence_->append(ids, {}, &hooks);
        return r;
    }

  private:
    std::vector<std::vector<int32_t>> rows_of(const Tensor& t) {
        const std::vector<uint8_t> bytes = to_host(*model_.backend, t);
        std::vector<int32_t> all(bytes.size() / sizeof(int32_t));
        std::memcpy(all.data(), bytes.data(), bytes.size());
        std::vector<std::vector<int32_t>> rows;
        const int64_t width = t.dim(1);
        for (int64_t i = 0; i < t.dim(0); ++i) {
            rows.emplace_back(all.begin() + i * width, all.begin() + (i + 1) * width);
            if (width == 3) std::sort(rows.back().begin(), rows.back().end());
        }
        return rows;
    }

    LoadedModel model_;
    std::unique_ptr<LoneSequence> sequence_;
    EncodedImage image_;
};

std::string with_biases(const ScratchDir& scratch) {
    return rewritten(scratch, "biases", [](const std::string& name, int64_t i) {
        if (ends_with(name, "ffn.gate.bias")) return favour(i, 0);
        if (ends_with(name, "ffn.gate.bias_vl")) return favour(i, 6);
        return std::numeric_limits<float>::quiet_NaN();
    });
}

TEST(PictureRouting, C077SpansTakeTheirOwnBiasInEveryLayer) {
    const ScratchDir scratch;
    const std::string dir = with_biases(scratch);
    for (const char* backend : {"exact", "ref", "cpu"}) {
        Model model(dir, backend);
        model.place_picture();
        const Recorded r = model.run(model.prompt());
        ASSERT_EQ(static_cast<int64_t>(r.experts.size()), model.config().num_hidden_layers);
        for (const auto& [layer, rows] : r.experts) {
            ASSERT_EQ(static_cast<int64_t>(rows.size()), 2 * kText + kSpan);
            for (int64_t t = 0; t < 2 * kText + kSpan; ++t) {
                const bool span = t >= kText && t < kText + kSpan;
                EXPECT_EQ(rows[static_cast<size_t>(t)],
                          (span ? std::vector<int32_t>{6, 7, 8} : std::vector<int32_t>{0, 1, 2}))
                    << backend << " layer " << layer << " row " << t;
            }
        }
    }
}

TEST(PictureRouting, C077NGramMemoryLeavesSpansAlone) {
    Model model(checkpoint_path("nano"));
    model.place_picture();
    const Recorded r = model.run(model.prompt());
    ASSERT_EQ(r.after.size(), 2u);
    for (const auto& [layer, after] : r.after) {
        const std::vector<uint8_t>& before = r.before.at(layer);
        ASSERT_EQ(before.size(), after.size());
        const size_t row = after.size() / (2 * kText + kSpan);
        for (size_t t = 0; t < 2 * kText + kSpan; ++t) {
            const bool span = t >= kText && t < kText + kSpan;
            const bool same = std::memcmp(&before[t * row], &after[t * row], row) == 0;
            EXPECT_EQ(same, span) << "layer " << layer << " row " << t;
        }
    }
    // Behind the span the look-back finds padding, as at the start of a sequence.
    Model fresh(checkpoint_path("nano"));
    std::vector<int32_t> tail = model.prompt();
    tail.erase(tail.begin(), tail.begin() + kText + kSpan);
    const Recorded alone = fresh.run(tail);
    for (const auto& [layer, rows] : r.hashes) {
        for (size_t t = 0; t < tail.size(); ++t) {
            EXPECT_EQ(rows[kText + kSpan + t], alone.hashes.at(layer)[t])
                << "layer " << layer << ", " << t << " behind the span";
        }
    }
}

TEST(PictureRouting, C077TheIdAloneMakesNoPicture) {
    const ScratchDir scratch;
    Model model(with_biases(scratch));
    const Recorded r = model.run(model.prompt());  // the ids, but no span
    for (const auto& [layer, rows] : r.experts) {
        for (const auto& ids : rows) EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2})) << layer;
    }
    const auto& [layer, after] = *r.after.begin();
    EXPECT_FALSE(std::equal(after.begin(), after.end(), r.before.at(layer).begin()));
}

TEST(PictureRouting, C077DraftsAreText) {
    const ScratchDir scratch;
    const auto drafts = [&](const std::string& dir) {
        Model model(dir);
        model.place_picture();
        EXPECT_TRUE(model.sequence().drafting());
        model.run(model.prompt());
        // The anchor is the image's own id: still text.
        const DraftResult drafted =
            model.sequence().draft(static_cast<int32_t>(model.config().image_token_id));
        return to_host(model.sequence().model().backend(), drafted.tokens);
    };
    const auto only = [&](const char* dir, const char* what, float sign) {
        return rewritten(scratch, dir, [=](const std::string& name, int64_t i) {
            if (name.rfind("mtp.", 0) == 0 && ends_with(name, what))
                return favour(i, sign > 0 ? 0 : 4);
            return std::numeric_limits<float>::quiet_NaN();
        });
    };
    const auto plain = drafts(checkpoint_path("nano"));
    EXPECT_EQ(drafts(only("vl", "ffn.gate.bias_vl", 1)), plain);
    // … while the other bias does decide: the comparison could fail.
    EXPECT_TRUE(drafts(only("a", "ffn.gate.bias", 1)) != plain ||
                drafts(only("b", "ffn.gate.bias", -1)) != plain);
}

}  // namespace
}  // namespace deepinfer
