#include "kvcache/cache_key.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "support/golden_file.h"

namespace deepinfer {
namespace {

using json = nlohmann::json;

std::string hex(const CacheKey& key) {
    std::string out;
    for (const uint8_t b : key) {
        out += "0123456789abcdef"[b >> 4];
        out += "0123456789abcdef"[b & 15];
    }
    return out;
}

CacheKey filled(const std::string& spec) {  // "11 x 32"
    CacheKey key;
    key.fill(static_cast<uint8_t>(std::stoi(spec.substr(0, 2), nullptr, 16)));
    return key;
}

TEST(CacheKey, RowsOfTheFieldCase) {
    std::ifstream file(testing::data_path("cases/scheduler_cache.json"));
    json base;
    int ran = 0;
    for (const json& c : json::parse(file)) {
        if (c["id"] != "C-061") continue;
        for (const json& row : c["rows"]) {
            if (!row["want"].contains("key_1")) continue;  // tiers and restarts
            SCOPED_TRACE(row.dump());
            if (base.is_null()) base = row["in"];
            json in = base;
            in.update(row["in"]);
            const CacheKey salt = salt_id(in["deploy_secret"].get<std::string>(),
                                          in["tenant"].get<std::string>(),
                                          in["cache_salt"].get<std::string>());
            const CacheKey root = root_key(filled(in["model_fp"]),
                                           filled(in["layout_fp"]),
                                           in["adapter_id"].get<std::string>(),
                                           salt);
            std::vector<int32_t> tokens(256);
            std::iota(tokens.begin(), tokens.end(), 0);
            std::vector<ImageSpan> images;
            if (in.contains("extra_0")) {  // "image digest 55 x 32, u32 offset 7"
                const std::string text = in["extra_0"];
                const int64_t offset = std::stoll(text.substr(text.rfind(' ') + 1));
                images.push_back({-offset, 100, filled(text.substr(13))});
            }
            std::vector<CacheKey> keys;
            extend_block_keys(root, tokens, 128, images, &keys);
            ASSERT_EQ(keys.size(), 2u);
            for (const auto& [name, value] : row["want"].items()) {
                const CacheKey& got = name == "root" ? root : name == "key_0" ? keys[0] : keys[1];
                EXPECT_EQ(hex(got), value) << name;
            }
            ++ran;
        }
    }
    EXPECT_EQ(ran, 7);
}

TEST(CacheKey, GrowsByFullBlocksOnly) {
    const CacheKey root{};
    std::vector<int32_t> tokens(300);
    std::iota(tokens.begin(), tokens.end(), 5);
    std::vector<CacheKey> whole, steps;
    extend_block_keys(root, tokens, 64, {}, &whole);
    EXPECT_EQ(whole.size(), 4u);
    for (size_t n = 0; n <= tokens.size(); n += 7) {
        extend_block_keys(root, std::span(tokens).first(n), 64, {}, &steps);
        EXPECT_EQ(steps.size(), n / 64);
    }
    extend_block_keys(root, tokens, 64, {}, &steps);
    EXPECT_EQ(steps, whole);
}

TEST(CacheKey, AnImageReachesExactlyTheBlocksItTouches) {
    const CacheKey root{};
    const std::vector<int32_t> tokens(256, 9);
    const auto keys_with = [&](int64_t begin, int64_t end, uint8_t colour) {
        ImageSpan image{begin, end, {}};
        image.digest.fill(colour);
        std::vector<CacheKey> keys;
        extend_block_keys(root, tokens, 64, std::span(&image, 1), &keys);
        return keys;
    };
    const auto a = keys_with(64, 128, 1), b = keys_with(64, 128, 2), c = keys_with(63, 128, 1);
    EXPECT_EQ(a[0], b[0]);
    EXPECT_NE(a[1], b[1]);
    EXPECT_NE(a[3], b[3]);  // a chain: everything behind differs too
    EXPECT_NE(a[0], c[0]);
    EXPECT_EQ(block_extra(0, 64, std::vector<ImageSpan>{{64, 128, {}}}).size(), 0u);
    EXPECT_EQ(
        block_extra(64, 128, std::vector<ImageSpan>{{0, 64, {}}, {100, 101, {}}, {127, 400, {}}})
            .size(),
        2 * 36u);
}

}  // namespace
}  // namespace deepinfer
