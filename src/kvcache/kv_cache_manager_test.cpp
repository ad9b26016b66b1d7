#include "kvcache/kv_cache_manager.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace deepinfer {
namespace {

uint64_t test_seed() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    uint64_t h = 1469598103934665603ull;
    for (const char c : std::string(info->test_suite_name()) + info->name()) {
        h = (h ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    }
    return h;
}

using Tokens = std::vector<int32_t>;

Tokens count_from(int32_t first, size_t n) {
    Tokens t(n);
    std::iota(t.begin(), t.end(), first);
    return t;
}

KvCacheOptions small(int32_t blocks, int32_t slots, EvictionPolicy policy = EvictionPolicy::kLru) {
    KvCacheOptions o;
    o.num_blocks = blocks;
    o.num_slots = slots;
    o.block_tokens = 4;
    o.eviction = policy;
    return o;
}

/// Starts a sequence on whatever is cached and runs it over all its tokens. Returns the hit length.
int64_t run_prompt(KvCacheManager& m,
                   uint64_t seq,
                   const Tokens& tokens,
                   const CacheKey& root = {}) {
    KvCacheManager::StartOptions start;
    start.root = root;
    start.prompt_keys = m.block_keys(root, tokens);
    start.prompt_tokens = static_cast<int64_t>(tokens.size());
    const PrefixMatch match = m.match_prefix(start.prompt_keys, tokens);
    EXPECT_TRUE(m.start(seq, start, match).ok());
    EXPECT_TRUE(m.allocate(seq, static_cast<int64_t>(tokens.size())).ok());
    m.commit(seq, tokens);
    return match.num_tokens();
}

TEST(KvCacheManager, ASecondPromptSharesTheFirstsBlocks) {
    KvCacheManager m(small(10, 2));
    EXPECT_EQ(run_prompt(m, 1, count_from(0, 18)), 0);
    EXPECT_EQ(run_prompt(m, 2, count_from(0, 14)), 12);
    EXPECT_EQ(m.stats().held_blocks, 6);  // 5, and one of its own for the partial block
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(m.block_table(1)[i], m.block_table(2)[i]);
    EXPECT_NE(m.block_table(1)[3], m.block_table(2)[3]);
    EXPECT_NE(m.slot(1), m.slot(2));
    EXPECT_EQ(m.stats().query_tokens, 32);
    EXPECT_EQ(m.stats().hit_tokens, 12);
    EXPECT_FALSE(m.all_free());
    m.free(1);
    m.free(2);
    EXPECT_TRUE(m.all_free());
    EXPECT_EQ(m.stats().cached_blocks, 4);
    EXPECT_EQ(run_prompt(m, 3, count_from(0, 16)), 16);  // a hit may be the whole prompt
}

TEST(KvCacheManager, AnotherRootFindsNothing) {
    KvCacheManager m(small(10, 4));
    CacheKey other{};
    other[31] = 1;
    run_prompt(m, 1, count_from(0, 16));
    EXPECT_EQ(run_prompt(m, 2, count_from(0, 16), other), 0);
    EXPECT_EQ(run_prompt(m, 3, count_from(0, 16)), 16);
}

TEST(KvCacheManager, AFailedAllocationChangesNothing) {
    KvCacheManager m(small(4, 2));
    run_prompt(m, 1, count_from(0, 8));
    ASSERT_TRUE(m.start(2, {}, {}).ok());
    const Status s = m.allocate(2, 12);
    EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(s.message(), "KV cache: 3 more blocks needed, 2 of 4 available");
    EXPECT_TRUE(m.block_table(2).empty());
    EXPECT_EQ(m.num_available_blocks(), 2);
    EXPECT_EQ(m.stats().failed_allocations, 1);
    EXPECT_TRUE(m.allocate(2, 8).ok());
    EXPECT_EQ(m.start(3, {}, {}).code(), StatusCode::kResourceExhausted);  // no slot
    m.check();
    m.free(2);
    m.free(1);
    EXPECT_TRUE(m.all_free());
}

TEST(KvCacheManager, TruncateGivesBackSurplusBlocks) {
    KvCacheManager m(small(8, 1));
    ASSERT_TRUE(m.start(1, {}, {}).ok());
    ASSERT_TRUE(m.allocate(1, 6 + 12).ok());  // room for two verify widths ahead
    EXPECT_EQ(m.block_table(1).size(), 5u);
    m.commit(1, count_from(0, 7));
    m.truncate(1, 7);
    EXPECT_EQ(m.block_table(1).size(), 2u);
    EXPECT_EQ(m.num_available_blocks(), 6);
    m.check();
}

TEST(KvCacheManager, AnEvictedMatchIsNotAdopted) {
    KvCacheManager m(small(3, 3));
    const Tokens prompt = count_from(0, 8);
    run_prompt(m, 1, prompt);
    m.free(1);
    KvCacheManager::StartOptions start;
    start.prompt_keys = m.block_keys({}, prompt);
    const PrefixMatch match = m.match_prefix(start.prompt_keys, prompt);
    EXPECT_EQ(match.num_tokens(), 8);
    run_prompt(m, 2, count_from(100, 12));  // takes every block
    const Status s = m.start(3, start, match);
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_FALSE(m.contains(3));
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt).num_tokens(), 0);
    m.free(2);
    EXPECT_TRUE(m.all_free());
}

