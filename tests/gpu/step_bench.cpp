// Times whole steps of a model on the device: decode at several batch sizes, a prefill chunk in the
// middle of a long prompt. Caches are filled with random rows, so that no prompt has to be run.
//
//   step_bench (--model DIR | --synthetic NAME[:SEED]) [--context N] [--batch 1,64] [--prefill
//   ROWS]
//              [--verify ROWS] [--steps N] [--read GB/s] [--bf16 TFLOP/s] [--commit TEXT]
//              [--profile 0|1]
//
// --verify: also steps of ROWS rows a request (drafts to judge and the row before them) and the
// drafting pass, and what both together take over the plain step.
//
// One JSON line a measurement: milliseconds a step with recorded graphs and op by op, the sum of
// floors (step_floors.h) with the given ceilings and their quotient. Every decode step is run three
// ways (op by op, recorded, replayed) and the logits must be the same bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "checkpoint/checkpoint.h"
#include "gpu/step_floors.h"
#include "gpu/timed_backend.h"
#include "kvcache/cache_memory.h"
#include "model/deepseek_v41.h"

namespace deepinfer {
namespace {

struct Options {
    std::string model, synthetic, commit = "working tree";
    int64_t context = 1024, prefill = 0, verify = 0;
    std::vector<int64_t> batches{1};
    int steps = 20;
    bool profile = true;
    Ceilings ceilings;
};

double now_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

[[noreturn]] void fail(const std::string& what) {
    std::printf("{\"error\":\"%s\"}\n", what.c_str());
    std::exit(1);
}

class StepBench {
  public:
    StepBench(const Options& o, Backend& real) : o_(o), backend_(real), rng_(11) {
        Result<Checkpoint> c = open(o);
        if (!c.ok()) fail(c.status().to_string());
        checkpoint_ = std::make_unique<Checkpoint>(std::move(c).value());
        const ModelConfig& m = checkpoint_->config();
        std::vector<int32_t> map;
        for (int64_t id = 0; id < m.vocab_size; ++id)
            map.push_back(
                static_cast<int32_t>(id % std::max<int64_t>(1, m.engram_compressed_vocab_size)));
        const int64_t most = *std::max_element(o.batches.begin(), o.batches.end());
        ModelLimits limits;
        limits.max_rows = std::max(o.prefill, most * std::max<int64_t>(1, o.verify));
        limits.max_seqs = most;
        limits.max_logit_rows = most * std::max<int64_t>(1, o.verify);
        limits.max_draft_seqs = o.verify > 0 ? most : 0;
        limits.max_positions = (o.context + 64 + 63) / 64 * 64;
        limits.truncation =
            DeepseekV41::truncation_of(m, TruncationMode::kCompact, m.sliding_window + 12);
        const double begin = now_ms();
        auto model = DeepseekV41::load(*checkpoint_, backend_, std::move(map), limits);
        if (!model.ok()) fail(model.status().to_string());
        model_ = std::move(model).value();
        per_seq_ = limits.max_positions / 64;
        auto cache = CacheMemory::allocate(
            device(), model_->cache_geometry(), backend_.ops().acc, most * per_seq_, most);
        if (!cache.ok()) fail(cache.status().to_string());
        cache_ = std::make_unique<CacheMemory>(std::move(cache).value());
        fill_caches();
        std::printf("{\"loaded_s\":%.1f,\"free_mib\":%zu}\n",
                    (now_ms() - begin) / 1e3,
                    device().free_bytes() >> 20);
        std::fflush(stdout);
    }

