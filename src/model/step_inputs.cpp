#include "model/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace deepinfer {

StepInputs::StepInputs(const ModelConfig& config,
                       const ModelLimits& limits,
                       std::vector<int32_t> token_map)
    : config_(config), limits_(limits), token_map_(std::move(token_map)) {
    const size_t rows = static_cast<size_t>(limits.max_rows),
                 seqs = static_cast<size_t>(limits.max_seqs);
    max_blocks_ = (limits.max_positions + limits.block_tokens - 1) / limits.block_tokens;
    std::set<int64_t> ratios;
    for (int64_t l : config.kv_source_layer_ids) ratios.insert(config.ratio(l));
    ratios_.assign(ratios.begin(), ratios.end());

    levels_.push_back(reserve_level());
    seq_slot_ = reserve(seqs * 4);
    token_ids_ = reserve(rows * 4);
    image_row_ids_ = reserve(config.has_vision ? rows * 4 : 0);
    logit_rows_ = reserve(static_cast<size_t>(limits.max_logit_rows) * 4);
    for (int64_t r : ratios_) {
        entry_rows_[r] = reserve(rows * 4);
        entry_positions_[r] = reserve(rows * 4);
        entry_slots_[r] = reserve(rows * 8);
    }
    // The last one: only what the step's contexts need of it travels.
    block_table_ = reserve(seqs * static_cast<size_t>(max_blocks_) * 4);
    level_begin_ = used_;
    for (int k = 0; k < limits.truncation.num_levels(); ++k) levels_.push_back(reserve_level());
    if (config.has_vision) image_staging_.resize(rows * static_cast<size_t>(config.hidden_size));
}

StepInputs::LevelArrays StepInputs::reserve_level() {
    const size_t rows = static_cast<size_t>(limits_.max_rows),
                 seqs = static_cast<size_t>(limits_.max_seqs);
    LevelArrays a;
    a.positions = reserve(rows * 4);
    a.row_seq = reserve(rows * 4);
    a.seq_rows = reserve((seqs + 1) * 4);
    a.seq_start = reserve(seqs * 4);
    a.window_floor = reserve(seqs * 4);
    a.from = reserve(rows * 4);
    a.ngrams = reserve(rows * static_cast<size_t>(config_.engram_max_ngram_size) * 4);
    a.image_rows = reserve(rows);
    return a;
}

StepInputs::Array StepInputs::reserve(size_t bytes) {
    const Array a{used_, bytes};
    used_ += (bytes + 255) / 256 * 256;
    return a;
}

size_t StepInputs::device_bytes() const {
    return used_ + image_staging_.size() * sizeof(bf16);
}

void StepInputs::bind(void* device_memory, HostBuffer staging) {
    DI_CHECK_GE(staging.bytes(), used_);
    device_ = device_memory;
    staging_ = std::move(staging);
}

std::vector<int64_t> StepInputs::shapes() const {
    std::vector<int64_t> s{
        logit_rows.dim(0), max_end, table_blocks_, image_row_ids.dim(0), draft_windows ? 1 : 0};
    for (const RowSet& set : row_sets) {
        s.push_back(set.view.num_rows());
        s.push_back(set.view.num_seqs());
        s.push_back(set.image_rows ? 1 : 0);
    }
    for (const auto& [ratio, e] : entries) s.push_back(e.rows.dim(0));
    return s;
}

