#include "engine/engine_parts.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "engine/kv_block_space.h"
#include "engine/model_fingerprint.h"
#include "engine/plain_block_space.h"
#include "engine/step_costs_measure.h"
#include "ops/numeric_class.h"
#include "tensor/quant_block.h"
#include "tokenizer/engram_token_map.h"

namespace deepinfer {
namespace {

constexpr int64_t kDefaultPoolBytes = int64_t{128} << 20;
constexpr int64_t kDefaultStoredBytes = int64_t{32} << 20;

Status bad(const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
}

Result<std::unique_ptr<Backend>> open_backend(EngineConfig* config) {
    BackendOptions options;
    options.num_threads = config->threads;
    options.device_index = config->device_index;
    options.isa = config->isa;
    if (config->backend != "auto") return create_backend(config->backend, options);
    // An accelerator if one is compiled and answers, else the CPU.
    const std::vector<std::string> names = compiled_backends();
    if (std::find(names.begin(), names.end(), "cuda") != names.end()) {
        Result<std::unique_ptr<Backend>> cuda = create_backend("cuda", options);
        if (cuda.ok()) {
            config->backend = "cuda";
            return cuda;
        }
    }
    config->backend = "cpu";
    return create_backend("cpu", options);
}

/// No kernel promises less than the mode asks. Without batch_invariant: the same bits for the same
/// launch.
Status check_kernels(const OpTable& ops, bool batch_invariant) {
    const Status s = check_numeric_classes(
        ops, batch_invariant ? NumericClass::kRowInvariant : NumericClass::kBatchDependent);
    if (s.ok()) return s;
    return Status(s.code(),
                  "batch_invariant (DEEPINFER_BATCH_INVARIANT) is " +
                      std::to_string(batch_invariant) + ": " + s.message());
}

int64_t block_bytes(const ModelConfig& m, int64_t block_tokens) {
    int64_t bytes = 0;
    for (const int64_t l : m.kv_source_layer_ids) {
        bytes += block_tokens / m.ratio(l) *
                 (kv_entry_bytes(m.head_dim) + index_key_bytes(m.index_head_dim));
    }
    return bytes;
}

std::unique_ptr<BlockSpace> make_block_space(const EngineConfig& c,
                                             int64_t num_blocks,
                                             const CacheKey& fingerprint) {
    if (!c.prefix_caching) return make_plain_block_space(num_blocks, c.block_tokens);
    KvBlockSpaceOptions o;
    o.num_blocks = num_blocks;
    o.block_tokens = c.block_tokens;
    o.max_num_seqs = c.max_num_seqs;
    o.model_fingerprint = fingerprint;
    o.layout_fingerprint = salt_id(
        "layout", c.backend, std::to_string(c.block_tokens) + (c.batch_invariant ? "i" : ""));
    o.exact = c.batch_invariant;
    o.stored_windows = c.stored_windows;
    return std::make_unique<KvBlockSpace>(o);
}

TruncationMode truncation_mode(const std::string& name) {
    if (name == "compact") return TruncationMode::kCompact;
    return name == "exact" ? TruncationMode::kExact : TruncationMode::kOff;
}

/// Rows of two steps in flight.
int ring_extra(const EngineConfig& c) {
    return 2 * (1 + c.nextn);
}

/// The window, and two verification steps that may be in flight. By the checkpoint's block and not
/// by the drafts in use: what `compact` computes must not depend on speculation.
int64_t least_keep(const ModelConfig& m) {
    const int64_t block = m.num_nextn_predict_layers > 0 ? m.dspark_block_size : 0;
    return m.sliding_window + 2 * (1 + block);
}

SchedulerConfig scheduler_config(const EngineConfig& c, const ModelConfig& m) {
    SchedulerConfig s;
    s.max_num_seqs = c.max_num_seqs;
    s.max_num_batched_tokens = c.max_num_batched_tokens;
    s.max_model_len = c.max_model_len;
    s.max_logit_rows = c.max_logit_rows;
    s.long_prefill_token_threshold = c.long_prefill_token_threshold;
    s.age_us = std::max<int64_t>(1, static_cast<int64_t>(c.age_s * 1e6));
    s.eos_token_id = static_cast<int32_t>(m.eos_token_id);
    s.prefix_caching = c.prefix_caching;
    s.truncation = DeepseekV41::truncation_of(m, truncation_mode(c.truncation), c.keep_tokens);
    s.replay = c.replay == "exact" || c.batch_invariant ? ReplayKind::kExact : ReplayKind::kBounded;
    s.store_windows = c.stored_windows > 0;
    s.ring_extra = ring_extra(c);
    s.replay_geometry.window = s.truncation.window;
    s.replay_geometry.num_layers = s.truncation.num_layers;
    s.replay_geometry.mid = s.truncation.mid;
    s.replay_geometry.backtrack =
        static_cast<int>((c.keep_tokens > 0 ? c.keep_tokens : least_keep(m)) - m.sliding_window);
    int64_t align = 1;
    for (const int64_t l : m.kv_source_layer_ids) align = std::lcm(align, m.ratio(l));
    s.chunk_align = static_cast<int>(align);
    s.lookback = static_cast<int>(std::max<int64_t>(0, m.engram_max_ngram_size - 1));
    s.nextn = c.nextn;
    return s;
}

Status resolve_drafts(const ModelConfig& m, bool can_draft, EngineConfig* c) {
    const int64_t block = m.num_nextn_predict_layers > 0 ? m.dspark_block_size : 0;
    if (c->nextn == EngineConfig::kNextnOfCheckpoint) {
        c->nextn = can_draft ? static_cast<int>(block) : 0;
    }
    if (c->nextn >= 0 && c->nextn <= block) return {};
    const std::string found = "nextn (DEEPINFER_USE_NEXTN_DECODE) is " + std::to_string(c->nextn);
    if (block == 0) return bad(found + ", expected 0: the checkpoint has no draft stages");
    return bad(found + ", expected 0 to " + std::to_string(block) +
               ", the checkpoint's dspark_block_size: drafts beyond what the drafter was trained " +
               "for are hardly ever accepted");
}

/// Ids of a generated model: no text, so no tokenizer, and the Engram map folds by the remainder.
void number_tokens(const ModelConfig& m, EngineParts* parts, EngramTokenMap* map) {
    parts->tokenizer =
        std::make_unique<Tokenizer>(Tokenizer::numbered(static_cast<int32_t>(m.vocab_size),
                                                        static_cast<int32_t>(m.bos_token_id),
                                                        static_cast<int32_t>(m.eos_token_id)));
    if (m.engram_layer_ids.empty()) return;
    map->count = static_cast<int32_t>(m.engram_compressed_vocab_size);
    for (int64_t id = 0; id < m.vocab_size; ++id)
        map->map.push_back(static_cast<int32_t>(id % m.engram_compressed_vocab_size));
}

/// The tokenizer beside the weights, and its Engram map if the model has Engram layers.
Status load_tokens(const ModelConfig& m, EngineParts* parts, EngramTokenMap* map) {
    Result<Tokenizer> tokenizer = Tokenizer::load(parts->config.model_dir);
    if (!tokenizer.ok()) return tokenizer.status();
    parts->tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer).value());
    if (m.engram_layer_ids.empty()) return {};
    *map = engram_token_map(*parts->tokenizer);
    if (map->count == m.engram_compressed_vocab_size) return {};
    return Status(StatusCode::kInvalidFile,
                  "the tokenizer gives " + std::to_string(map->count) +
                      " Engram ids, config.json's engram_compressed_vocab_size is " +
                      std::to_string(m.engram_compressed_vocab_size));
}