    void decode(int64_t b) {
        Batch batch;
        for (int64_t i = 0; i < b; ++i) {
            add(&batch, i, o_.context, 1);
            batch.logit_rows.push_back(static_cast<int32_t>(i));
        }
        model_->use_graphs(false);
        const std::vector<float> plain = logits(batch);
        const double eager = time(batch);
        model_->use_graphs(true);
        const std::vector<float> first = logits(batch), recorded = logits(batch),
                                 replayed = logits(batch);
        const bool same = plain == first && plain == recorded && plain == replayed;
        const double graph = time(batch);
        report("decode",
               b,
               b,
               checkpoint_->config().num_hidden_layers,
               static_cast<double>(b),
               graph,
               eager);
        std::printf("%s b %ld: recorded and replayed steps give the bytes of plain ones, %s\n",
                    same ? "PASS" : "FAIL",
                    static_cast<long>(b),
                    std::all_of(plain.begin(), plain.end(), [](float v) { return v == v; })
                        ? "no NaN"
                        : "NaN among them");
        if (!same) failed_ = true;
        if (o_.profile)
            profile("decode",
                    batch,
                    b,
                    b,
                    checkpoint_->config().num_hidden_layers,
                    static_cast<double>(b));
    }

    /// A chunk whose rows run through every layer, or one in the middle of a long prompt: its rows
    /// end at the last kv source, whose own work the floor leaves out.
    void prefill(int64_t rows, bool truncated) {
        Batch batch;
        add(&batch, 0, o_.context - rows, rows);
        const PrefillTruncation cut = model_->limits().truncation;
        if (truncated) batch.seqs[0].prompt_tokens = static_cast<int32_t>(2 * o_.context);
        const int64_t layers = truncated ? cut.mid : checkpoint_->config().num_hidden_layers;
        const char* name = truncated ? "prefill, truncated" : "prefill";
        model_->use_graphs(false);
        const double ms = time(batch, 3);
        report(name, rows, 1, layers, 0, ms, ms);
        if (o_.profile) profile(name, batch, rows, 1, layers, 0);
    }

    /// A step that judges drafts, the pass that makes them, and both over the plain step.
    void verify(int64_t b) {
        Batch plain, judged;
        DraftBatch drafts;
        for (int64_t i = 0; i < b; ++i) {
            add(&plain, i, o_.context, 1);
            plain.logit_rows.push_back(static_cast<int32_t>(i));
            add(&judged, i, o_.context, o_.verify);
            for (int64_t r = 0; r < o_.verify; ++r)
                judged.logit_rows.push_back(static_cast<int32_t>(i * o_.verify + r));
            DraftSequence d;
            d.slot = static_cast<int32_t>(i);
            d.position = static_cast<int32_t>(o_.context + 1);
            drafts.seqs.push_back(d);
        }
        model_->use_graphs(true);
        const double plain_ms = time(plain), judged_ms = time(judged);
        const double draft_ms = median([&] { model_->draft(drafts, cache_->view()); }, o_.steps);
        const int64_t layers = checkpoint_->config().num_hidden_layers;
        const auto floor = [&](int64_t rows) {
            return step_floors(checkpoint_->config(),
                               o_.ceilings,
                               static_cast<double>(rows),
                               static_cast<double>(b),
                               static_cast<double>(o_.context),
                               layers,
                               static_cast<double>(rows))
                       .total() *
                   1e3;
        };
        std::printf(
            "{\"speculation\":%ld,\"requests\":%ld,\"plain_ms\":%.3f,\"verify_ms\":%.3f,"
            "\"draft_ms\":%.3f,\"quotient\":%.3f,\"quotient_of_floors\":%.3f,\"commit\":\"%s\"}\n",
            static_cast<long>(o_.verify),
            static_cast<long>(b),
            plain_ms,
            judged_ms,
            draft_ms,
            (judged_ms + draft_ms) / plain_ms,
            floor(b * o_.verify) / floor(b),
            o_.commit.c_str());
        std::fflush(stdout);
    }

    bool failed() const { return failed_; }

  private:
    static Result<Checkpoint> open(const Options& o) {
        if (o.synthetic.empty()) return Checkpoint::open(o.model);
        Result<SyntheticModel> m = parse_synthetic(o.synthetic);
        if (!m.ok()) return m.status();
        return Checkpoint::generate(std::move(m).value());
    }
    Device& device() { return backend_.device(); }