void StepInputs::build_ngrams(const Batch& batch) {
    const int64_t n = config_.engram_max_ngram_size;
    if (config_.engram_layer_ids.empty()) return;
    const int32_t pad = token_map_[static_cast<size_t>(config_.engram_pad_token_id)];
    int32_t* out = host<int32_t>(levels_[0].ngrams);
    int64_t row = 0;
    for (const SequenceChunk& seq : batch.seqs) {
        const int64_t back = static_cast<int64_t>(seq.lookback.size());
        for (int64_t i = 0; i < seq.num_tokens; ++i, ++row) {
            bool alive =
                true;  // a look-back ends for good at the sequence start or at an image token
            for (int64_t s = 0; s < n; ++s) {
                int32_t id = -1;
                if (i - s >= 0) {
                    const bool dead = !batch.image_rows.empty() &&
                                      batch.image_rows[static_cast<size_t>(row - s)] != 0;
                    id = dead ? -1 : batch.token_ids[static_cast<size_t>(row - s)];
                } else if (back + i - s >= 0) {
                    id = seq.lookback[static_cast<size_t>(back + i - s)];
                }
                alive = alive && id >= 0;
                out[row * n + s] = alive ? token_map_[static_cast<size_t>(id)] : pad;
            }
        }
    }
}

/// The rows that each higher level keeps, by the arrays of the level before.
void StepInputs::build_levels(const Batch& batch) {
    const int64_t n = config_.engram_max_ngram_size;
    int64_t rows = batch.num_rows();
    const int64_t seqs = static_cast<int64_t>(batch.seqs.size());
    for (size_t level = 1; level < levels_.size(); ++level) {
        const LevelArrays &before = levels_[level - 1], &a = levels_[level];
        const int32_t *positions = host<int32_t>(before.positions),
                      *row_seq = host<int32_t>(before.row_seq);
        int32_t kept = 0;
        int64_t row = 0;
        for (int64_t b = 0; b < seqs; ++b) {
            const SequenceChunk& seq = batch.seqs[static_cast<size_t>(b)];
            const int64_t first =
                seq.prompt_tokens == 0
                    ? 0
                    : limits_.truncation.first_row(static_cast<int>(level), seq.prompt_tokens);
            host<int32_t>(a.seq_rows)[b] = kept;
            host<int32_t>(a.seq_start)[b] =
                static_cast<int32_t>(std::max<int64_t>(seq.start_pos, first));
            host<int32_t>(a.window_floor)[b] =
                static_cast<int32_t>(std::max<int64_t>(seq.window_floor, first));
            for (; row < rows && row_seq[row] == b; ++row) {
                if (positions[row] < first) continue;
                host<int32_t>(a.positions)[kept] = positions[row];
                host<int32_t>(a.row_seq)[kept] = static_cast<int32_t>(b);
                host<int32_t>(a.from)[kept] = static_cast<int32_t>(row);
                std::copy_n(
                    host<int32_t>(before.ngrams) + row * n, n, host<int32_t>(a.ngrams) + kept * n);
                host<uint8_t>(a.image_rows)[kept] = host<uint8_t>(before.image_rows)[row];
                ++kept;
            }
        }
        host<int32_t>(a.seq_rows)[seqs] = kept;
        // Logit rows follow: whoever wants logits of a row that skips the head asks wrongly.
        int32_t* logits = host<int32_t>(logit_rows_);
        const int32_t* from = host<int32_t>(a.from);
        for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
            const int32_t* at = std::lower_bound(from, from + kept, logits[i]);
            DI_CHECK_MSG(at != from + kept && *at == logits[i],
                         "logits of a row that prefill truncation skips");
            logits[i] = static_cast<int32_t>(at - from);
        }
        rows = kept;
    }
}

RowSet StepInputs::set_of(const LevelArrays& a, int64_t rows, int64_t seqs, bool images) const {
    RowSet set;
    set.view.positions = Tensor(device(a.positions), DType::kI32, {rows});
    set.view.row_seq = Tensor(device(a.row_seq), DType::kI32, {rows});
    set.view.seq_rows = Tensor(device(a.seq_rows), DType::kI32, {seqs + 1});
    set.view.seq_start = Tensor(device(a.seq_start), DType::kI32, {seqs});
    set.view.seq_slot = Tensor(device(seq_slot_), DType::kI32, {seqs});
    set.view.window_floor = Tensor(device(a.window_floor), DType::kI32, {seqs});
    set.view.block_table = Tensor(device(block_table_), DType::kI32, {seqs, table_blocks_});
    set.from = Tensor(device(a.from), DType::kI32, {rows});
    set.ngrams = Tensor(device(a.ngrams), DType::kI32, {rows, config_.engram_max_ngram_size});
    if (images) set.image_rows = Tensor(device(a.image_rows), DType::kU8, {rows});
    return set;
}