Result<Checkpoint> open_checkpoint(const EngineConfig& c) {
    if (c.synthetic.empty()) return Checkpoint::open(c.model_dir);
    Result<SyntheticModel> model = parse_synthetic(c.synthetic);
    if (!model.ok()) return model.status();
    return Checkpoint::generate(std::move(model).value());
}

}  // namespace

Status resolve_replay(const ModelConfig& m, EngineConfig* c) {
    if (c->truncation.empty()) c->truncation = c->batch_invariant ? "exact" : "off";
    if (c->replay.empty()) c->replay = c->batch_invariant ? "stored" : "bounded";
    const int64_t least = least_keep(m);
    if (c->keep_tokens != 0 && c->keep_tokens < least) {
        return bad("keep_tokens (DEEPINFER_YOCO_PREFILL_KEEP_TOKENS) is " +
                   std::to_string(c->keep_tokens) + ", expected at least " + std::to_string(least) +
                   ": the window of " + std::to_string(m.sliding_window) + " and 2·(1 + " +
                   std::to_string((least - m.sliding_window) / 2 - 1) +
                   ") tokens that verification may take back");
    }
    const bool bounded = c->replay != "exact" && !c->batch_invariant && c->prefix_caching;
    const bool keeps = c->truncation == "compact" || bounded;
    if (c->keep_tokens == 0 && keeps) c->keep_tokens = least;
    return {};
}