    void add(Batch* batch, int64_t seq, int64_t start, int64_t rows) {
        const ModelConfig& m = checkpoint_->config();
        const auto id = [&] {
            return static_cast<int32_t>(rng_() % static_cast<uint64_t>(m.vocab_size));
        };
        SequenceChunk s;
        s.slot = static_cast<int32_t>(seq);
        s.start_pos = static_cast<int32_t>(start);
        s.num_tokens = static_cast<int32_t>(rows);
        for (int64_t i = 0; i < per_seq_; ++i)
            s.block_ids.push_back(static_cast<int32_t>(i * model_->limits().max_seqs + seq));
        for (int64_t i = 1; i < m.engram_max_ngram_size; ++i) s.lookback.push_back(id());
        batch->seqs.push_back(std::move(s));
        for (int64_t i = 0; i < rows; ++i) batch->token_ids.push_back(id());
    }

    std::vector<float> logits(const Batch& batch) {
        const Tensor t = model_->forward(batch, cache_->view());
        std::vector<float> v(static_cast<size_t>(t.numel()));
        device().copy_to_host(device().stream(), v.data(), t.data, v.size() * sizeof(float));
        wait();
        return v;
    }

    void wait() {
        device().stream().synchronize();
        const Status s = device().stream().status();
        if (!s.ok()) fail(s.to_string());
    }

    /// Median wall milliseconds of a step, its host side included.
    double time(const Batch& batch, int steps = 0) {
        return median([&] { model_->forward(batch, cache_->view()); },
                      steps > 0 ? steps : o_.steps);
    }
    template <typename Run>
    double median(const Run& run, int steps) {
        std::vector<double> ms;
        for (int i = 0; i < steps + 2; ++i) {
            const double begin = now_ms();
            run();
            wait();
            if (i >= 2) ms.push_back(now_ms() - begin);
        }
        std::sort(ms.begin(), ms.end());
        return ms[ms.size() / 2];
    }

    void report(const char* what,
                int64_t rows,
                int64_t requests,
                int64_t layers,
                double logit_rows,
                double ms,
                double eager) {
        const StepFloors f = step_floors(checkpoint_->config(),
                                         o_.ceilings,
                                         static_cast<double>(rows),
                                         static_cast<double>(requests),
                                         static_cast<double>(o_.context),
                                         layers,
                                         logit_rows);
        std::printf(
            "{\"step\":\"%s\",\"rows\":%ld,\"context\":%ld,\"ms\":%.3f,\"op_by_op_ms\":%.3f,"
            "\"floor_ms\":%.3f,"
            "\"ratio\":%.3f,\"tokens_s\":%.0f,\"commit\":\"%s\"}\n",
            what,
            static_cast<long>(rows),
            static_cast<long>(o_.context),
            ms,
            eager,
            f.total() * 1e3,
            f.total() * 1e3 / ms,
            static_cast<double>(rows) / ms * 1e3,
            o_.commit.c_str());
        std::fflush(stdout);
    }

    void profile(const char* what,
                 const Batch& batch,
                 int64_t rows,
                 int64_t requests,
                 int64_t layers,
                 double logit_rows) {
        model_->use_graphs(false);
        OpTimes::get().on = true;
        model_->forward(batch, cache_->view());
        wait();
        OpTimes::get().take();
        model_->forward(batch, cache_->view());
        wait();
        OpTimes::get().on = false;
        model_->use_graphs(true);
        const StepFloors f = step_floors(checkpoint_->config(),
                                         o_.ceilings,
                                         static_cast<double>(rows),
                                         static_cast<double>(requests),
                                         static_cast<double>(o_.context),
                                         layers,
                                         logit_rows);
        const auto times = OpTimes::get().take();
        std::vector<std::pair<double, std::string>> order;
        double sum = 0;
        for (const auto& [op, t] : times) {
            order.push_back({t.first, op});
            sum += t.first;
        }
        std::sort(order.rbegin(), order.rend());
        std::printf("  %s of %ld rows, events around each op: sum %.2f ms\n",
                    what,
                    static_cast<long>(rows),
                    sum);
        for (const auto& [ms, op] : order) {
            const double floor = f.of(op) * 1e3;
            std::printf("  %-18s %4d x %9.1f us  = %8.3f ms  floor %7.3f\n",
                        op.c_str(),
                        times.at(op).second,
                        ms * 1e3 / times.at(op).second,
                        ms,
                        floor);
        }
        std::fflush(stdout);
    }

