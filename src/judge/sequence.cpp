#include "judge/sequence.h"

#include <algorithm>
#include <cstring>

#include "deepinfer/tokenizer.h"
#include "tokenizer/engram_token_map.h"

namespace deepinfer {

Result<LoadedModel> load_model(const std::string& dir,
                               const std::string& backend,
                               const BackendOptions& options,
                               ModelLimits limits) {
    LoadedModel m;
    Result<std::unique_ptr<Backend>> b = create_backend(backend, options);
    if (!b.ok()) return b.status();
    m.backend = std::move(b).value();
    Result<Checkpoint> c = Checkpoint::open(dir);
    if (!c.ok()) return c.status();
    m.checkpoint = std::make_unique<Checkpoint>(std::move(c).value());
    if (m.checkpoint->config().num_nextn_predict_layers == 0 || !m.backend->ops().runs_drafts())
        limits.max_draft_seqs = 0;
    std::vector<int32_t> map;
    if (!m.checkpoint->config().engram_layer_ids.empty()) {
        Result<Tokenizer> tokenizer = Tokenizer::load(dir);
        if (!tokenizer.ok()) return tokenizer.status();
        EngramTokenMap built = engram_token_map(tokenizer.value());
        const int64_t expected = m.checkpoint->config().engram_compressed_vocab_size;
        if (built.count != expected) {
            return Status(StatusCode::kInvalidFile,
                          dir + ": the tokenizer folds to " + std::to_string(built.count) +
                              " compressed ids, config.json says engram_compressed_vocab_size " +
                              std::to_string(expected));
        }
        map = std::move(built.map);
    }
    Result<std::unique_ptr<DeepseekV41>> model =
        DeepseekV41::load(*m.checkpoint, *m.backend, std::move(map), limits);
    if (!model.ok()) return model.status();
    m.model = std::move(model).value();
    return m;
}

Result<std::unique_ptr<LoneSequence>> LoneSequence::create(DeepseekV41& model, int64_t max_tokens) {
    std::unique_ptr<LoneSequence> s(new LoneSequence(model));
    DI_RETURN_IF_ERROR(s->allocate(max_tokens));
    return s;
}

Tensor LoneSequence::take(DType t, std::initializer_list<int64_t> dims, Status& status) {
    Tensor tensor(nullptr, t, dims);
    Device& device = model_.backend().device();
    Result<Buffer> b = device.allocate(static_cast<size_t>(tensor.bytes()));
    if (!b.ok()) {
        status = b.status();
        return tensor;
    }
    tensor.data = b->data();
    // Fresh memory is filled with NaN codes, so that reading a row before it was written shows.
    const std::vector<uint8_t> poison(static_cast<size_t>(tensor.bytes()), 0xFF);
    device.copy_to_device(device.stream(), tensor.data, poison.data(), poison.size());
    device.stream().synchronize();
    buffers_.push_back(std::move(b).value());
    return tensor;
}

Status LoneSequence::allocate(int64_t max_tokens) {
    const CacheGeometry& g = model_.cache_geometry();
    const DType acc = model_.backend().ops().acc;
    cache_.num_slots = 1;
    cache_.num_blocks = (max_tokens + g.block_tokens - 1) / g.block_tokens;
    Status status;
    for (const CacheGeometry::Layer& l : g.layers) {
        CacheView::Layer v;
        v.window_ring = take(DType::kU8, {1, g.ring_len, l.window_row_bytes}, status);
        if (l.kv_source) {
            v.entries_per_block = g.block_tokens / l.ratio;
            const int64_t entries = cache_.num_blocks * v.entries_per_block;
            v.kv_pool = take(DType::kU8, {entries, l.kv_entry_bytes}, status);
            v.key_pool = take(DType::kU8, {entries, l.index_key_bytes}, status);
            const int64_t dh = model_.config().head_dim;
            if (l.tail_row_bytes > 0) v.tail = take(acc, {1, g.tail_len, 2, dh}, status);
        }
        DI_RETURN_IF_ERROR(status);
        cache_.layers.push_back(v);
    }
    return status;
}

Tensor LoneSequence::append(const std::vector<int32_t>& tokens,
                            const std::vector<int32_t>& logit_rows,
                            const ForwardHooks* hooks) {
    Batch batch;
    SequenceChunk chunk;
    chunk.start_pos = static_cast<int32_t>(ids_.size());
    chunk.num_tokens = static_cast<int32_t>(tokens.size());
    const int64_t end = length() + static_cast<int64_t>(tokens.size()),
                  block = model_.cache_geometry().block_tokens;
    DI_CHECK_LE(end, cache_.num_blocks * block);
    for (int64_t b = 0; b * block < end; ++b) chunk.block_ids.push_back(static_cast<int32_t>(b));
    const int64_t back = std::min<int64_t>(
        length(), std::max<int64_t>(0, model_.config().engram_max_ngram_size - 1));
    chunk.lookback.assign(ids_.end() - back, ids_.end());
    for (int64_t i = 0; i < back; ++i) {  // positions of a span are dead
        if (image_row(length() - back + i) != nullptr) chunk.lookback[static_cast<size_t>(i)] = -1;
    }
    batch.seqs.push_back(chunk);
    batch.token_ids = tokens;
    for (int64_t p = length(); p < end && !spans_.empty(); ++p) {
        const bf16* row = image_row(p);
        batch.image_rows.push_back(row != nullptr);
        if (row != nullptr) batch.image_embeds.push_back(row);
    }
    batch.logit_rows = logit_rows;
    ids_.insert(ids_.end(), tokens.begin(), tokens.end());
    return model_.forward(batch, cache_, hooks);
}

const bf16* LoneSequence::image_row(int64_t position) const {
    for (const Span& s : spans_) {
        if (position >= s.begin && position < s.end())
            return s.image->rows.data() + (position - s.begin) * model_.config().hidden_size;
    }
    return nullptr;
}

DraftResult LoneSequence::draft(int32_t anchor, const DraftChooser& choose, int block_size) {
    DraftBatch batch;
    batch.seqs.push_back({0, static_cast<int32_t>(length()), anchor, 0});
    batch.block_size = block_size;
    return model_.draft(batch, cache_, choose);
}

void LoneSequence::truncate(int64_t length) {
    DI_CHECK(length == 0 ||
             (length <= this->length() && this->length() - length <= model_.limits().ring_extra));
    ids_.resize(static_cast<size_t>(length));
}

std::vector<uint8_t> to_host(Backend& backend, const Tensor& t) {
    DI_CHECK(t.dense());
    std::vector<uint8_t> out(static_cast<size_t>(t.bytes()));
    backend.device().copy_to_host(backend.device().stream(), out.data(), t.data, out.size());
    backend.device().stream().synchronize();
    return out;
}

std::vector<double> acc_to_host(Backend& backend, const Tensor& t) {
    const std::vector<uint8_t> raw = to_host(backend, t);
    std::vector<double> out(static_cast<size_t>(t.numel()));
    dispatch_acc(t.dtype, [&](auto tag) {
        for (size_t i = 0; i < out.size(); ++i) {
            decltype(tag) v;
            std::memcpy(&v, raw.data() + i * sizeof v, sizeof v);
            out[i] = static_cast<double>(v);
        }
    });
    return out;
}

}  // namespace deepinfer