TEST(KvCacheManager, LeavesGoBeforeWhatTheyContinue) {
    for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kAdaptive}) {
        KvCacheManager m(small(6, 2, policy));
        run_prompt(m, 1, count_from(0, 24));
        m.free(1);
        for (int32_t needed = 1; needed <= 6; ++needed) {
            ASSERT_TRUE(m.start(2, {}, {}).ok());
            ASSERT_TRUE(m.allocate(2, 4 * needed).ok());
            const Tokens prompt = count_from(0, 24);
            EXPECT_EQ(m.match_prefix(m.block_keys({}, prompt), prompt).num_tokens(),
                      24 - 4 * needed);
            m.free(2);
        }
    }
}

TEST(KvCacheManager, ApproximateBlocksAreFoundOnlyWhereAllowed) {
    KvCacheManager m(small(10, 3));
    const Tokens prompt = count_from(0, 8);
    KvCacheManager::StartOptions start;
    start.prompt_keys = m.block_keys({}, prompt);
    start.approximate = true;
    ASSERT_TRUE(m.start(1, start, {}).ok());
    ASSERT_TRUE(m.allocate(1, 8).ok());
    m.commit(1, prompt);
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt, false).num_tokens(), 8);
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt, true).num_tokens(), 0);
    start.approximate = false;
    ASSERT_TRUE(m.start(2, start, {}).ok());  // computes the same blocks exactly
    ASSERT_TRUE(m.allocate(2, 8).ok());
    m.commit(2, prompt);
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt, true).block_ids, m.block_table(2));
    m.check();
    m.free(1);
    m.free(2);
    EXPECT_TRUE(m.all_free());
    EXPECT_EQ(m.stats().cached_blocks, 2);
}

TEST(KvCacheManager, APromptBeingComputedIsAnnounced) {
    KvCacheManager m(small(10, 3));
    const Tokens prompt = count_from(0, 14);
    KvCacheManager::StartOptions start;
    start.prompt_keys = m.block_keys({}, prompt);
    ASSERT_TRUE(m.start(1, start, {}).ok());
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt).pending_tokens, 12);
    ASSERT_TRUE(m.allocate(1, 14).ok());
    m.commit(1, std::span(prompt).first(6));
    const PrefixMatch match = m.match_prefix(start.prompt_keys, prompt);
    EXPECT_EQ(match.num_tokens(), 4);
    EXPECT_EQ(match.pending_tokens, 8);
    m.free(1);
    EXPECT_EQ(m.match_prefix(start.prompt_keys, prompt).pending_tokens, 0);
    EXPECT_TRUE(m.all_free());
}

TEST(KvCacheManager, ClearForgetsPrefixesAndKeepsTheLiving) {
    KvCacheManager m(small(10, 3));
    const Tokens prompt = count_from(0, 14);
    run_prompt(m, 1, prompt);
    run_prompt(m, 2, prompt);
    m.free(2);
    m.clear_prefix_cache();
    m.check();
    EXPECT_EQ(m.match_prefix(m.block_keys({}, prompt), prompt).num_tokens(), 0);
    m.commit(1, prompt);
    m.free(1);
    EXPECT_TRUE(m.all_free());
    EXPECT_EQ(m.stats().free_blocks, 10);
}