Result<PoolSizes> resolve_limits(const ModelConfig& m, bool can_draft, EngineConfig* c) {
    for (const int64_t l : m.kv_source_layer_ids) {
        if (c->block_tokens % m.ratio(l) != 0) {
            return bad("block_tokens is " + std::to_string(c->block_tokens) +
                       ", expected a multiple of the compression ratio " +
                       std::to_string(m.ratio(l)) + " of layer " + std::to_string(l));
        }
    }
    DI_RETURN_IF_ERROR(resolve_drafts(m, can_draft, c));
    if (c->max_logit_rows == 0) {
        c->max_logit_rows = std::max<int64_t>(c->max_num_seqs * (1 + c->nextn), 64);
    }
    if (c->max_logit_rows < c->max_num_seqs) {
        return bad("max_logit_rows is " + std::to_string(c->max_logit_rows) +
                   ", expected at least max_num_seqs " + std::to_string(c->max_num_seqs));
    }
    if (c->max_model_len > m.max_position_embeddings) {
        return bad("max_model_len is " + std::to_string(c->max_model_len) +
                   ", the checkpoint's max_position_embeddings is " +
                   std::to_string(m.max_position_embeddings));
    }
    const bool length_given = c->max_model_len > 0;
    if (!length_given) c->max_model_len = m.max_position_embeddings;

    PoolSizes sizes;
    sizes.block_bytes = block_bytes(m, c->block_tokens);
    const int64_t per_seq = (c->max_model_len + c->block_tokens - 1) / c->block_tokens;
    if (c->kv_cache_bytes == 0) {
        const int64_t all = per_seq * c->max_num_seqs * sizes.block_bytes;
        c->kv_cache_bytes = std::min(all, kDefaultPoolBytes);
        // One sequence of a length that was asked for must fit, whatever the default says.
        if (length_given) {
            c->kv_cache_bytes = std::max(c->kv_cache_bytes, per_seq * sizes.block_bytes);
        }
    }
    sizes.num_blocks = c->kv_cache_bytes / sizes.block_bytes;
    if (sizes.num_blocks < 1) {
        return bad("kv_cache_bytes is " + std::to_string(c->kv_cache_bytes) + ", one block of " +
                   std::to_string(c->block_tokens) + " tokens takes " +
                   std::to_string(sizes.block_bytes));
    }
    if (sizes.num_blocks < per_seq) {
        const int64_t holds = sizes.num_blocks * c->block_tokens;
        if (length_given) {
            return bad("kv_cache_bytes " + std::to_string(c->kv_cache_bytes) + " holds " +
                       std::to_string(holds) + " tokens, max_model_len is " +
                       std::to_string(c->max_model_len));
        }
        c->max_model_len = holds;
    }
    return sizes;
}