    /// Random codes everywhere, scale bytes kept small (0x37: E4M3 scales below 1, UE8M0 far
    /// below).
    void fill_caches() {
        std::vector<uint64_t> pattern((size_t{32} << 20) / 8);
        for (uint64_t& v : pattern) v = rng_() & 0x3737373737373737ull;
        for (const CacheView::Layer& l : cache_->view().layers) {
            for (const Tensor* t : {&l.window_ring, &l.kv_pool, &l.key_pool}) {
                if (!*t) continue;
                const size_t bytes = static_cast<size_t>(t->bytes());
                for (size_t at = 0; at < bytes; at += pattern.size() * 8)
                    device().copy_to_device(device().stream(),
                                            static_cast<uint8_t*>(t->data) + at,
                                            pattern.data(),
                                            std::min(pattern.size() * 8, bytes - at));
            }
        }
        wait();
    }

    const Options& o_;
    TimedBackend backend_;
    std::mt19937_64 rng_;
    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<DeepseekV41> model_;
    std::unique_ptr<CacheMemory> cache_;
    int64_t per_seq_ = 0;
    bool failed_ = false;
};

std::vector<int64_t> numbers(const std::string& text) {
    std::vector<int64_t> v;
    for (size_t at = 0; at < text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        v.push_back(std::atoll(text.substr(at, comma - at).c_str()));
        at = comma + 1;
    }
    return v;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
    using namespace deepinfer;
    Options o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i], value = argv[i + 1];
        if (key == "--model")
            o.model = value;
        else if (key == "--synthetic")
            o.synthetic = value;
        else if (key == "--context")
            o.context = std::atoll(value.c_str());
        else if (key == "--batch")
            o.batches = numbers(value);
        else if (key == "--prefill")
            o.prefill = std::atoll(value.c_str());
        else if (key == "--verify")
            o.verify = std::atoll(value.c_str());
        else if (key == "--steps")
            o.steps = std::atoi(value.c_str());
        else if (key == "--profile")
            o.profile = value != "0";
        else if (key == "--read")
            o.ceilings.read = std::atof(value.c_str()) * 1e9;
        else if (key == "--bf16")
            o.ceilings.bf16 = std::atof(value.c_str()) * 1e12;
        else if (key == "--commit")
            o.commit = value;
        else {
            std::fprintf(stderr, "step_bench: unknown option %s\n", key.c_str());
            return 2;
        }
    }
    if (o.model.empty() == o.synthetic.empty() || o.batches.empty()) {
        std::fprintf(stderr,
                     "step_bench: one of --model and --synthetic, and at least one batch size\n");
        return 2;
    }
    register_cuda_backend();
    Result<std::unique_ptr<Backend>> backend = create_backend("cuda", BackendOptions{});
    if (!backend.ok()) {
        std::printf("SKIP: %s\n", backend.status().to_string().c_str());
        return 0;
    }
    StepBench bench(o, *backend.value());
    for (const int64_t b : o.batches) bench.decode(b);
    if (o.verify > 0)
        for (const int64_t b : o.batches) bench.verify(b);
    if (o.prefill > 0)
        for (bool truncated : {true, false}) bench.prefill(o.prefill, truncated);
    return bench.failed() ? 1 : 0;
}