TEST(KvCacheManager, CachingOffSharesNothing) {
    KvCacheOptions o = small(10, 2);
    o.prefix_caching = false;
    KvCacheManager m(o);
    run_prompt(m, 1, count_from(0, 16));
    EXPECT_EQ(run_prompt(m, 2, count_from(0, 16)), 0);
    m.free(1);
    m.free(2);
    EXPECT_EQ(m.stats().free_blocks, 10);
}

// C-052 as far as it is about keys: a block that touches a picture is found under that picture
// alone.
TEST(KvCacheManager, AnotherPictureIsAnotherPrefix) {
    struct Picture {
        int64_t begin;
        uint8_t shows;
    };
    struct Row {
        int32_t num_tokens;
        std::vector<std::vector<Picture>> requests;
        std::vector<int64_t> cached_tokens;
    };
    const Row rows[] = {
        {260, {{{200, 'r'}}, {{200, 'b'}}, {{200, 'r'}}}, {0, 128, 256}},
        {300, {{{0, 'r'}}, {{0, 'b'}}}, {0, 0}},
        {260, {{{200, 'r'}}, {{200, 'R'}}}, {0, 128}},  // same colour, another size: another digest
        {260, {{{200, 'r'}, {209, 'b'}}, {{200, 'b'}, {209, 'r'}}}, {0, 128}},
    };
    for (const Row& row : rows) {
        KvCacheOptions o = small(20, 1, EvictionPolicy::kAdaptive);
        o.block_tokens = 128;
        KvCacheManager m(o);
        const Tokens tokens(static_cast<size_t>(row.num_tokens), 5);
        for (size_t i = 0; i < row.requests.size(); ++i) {
            std::vector<ImageSpan> images;
            for (const Picture& p : row.requests[i]) {
                images.push_back({p.begin, p.begin + 9, {}});
                images.back().digest.fill(p.shows);
            }
            KvCacheManager::StartOptions start;
            start.prompt_keys = m.block_keys({}, tokens, images);
            const PrefixMatch match = m.match_prefix(start.prompt_keys, tokens);
            EXPECT_EQ(match.num_tokens(), row.cached_tokens[i]) << i;
            ASSERT_TRUE(m.start(1, start, match).ok());
            ASSERT_TRUE(m.allocate(1, row.num_tokens).ok());
            m.commit(1, tokens, images);
            m.free(1);
        }
    }
}

// A conversation is found again on every turn: C-059 and C-060 as far as they are about blocks.
TEST(KvCacheManager, AResentConversationHitsAllItsFullBlocks) {
    KvCacheOptions o = small(0, 4, EvictionPolicy::kAdaptive);
    o.block_tokens = 128;
    for (const bool crowded : {false, true}) {
        o.num_blocks = crowded ? 3 * 21 : 200;
        KvCacheManager m(o);
        std::vector<Tokens> talks;
        for (int c = 0; c < 3; ++c) talks.push_back(count_from(c * 100000, 1536));
        uint64_t seq = 0;
        for (int turn = 1; turn <= 12; ++turn) {
            for (size_t c = 0; c < (crowded ? 3u : 1u); ++c) {
                const Tokens more = count_from(turn * 1000 + static_cast<int32_t>(c) * 100000, 80);
                talks[c].insert(talks[c].end(), more.begin(), more.end());
                const int64_t hit = run_prompt(m, ++seq, talks[c]);
                if (turn >= 2) {
                    EXPECT_GE(hit, 1536 - 128 - 16) << turn;
                }
                m.free(seq);
            }
        }
    }
    o.num_blocks = 50;
    KvCacheManager m(o);
    const Tokens prompt = count_from(0, 640);
    Tokens longer = prompt;
    longer.resize(740, 7);
    run_prompt(m, 1, longer);  // still decoding
    EXPECT_EQ(run_prompt(m, 2, prompt), 640);
    m.free(1);
    EXPECT_EQ(run_prompt(m, 3, prompt), 640);
    EXPECT_EQ(run_prompt(m, 4, Tokens(prompt.begin(), prompt.begin() + 600)), 512);
}