namespace {

/// Limits of pictures, and the processor.
Status start_pictures(EngineParts* parts) {
    const ModelConfig& m = parts->checkpoint->config();
    EngineConfig& c = parts->config;
    if (!m.has_vision || !parts->backend->ops().runs_pictures()) return {};
    parts->vision = m.vision;
    if (c.max_image_tokens > m.vision.max_image_tokens) {
        return bad("max_image_tokens is " + std::to_string(c.max_image_tokens) +
                   ", the checkpoint's is " + std::to_string(m.vision.max_image_tokens));
    }
    if (c.max_image_tokens == 0) c.max_image_tokens = m.vision.max_image_tokens;
    parts->vision.max_image_tokens = c.max_image_tokens;
    // Public numbers: one picture of 546 x 546 on a CPU, ten times that on an accelerator.
    const bool host = parts->backend->device().host_accessible();
    if (c.encoder_patches == 0) c.encoder_patches = host ? 1521 : 16384;
    MultimodalProcessor::Options options;
    options.config = parts->vision;
    options.workers = c.image_workers;
    options.processes = c.image_processes;
    options.max_bytes = c.image_bytes;
    Result<std::unique_ptr<MultimodalProcessor>> processor = MultimodalProcessor::start(options);
    if (!processor.ok()) return processor.status();
    parts->processor = std::move(processor).value();
    return {};
}

Status load_encoder(EngineParts* parts, SchedulerConfig* scheduling) {
    if (parts->processor == nullptr) return {};
    const EngineConfig& c = parts->config;
    Result<std::unique_ptr<VisionEncoder>> encoder =
        VisionEncoder::load(*parts->checkpoint, *parts->backend, c.encoder_patches);
    if (!encoder.ok()) return encoder.status();
    parts->encoder = std::move(encoder).value();
    const int64_t row_bytes = parts->checkpoint->config().hidden_size * 2;
    scheduling->encoder.num_stages = parts->encoder->num_stages();
    scheduling->encoder.patches_per_step = c.encoder_patches;
    scheduling->encoder.max_patches = parts->encoder->max_patches();
    scheduling->encoder.cache_rows = c.image_cache_bytes / row_bytes;
    return {};
}

}  // namespace

