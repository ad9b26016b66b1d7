// What eviction keeps: hit rates of both policies on a synthetic day of serving, by cache size.
//
// The day mixes what a serving engine sees: conversations that come back after a while and grow, a
// few system prompts that most of them share, agents that call again within seconds, and long
// documents that are read once. Rates are printed; the law is that the adaptive policy is never
// clearly behind LRU.
#include "kvcache/eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <queue>
#include <random>
#include <vector>

#include "kvcache/kv_cache_manager.h"

namespace deepinfer {
namespace {

struct Request {
    double time = 0;
    std::vector<int32_t> prompt;
    size_t output_tokens = 0;
};

struct Mix {
    const char* name;
    double chats, agents, documents;  ///< share of arrivals
};

/// `count` requests in order of time. Every token sequence is made of ids that name its origin, so
/// two prompts share exactly what they should.
std::vector<Request> make_trace(const Mix& mix, size_t count, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::exponential_distribution<double> unit(1.0);
    std::uniform_real_distribution<double> uniform;
    struct Talk {
        double time;
        std::vector<int32_t> tokens;
        int turns_left;
        double pause;
        bool operator<(const Talk& o) const { return time > o.time; }
    };
    std::priority_queue<Talk> talks;
    std::vector<Request> trace;
    int32_t next = 1 << 20;  // below: system prompts
    const auto fresh = [&](std::vector<int32_t>& to, double mean) {
        const auto n = static_cast<size_t>(mean * (0.3 + 0.7 * unit(rng))) + 1;
        for (size_t i = 0; i < n; ++i) to.push_back(next++);
    };
    double now = 0;
    while (trace.size() < count) {
        now += unit(rng);  // one new arrival a second
        Talk t;
        t.time = now;
        const double kind = uniform(rng) * (mix.chats + mix.agents + mix.documents);
        if (kind < mix.chats + mix.agents) {
            const int system = static_cast<int>(std::pow(20.0, uniform(rng)));  // few are common
            for (int32_t i = 0; i < 300 + 80 * system; ++i) t.tokens.push_back(system * 10000 + i);
            const bool agent = kind >= mix.chats;
            t.turns_left = 1 + static_cast<int>(unit(rng) * (agent ? 8 : 3));
            t.pause = agent ? 8 : 90;
            fresh(t.tokens, agent ? 900 : 200);
        } else {
            t.turns_left = 1;
            t.pause = 0;
            fresh(t.tokens, 6000);
        }
        talks.push(std::move(t));
        while (!talks.empty() && talks.top().time <= now && trace.size() < count) {
            Talk turn = talks.top();
            talks.pop();
            Request r;
            r.time = turn.time;
            r.prompt = turn.tokens;
            const size_t before = turn.tokens.size();
            fresh(turn.tokens, 250);  // the answer becomes part of the next prompt
            r.output_tokens = turn.tokens.size() - before;
            trace.push_back(std::move(r));
            if (--turn.turns_left > 0) {
                turn.time += turn.pause * unit(rng);
                fresh(turn.tokens, 120);
                talks.push(std::move(turn));
            }
        }
    }
    return trace;
}

double hit_rate(const std::vector<Request>& trace, int32_t num_blocks, EvictionPolicy policy) {
    KvCacheOptions options;
    options.num_blocks = num_blocks;
    options.num_slots = 16;
    options.block_tokens = 128;
    options.eviction = policy;
    KvCacheManager m(options);
    std::vector<uint64_t> running;
    uint64_t seq = 0;
    for (const Request& r : trace) {
        while (running.size() >= 8) {  // eight requests at a time
            m.free(running.front());
            running.erase(running.begin());
        }
        KvCacheManager::StartOptions start;
        start.prompt_keys = m.block_keys({}, r.prompt);
        start.prompt_tokens = static_cast<int64_t>(r.prompt.size());
        const PrefixMatch match = m.match_prefix(start.prompt_keys, r.prompt);
        EXPECT_TRUE(m.start(++seq, start, match).ok());
        std::vector<int32_t> all = r.prompt;
        while (!m.allocate(seq, static_cast<int64_t>(all.size())).ok() && !running.empty()) {
            m.free(running.front());
            running.erase(running.begin());
        }
        if (m.blocks_needed(seq, static_cast<int64_t>(all.size())) == 0) m.commit(seq, all);
        running.push_back(seq);
    }
    for (const uint64_t id : running) m.free(id);
    EXPECT_TRUE(m.all_free());
    return static_cast<double>(m.stats().hit_tokens) / static_cast<double>(m.stats().query_tokens);
}

TEST(Eviction, AdaptiveIsNotBehindLruOnASyntheticDay) {
    const Mix mixes[] = {{"chats", 1, 0, 0},
                         {"chats and agents", 1, 0.5, 0},
                         {"mixed", 1, 0.3, 0.5},
                         {"documents", 0.4, 0, 1}};
    std::printf("  tokens found in the cache, %% of prompt tokens\n  %-18s %8s %8s %8s\n",
                "mix",
                "blocks",
                "lru",
                "adaptive");
    double lru_sum = 0, adaptive_sum = 0;
    for (const Mix& mix : mixes) {
        const std::vector<Request> trace = make_trace(mix, 1500, 7);
        for (const int32_t blocks : {250, 500, 1000, 2000, 4000}) {
            const double lru = 100 * hit_rate(trace, blocks, EvictionPolicy::kLru);
            const double adaptive = 100 * hit_rate(trace, blocks, EvictionPolicy::kAdaptive);
            std::printf("  %-18s %8d %8.2f %8.2f\n", mix.name, blocks, lru, adaptive);
            EXPECT_GE(adaptive, lru - 1.0) << mix.name << " " << blocks;
            lru_sum += lru;
            adaptive_sum += adaptive;
        }
    }
    EXPECT_GE(adaptive_sum, lru_sum);
}

TEST(Eviction, AScanDoesNotPushOutWhatIsUsedAgain) {
    EvictionQueue queue(EvictionPolicy::kAdaptive, 100);
    const auto key = [](int i) {
        CacheKey k{};
        std::memcpy(k.data(), &i, sizeof i);
        return k;
    };
    for (int b = 0; b < 100; ++b) {  // ten blocks are used twice, ninety once
        queue.published(b, key(b));
        queue.released(b);
    }
    for (int b = 0; b < 10; ++b) {
        queue.acquired(b);
        queue.released(b);
    }
    for (int i = 0; i < 1000; ++i) {
        const int32_t block = queue.evict();
        EXPECT_GE(block, 10);
        queue.published(block, key(1000 + i));
        queue.released(block);
    }
    EXPECT_EQ(queue.num_evictable(), 100);
}

TEST(Eviction, NothingEvictableIsAnAnswer) {
    for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kAdaptive}) {
        EvictionQueue queue(policy, 2);
        EXPECT_EQ(queue.evict(), -1);
        queue.published(0, {});
        EXPECT_EQ(queue.evict(), -1);  // still referenced
        queue.released(0);
        EXPECT_EQ(queue.evict(), 0);
        EXPECT_EQ(queue.evict(), -1);
    }
}

}  // namespace
}  // namespace deepinfer