/// The manager's behaviour written down with maps of whole prefixes: no chains of hashes, no lists.
class Twin {
  public:
    explicit Twin(int64_t blocks) : free_(blocks) {}

    struct Held {
        Tokens prefix;  ///< empty: nothing that others can find
    };
    int64_t match(const Tokens& tokens, size_t block_tokens) const {
        size_t n = 0;
        while ((n + 1) * block_tokens <= tokens.size() &&
               known_.count(prefix(tokens, (n + 1) * block_tokens)))
            ++n;
        return static_cast<int64_t>(n);
    }
    void adopt(const Tokens& p) { ++known_.at(p).references; }
    bool take() {
        if (free_ == 0) {
            auto oldest = known_.end();
            for (auto it = known_.begin(); it != known_.end(); ++it) {
                if (it->second.references == 0 &&
                    (oldest == known_.end() || it->second.released < oldest->second.released)) {
                    oldest = it;
                }
            }
            if (oldest == known_.end()) return false;
            known_.erase(oldest);
        } else {
            --free_;
        }
        return true;
    }
    bool publish(const Tokens& p) { return known_.emplace(p, Known{1, 0}).second; }
    void release(const Held& h) {
        if (h.prefix.empty()) {
            ++free_;
        } else if (--known_.at(h.prefix).references == 0) {
            known_.at(h.prefix).released = ++clock_;
        }
    }
    int64_t available() const { return free_ + cached(); }
    int64_t cached() const {
        int64_t n = 0;
        for (const auto& [p, k] : known_) n += k.references == 0 ? 1 : 0;
        return n;
    }
    int64_t free() const { return free_; }
    static Tokens prefix(const Tokens& t, size_t n) {
        return {t.begin(), t.begin() + static_cast<std::ptrdiff_t>(n)};
    }

  private:
    struct Known {
        int references = 0;
        int64_t released = 0;
    };
    std::map<Tokens, Known> known_;
    int64_t free_;
    int64_t clock_ = 0;
};

class KvCacheManagerFuzz : public ::testing::TestWithParam<EvictionPolicy> {};