Result<std::unique_ptr<EngineParts>> EngineParts::load(const EngineConfig& requested,
                                                       const EngineHooks& hooks) {
    DI_RETURN_IF_ERROR(requested.validate());
    if (requested.model_dir.empty() == requested.synthetic.empty()) {
        return bad(requested.synthetic.empty()
                       ? "model_dir is empty, expected a checkpoint directory "
                         "(--model or DEEPINFER_HF_MODEL_DIR)"
                       : "model_dir and synthetic are both given, expected one of them");
    }
    auto parts = std::make_unique<EngineParts>();
    parts->config = requested;
    EngineConfig& c = parts->config;
    const int processors = ThreadPool::available_threads();
    if (c.threads == 0) c.threads = processors;
    // More never helps; some more is for tests, very many exhaust the system in the middle of work.
    const int most = std::max(64, 8 * processors);
    if (c.threads > most) {
        return bad("threads (DEEPINFER_THREADS) is " + std::to_string(c.threads) +
                   ", expected at most " + std::to_string(most) + ": this machine gives " +
                   std::to_string(processors));
    }

    Result<std::unique_ptr<Backend>> backend = open_backend(&c);
    if (!backend.ok()) return backend.status();
    parts->backend = std::move(backend).value();
    DI_RETURN_IF_ERROR(check_kernels(parts->backend->ops(), c.batch_invariant));

    Result<Checkpoint> checkpoint = open_checkpoint(c);
    if (!checkpoint.ok()) return checkpoint.status();
    parts->checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint).value());
    const ModelConfig& m = parts->checkpoint->config();
    DI_RETURN_IF_ERROR(start_pictures(parts.get()));

    EngramTokenMap token_map;
    if (c.synthetic.empty()) {
        DI_RETURN_IF_ERROR(load_tokens(m, parts.get(), &token_map));
    } else {
        number_tokens(m, parts.get(), &token_map);
    }

    DI_RETURN_IF_ERROR(resolve_replay(m, &c));
    const Result<PoolSizes> sizes = resolve_limits(m, parts->backend->ops().runs_drafts(), &c);
    if (!sizes.ok()) return sizes.status();
    ModelLimits limits;
    limits.max_rows = c.max_num_batched_tokens;
    limits.max_seqs = c.max_num_seqs;
    limits.max_logit_rows = c.max_logit_rows;
    limits.max_positions = c.max_model_len;
    limits.block_tokens = c.block_tokens;
    limits.ring_extra = ring_extra(c);
    limits.max_draft_seqs = c.nextn > 0 ? c.max_num_seqs : 0;
    limits.truncation.mode = truncation_mode(c.truncation);
    limits.truncation.keep = c.keep_tokens;
    Result<std::unique_ptr<DeepseekV41>> model =
        DeepseekV41::load(*parts->checkpoint, *parts->backend, std::move(token_map.map), limits);
    if (!model.ok()) return model.status();
    parts->model = std::move(model).value();
    DI_CHECK_EQ(parts->model->cache_geometry().block_bytes(), sizes.value().block_bytes);

    if (c.replay == "stored" && c.prefix_caching && c.stored_windows == 0) {
        const int64_t each = parts->model->cache_geometry().slot_bytes();
        c.stored_windows =
            std::clamp<int64_t>(kDefaultStoredBytes / each, 4, 2 * c.max_num_seqs + 2);
    }
    Result<CacheMemory> cache = CacheMemory::allocate(parts->backend->device(),
                                                      parts->model->cache_geometry(),
                                                      parts->backend->ops().acc,
                                                      sizes.value().num_blocks,
                                                      c.max_num_seqs + c.stored_windows);
    if (!cache.ok()) return cache.status();
    parts->cache = std::make_unique<CacheMemory>(std::move(cache).value());

    // Generated weights follow from their recipe's name; files are read.
    const CacheKey fingerprint = c.synthetic.empty() ? model_fingerprint(*parts->checkpoint)
                                                     : salt_id("model", c.model_dir, c.synthetic);
    parts->blocks = make_block_space(c, sizes.value().num_blocks, fingerprint);
    SchedulerConfig scheduling = scheduler_config(c, m);
    scheduling.force_preempt = hooks.force_preempt;
    scheduling.force_no_drafts = hooks.force_no_drafts;
    if (c.nextn > 0) {
        DI_RETURN_IF_ERROR(parts->make_spec_planner());
        scheduling.spec = parts->spec.get();
    }
    DI_RETURN_IF_ERROR(load_encoder(parts.get(), &scheduling));
    parts->scheduler = std::make_unique<Scheduler>(scheduling, *parts->blocks, parts->clock);
    ModelRunner::Options running;
    running.eos_token_id = static_cast<int32_t>(m.eos_token_id);
    running.lookback = scheduling.lookback;
    running.nextn = c.nextn;
    running.rule = *parse_spec_rule(c.spec_sampling);
    running.encoder = parts->encoder.get();
    running.num_ids =
        std::clamp<int64_t>(parts->tokenizer->vocab_size(), m.eos_token_id + 1, m.vocab_size);
    parts->runner =
        std::make_unique<ModelRunner>(*parts->model, parts->cache->view(), running, parts->clock);
    parts->runner->set_draft_override(hooks.drafts);
    parts->runner->force_acceptance(c.spec_forced_acceptance);
    if (parts->spec != nullptr && c.varlen && c.spec_budget == "model") {
        measure_step_costs(
            *parts->model, parts->cache->view(), parts->clock, &parts->spec->costs());
    }
    parts->executor = parts->runner.get();
    if (c.async_scheduling) {
        parts->threaded = make_threaded_executor(*parts->runner);
        parts->executor = parts->threaded.get();
    }

    parts->info.vocab_size = m.vocab_size;
    parts->info.num_token_ids = running.num_ids;
    parts->info.num_hidden_layers = m.num_hidden_layers;
    parts->info.max_position_embeddings = m.max_position_embeddings;
    parts->info.sliding_window = m.sliding_window;
    parts->info.bos_token_id = static_cast<int32_t>(m.bos_token_id);
    parts->info.eos_token_id = static_cast<int32_t>(m.eos_token_id);
    parts->info.takes_images = parts->encoder != nullptr;
    if (parts->encoder != nullptr) {
        parts->image_token_id = static_cast<int32_t>(m.image_token_id);
        parts->info.image_token_id = parts->image_token_id;
    }
    return parts;
}