void StepInputs::build_images(const Batch& batch, Device& dev) {
    const auto n = static_cast<int64_t>(batch.image_embeds.size()), d = config_.hidden_size;
    DI_CHECK_EQ(std::count(batch.image_rows.begin(), batch.image_rows.end(), 1), n);
    image_row_ids = Tensor(device(image_row_ids_), DType::kI32, {n});
    image_embeds = Tensor(static_cast<uint8_t*>(device_) + used_, DType::kBF16, {n, d});
    if (n == 0) return;
    DI_CHECK_LE(n * d, static_cast<int64_t>(image_staging_.size()));
    int64_t k = 0;
    for (int64_t row = 0; row < batch.num_rows(); ++row) {
        if (batch.image_rows[static_cast<size_t>(row)] == 0) continue;
        host<int32_t>(image_row_ids_)[k] = static_cast<int32_t>(row);
        std::copy_n(batch.image_embeds[static_cast<size_t>(k)], d, image_staging_.data() + k * d);
        ++k;
    }
    dev.copy_to_device(dev.stream(),
                       image_embeds.data,
                       image_staging_.data(),
                       static_cast<size_t>(n * d) * sizeof(bf16));
}

void StepInputs::build(const Batch& batch,
                       const CacheGeometry& geometry,
                       Device& dev,
                       bool padded) {
    const int64_t rows = batch.num_rows(), seqs = static_cast<int64_t>(batch.seqs.size());
    const int64_t logits = static_cast<int64_t>(batch.logit_rows.size());
    const LevelArrays& all = levels_[0];
    bool cut = false;  // some row belongs to a prompt that truncation applies to
    DI_CHECK_LE(rows, limits_.max_rows);
    DI_CHECK_LE(seqs, limits_.max_seqs);
    DI_CHECK_LE(logits, limits_.max_logit_rows);
    DI_CHECK(batch.image_rows.empty() || static_cast<int64_t>(batch.image_rows.size()) == rows);
    if (batch.image_rows.empty()) std::fill_n(host<uint8_t>(all.image_rows), rows, uint8_t{0});

    draft_windows = batch.draft_windows;
    std::map<int64_t, int64_t> counts;
    max_end = 0;
    for (const SequenceChunk& seq : batch.seqs)
        max_end = std::max(max_end, static_cast<int64_t>(seq.start_pos) + seq.num_tokens);
    DI_CHECK_LE(max_end, limits_.max_positions);
    if (padded)
        max_end = std::min(limits_.max_positions, (max_end + kEndGrid - 1) / kEndGrid * kEndGrid);
    // A sequence may own more blocks than its rows need; those beyond max_end are never looked at.
    table_blocks_ =
        std::max<int64_t>(1, (max_end + geometry.block_tokens - 1) / geometry.block_tokens);
    std::fill_n(host<int32_t>(block_table_), seqs * table_blocks_, -1);
    int64_t row = 0;
    for (int64_t b = 0; b < seqs; ++b) {
        const SequenceChunk& seq = batch.seqs[static_cast<size_t>(b)];
        const int64_t end = static_cast<int64_t>(seq.start_pos) + seq.num_tokens;
        DI_CHECK_LE(end, static_cast<int64_t>(seq.block_ids.size()) * geometry.block_tokens);
        DI_CHECK_LE(static_cast<int64_t>(seq.block_ids.size()), max_blocks_);
        DI_CHECK_GE(static_cast<int64_t>(seq.lookback.size()),
                    std::min<int64_t>(seq.start_pos,
                                      std::max<int64_t>(0, config_.engram_max_ngram_size - 1)));
        cut = cut || seq.start_pos < seq.prompt_tokens;
        host<int32_t>(all.seq_rows)[b] = static_cast<int32_t>(row);
        host<int32_t>(all.seq_start)[b] = seq.start_pos;
        host<int32_t>(seq_slot_)[b] = seq.slot;
        host<int32_t>(all.window_floor)[b] = seq.window_floor;
        std::copy_n(seq.block_ids.begin(),
                    std::min(static_cast<int64_t>(seq.block_ids.size()), table_blocks_),
                    host<int32_t>(block_table_) + b * table_blocks_);
        for (int64_t i = 0; i < seq.num_tokens; ++i, ++row) {
            const int64_t p = seq.start_pos + i;
            host<int32_t>(all.positions)[row] = static_cast<int32_t>(p);
            host<int32_t>(all.row_seq)[row] = static_cast<int32_t>(b);
            for (int64_t r : ratios_) {
                if ((p + 1) % r != 0) continue;
                const int64_t e = counts[r]++, entry = p / r, per_block = geometry.block_tokens / r;
                host<int32_t>(entry_rows_[r])[e] = static_cast<int32_t>(row);
                host<int32_t>(entry_positions_[r])[e] = static_cast<int32_t>(entry * r);
                const int64_t block = seq.block_ids[static_cast<size_t>(entry / per_block)];
                host<int64_t>(entry_slots_[r])[e] =
                    p >= seq.write_from ? block * per_block + entry % per_block : -1;
            }
        }
    }
    DI_CHECK_EQ(row, rows);
    host<int32_t>(all.seq_rows)[seqs] = static_cast<int32_t>(rows);
    std::copy(batch.token_ids.begin(), batch.token_ids.end(), host<int32_t>(token_ids_));
    std::copy(batch.image_rows.begin(), batch.image_rows.end(), host<uint8_t>(all.image_rows));
    std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), host<int32_t>(logit_rows_));
    build_ngrams(batch);
    if (cut) build_levels(batch);
    build_images(batch, dev);
    for (int64_t r : ratios_) {
        if (!padded || counts[r] == 0) continue;
        for (int64_t& e = counts[r]; e < rows; ++e) {  // repeats of the first entry, stored nowhere
            host<int32_t>(entry_rows_[r])[e] = host<int32_t>(entry_rows_[r])[0];
            host<int32_t>(entry_positions_[r])[e] = host<int32_t>(entry_positions_[r])[0];
            host<int64_t>(entry_slots_[r])[e] = -1;
        }
    }

    // One copy moves nearly everything; a host backend reads the staging memory by the same path.
    dev.copy_to_device(dev.stream(),
                       device_,
                       staging_.data(),
                       block_table_.offset + static_cast<size_t>(seqs * table_blocks_) * 4);
    if (cut) {
        dev.copy_to_device(dev.stream(),
                           static_cast<uint8_t*>(device_) + level_begin_,
                           staging_.data() + level_begin_,
                           used_ - level_begin_);
    }

    row_sets.clear();
    for (size_t level = 0; level < (cut ? levels_.size() : 1); ++level) {
        const int64_t n = level == 0 ? rows : host<int32_t>(levels_[level].seq_rows)[seqs];
        row_sets.push_back(set_of(levels_[level], n, seqs, !batch.image_rows.empty()));
    }
    token_ids = Tensor(device(token_ids_), DType::kI32, {rows});
    logit_rows = Tensor(device(logit_rows_), DType::kI32, {logits});
    entries.clear();
    for (int64_t r : ratios_) {
        const int64_t e = counts[r];
        entries[r] = {Tensor(device(entry_rows_[r]), DType::kI32, {e}),
                      Tensor(device(entry_positions_[r]), DType::kI32, {e}),
                      Tensor(device(entry_slots_[r]), DType::kI64, {e})};
    }
}

}  // namespace deepinfer