TEST_P(KvCacheManagerFuzz, BehavesLikeItsTwin) {
    const bool lru = GetParam() == EvictionPolicy::kLru;  // only there the twin knows the victim
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 30 && !HasFailure(); ++round) {
        const auto num_blocks = static_cast<int32_t>(4 + rng() % 40);
        const auto num_slots = static_cast<int32_t>(1 + rng() % 6);
        KvCacheManager m(small(num_blocks, num_slots, GetParam()));
        Twin twin(num_blocks);
        struct Live {
            Tokens tokens;    ///< all it will ever have
            size_t done = 0;  ///< committed
            std::vector<Twin::Held> held;
        };
        std::map<uint64_t, Live> live;
        std::vector<Tokens> contents(
            static_cast<size_t>(num_blocks));  // what the block's rows stand for
        std::vector<Tokens> recent;
        uint64_t next_id = 1;
        const auto drop = [&](uint64_t id) {
            Live& s = live.at(id);
            while (!s.held.empty()) {
                if (lru) twin.release(s.held.back());
                s.held.pop_back();
            }
            m.free(id);
            live.erase(id);
        };
        for (int step = 0; step < 600 && !HasFailure(); ++step) {
            const uint64_t dice = rng() % 10;
            if (dice < 3) {  // a new prompt, often a continuation of an earlier one
                Tokens tokens;
                if (!recent.empty() && rng() % 4 != 0) {
                    tokens = recent[rng() % recent.size()];
                    tokens.resize(rng() % (tokens.size() + 1));
                }
                for (uint64_t i = 1 + rng() % 20; i > 0; --i)
                    tokens.push_back(static_cast<int32_t>(rng() % 2));
                KvCacheManager::StartOptions start;
                start.prompt_keys = m.block_keys({}, tokens);
                PrefixMatch match = m.match_prefix(start.prompt_keys, tokens);
                if (lru) {
                    ASSERT_EQ(static_cast<int64_t>(match.block_ids.size()), twin.match(tokens, 4));
                }
                for (size_t i = 0; i < match.block_ids.size(); ++i) {
                    ASSERT_EQ(contents[static_cast<size_t>(match.block_ids[i])],
                              Twin::prefix(tokens, 4 * i + 4));
                }
                if (rng() % 3 == 0) match = match.limited_to(static_cast<int64_t>(rng() % 12));
                const Status s = m.start(next_id, start, match);
                ASSERT_EQ(s.ok(), static_cast<int32_t>(live.size()) < num_slots);
                recent.push_back(tokens);
                if (recent.size() > 12) recent.erase(recent.begin());
                if (!s.ok()) continue;
                Live l;
                l.tokens = tokens;
                l.done = static_cast<size_t>(match.num_tokens());
                for (size_t i = 0; i < match.block_ids.size(); ++i) {
                    l.held.push_back({Twin::prefix(tokens, 4 * i + 4)});
                    if (lru) twin.adopt(l.held.back().prefix);
                }
                live.emplace(next_id++, std::move(l));
            } else if (live.empty()) {
                continue;
            } else {
                auto it = live.begin();
                std::advance(it, static_cast<std::ptrdiff_t>(rng() % live.size()));
                const uint64_t id = it->first;
                Live& s = it->second;
                if (dice < 5) {
                    drop(id);
                } else {  // a step: room for the chunk and some drafts, commit the chunk, give the
                          // rest back
                    if (s.done == s.tokens.size())
                        s.tokens.push_back(static_cast<int32_t>(rng() % 2));
                    const size_t upto = s.done + 1 + rng() % (s.tokens.size() - s.done);
                    const size_t ahead = upto + rng() % 9;
                    const auto needed = m.blocks_needed(id, static_cast<int64_t>(ahead));
                    const bool fits = needed <= m.num_available_blocks();
                    if (lru) {
                        ASSERT_EQ(m.num_available_blocks(), twin.available());
                    }
                    ASSERT_EQ(m.allocate(id, static_cast<int64_t>(ahead)).ok(), fits);
                    if (!fits) {
                        if (rng() % 2 == 0) drop(id);
                        continue;
                    }
                    while (s.held.size() * 4 < ahead) {
                        if (lru) {
                            ASSERT_TRUE(twin.take());
                        }
                        s.held.push_back({});
                    }
                    const auto& table = m.block_table(id);
                    for (size_t i = s.done / 4; i < table.size(); ++i) {
                        contents[static_cast<size_t>(table[i])].clear();  // half written
                    }
                    for (size_t i = s.done / 4; (i + 1) * 4 <= upto; ++i) {
                        const Tokens p = Twin::prefix(s.tokens, 4 * i + 4);
                        contents[static_cast<size_t>(table[i])] = p;
                        if (lru && twin.publish(p)) s.held[i].prefix = p;
                    }
                    m.commit(id, std::span(s.tokens).first(upto));
                    s.done = upto;
                    m.truncate(id, static_cast<int64_t>(upto));
                    while (s.held.size() > (upto + 3) / 4) {
                        if (lru) twin.release(s.held.back());
                        s.held.pop_back();
                    }
                }
            }
            m.check();
            std::set<int32_t> private_blocks;  // a partial block belongs to one sequence alone
            for (const auto& [id, s] : live) {
                ASSERT_EQ(m.block_table(id).size(), s.held.size());
                if (s.held.size() * 4 > s.done && !s.held.empty()) {
                    ASSERT_TRUE(private_blocks.insert(m.block_table(id).back()).second);
                }
            }
            if (lru) {
                ASSERT_EQ(m.stats().cached_blocks, twin.cached());
                ASSERT_EQ(m.stats().free_blocks, twin.free());
            }
        }
        while (!live.empty()) drop(live.begin()->first);
        EXPECT_TRUE(m.all_free());
    }
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         KvCacheManagerFuzz,
                         ::testing::Values(EvictionPolicy::kLru, EvictionPolicy::kAdaptive),
                         [](const auto& p) {
                             return p.param == EvictionPolicy::kLru ? "Lru" : "Adaptive";
                         });

}  // namespace
}  // namespace deepinfer