/// Name of what a calibration belongs to: the checkpoint's shape and its draft weights' place.
std::string EngineParts::model_id() const {
    std::ifstream file(config.model_dir + "/config.json", std::ios::binary);
    const std::string config_text((std::istreambuf_iterator<char>(file)),
                                  std::istreambuf_iterator<char>());
    const CacheKey id = salt_id("draft calibration", config_text, std::to_string(config.nextn));
    std::string hex;
    for (const uint8_t byte : id) {
        constexpr char kDigits[] = "0123456789abcdef";
        hex += kDigits[byte >> 4];
        hex += kDigits[byte & 15];
    }
    return hex;
}

Status EngineParts::make_spec_planner() {
    SpecOptions options = parse_spec_budget(config.spec_budget).value();
    options.nextn = config.nextn;
    options.varlen = config.varlen;
    options.auto_off = config.spec_auto_off;
    spec = std::make_unique<SpecPlanner>(options);
    if (config.spec_calibration.empty()) return {};
    return spec->calibration().load(config.spec_calibration, model_id());
}

Status EngineParts::save_calibration() const {
    if (spec == nullptr || config.spec_calibration.empty()) return {};
    return spec->calibration().save(config.spec_calibration, model_id());
}

std::string EngineParts::description() const {
    const auto mib = [](int64_t bytes) {
        return std::to_string((bytes + (1 << 19)) >> 20) + " MiB";
    };
    const int64_t blocks_total = blocks->total_blocks();
    std::string s;
    s += "model    " +
         (config.synthetic.empty() ? config.model_dir : "generated " + checkpoint->dir()) + ": " +
         std::to_string(info.num_hidden_layers) + " layers, vocabulary " +
         std::to_string(info.vocab_size) + "\n";
    s += "backend  " + backend->description() + "\n";
    s += "kernels  " + numeric_summary(backend->ops()) + "\n";
    s += "cache    " + std::to_string(blocks_total) + " blocks of " +
         std::to_string(config.block_tokens) + " tokens, " + mib(config.kv_cache_bytes) +
         "; windows of " + std::to_string(config.max_num_seqs) + " sequences, " +
         mib(config.max_num_seqs * model->cache_geometry().slot_bytes()) + ", and " +
         std::to_string(config.stored_windows) + " stored, " +
         mib(config.stored_windows * model->cache_geometry().slot_bytes()) + "\n";
    s += "limits   " + std::to_string(config.max_model_len) + " tokens a sequence, " +
         std::to_string(config.max_num_batched_tokens) + " rows a step\n";
    if (config.nextn > 0) {
        s += "drafts   " + std::to_string(config.nextn) + " a sequence and step, " +
             (config.spec_sampling.empty() ? "coupled" : config.spec_sampling) +
             (config.varlen ? ", as many as pay (" + config.spec_budget + ")" : ", all verified") +
             "\n";
    }
    if (processor != nullptr) {
        s += "pictures up to " + std::to_string(vision.max_image_tokens) + " tokens each, " +
             std::to_string(config.image_workers) +
             (config.image_processes ? " worker process(es), " : " worker thread(s), ") +
             mib(config.image_bytes) + " in flight, " + mib(config.image_cache_bytes) +
             " of encoded ones; tower of " + std::to_string(encoder->num_stages() - 2) +
             " blocks, " + mib(static_cast<int64_t>(encoder->workspace_bytes())) + "\n";
    }
    s += "modes    batch_invariant " + std::to_string(config.batch_invariant) +
         ", prefix_caching " + std::to_string(config.prefix_caching) + ", async_scheduling " +
         std::to_string(config.async_scheduling) + ", truncation " + config.truncation +
         (config.truncation == "compact" ? " (" + std::to_string(config.keep_tokens) + " rows)"
                                         : "") +
         ", replay " + config.replay + "\n";
    s += "config   " + config.to_json();
    return s;
}

}  // namespace deepinfer
