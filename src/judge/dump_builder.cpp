#include "judge/dump_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

std::string key_of(int layer, const std::string& name) {
    return layer < 0 ? name : "L" + std::to_string(layer) + "." + name;
}

// Sizes of what a dump keeps of the caches (tests/data/golden/README.md, "What a dump holds").
int64_t window_rows_kept(const ModelConfig& c) {
    return std::min<int64_t>(c.sliding_window, std::max<int64_t>(16, 16384 / c.head_dim));
}
constexpr int64_t kTailRows = 32;
constexpr int64_t kAllEntriesElements = 65536;

}  // namespace

// ---- forced choices
// ------------------------------------------------------------------------------------

Status ForcedChoices::load(const std::vector<std::string>& paths,
                           const ModelConfig& config,
                           const PhaseShape& phase) {
    for (const std::string& path : paths) {
        Result<TensorMap> file = read_tensor_file(path);
        if (!file.ok()) return file.status();
        const bool is_decode = file->count("prompt_ids") > 0;
        if (is_decode != phase.decode) continue;
        for (auto& [name, t] : file.value()) {
            const bool choice = name.ends_with(".expert_ids") || name.ends_with(".topk_mask") ||
                                name.ends_with(".candidate_mask") ||
                                name.ends_with(".topk_steps") || name == "draft.tokens";
            if (choice) tensors_[name] = std::move(t);
        }
    }
    DI_RETURN_IF_ERROR(check_choices(tensors_, config, phase));
    for (auto& [name, t] : tensors_) {
        if (name.ends_with(".expert_ids")) t = i32_tensor(t.shape, int_values(t, name).value());
    }
    const auto drafts = tensors_.find("draft.tokens");
    if (drafts == tensors_.end()) return {};
    NamedTensor& t = drafts->second;
    Result<std::vector<int32_t>> ids = int_values(t, drafts->first);
    if (!ids.ok()) return ids.status();
    for (int32_t id : ids.value()) {
        if (id < 0 || id >= config.vocab_size) {
            return Status(StatusCode::kInvalidFile,
                          "draft.tokens holds id " + std::to_string(id) + ", the vocabulary has " +
                              std::to_string(config.vocab_size));
        }
    }
    if (t.shape.size() != 2 || t.dim(1) != 1 + config.dspark_block_size) {
        return Status(StatusCode::kInvalidFile,
                      "draft.tokens must be [steps, " +
                          std::to_string(1 + config.dspark_block_size) +
                          "]: the anchor and a block");
    }
    t = i32_tensor(t.shape, ids.value());
    return {};
}

const NamedTensor* ForcedChoices::draft_tokens() const {
    const auto it = tensors_.find("draft.tokens");
    return it == tensors_.end() ? nullptr : &it->second;
}

void ForcedChoices::apply(
    const std::string& name, int layer, int64_t row, const Tensor& choice, Backend& backend) const {
    const std::string stored = name == "expert_ids" ? name
                               : name == "topk"     ? "topk_mask"
                                                    : "candidate_mask";
    const auto it = tensors_.find(key_of(layer, stored));
    if (it == tensors_.end()) return;
    const NamedTensor& t = it->second;
    const int64_t rows = choice.dim(0), k = choice.dim(1), file_rows = t.dim(0), width = t.dim(1);
    std::vector<uint8_t> raw = to_host(backend, choice);
    auto* values = reinterpret_cast<int32_t*>(raw.data());
    // Masks of decode steps may be stored for some steps only.
    std::vector<int32_t> steps;
    const auto step_tensor = tensors_.find(key_of(layer, "topk_steps"));
    if (name != "expert_ids" && step_tensor != tensors_.end()) {
        Result<std::vector<int32_t>> s = int_values(step_tensor->second, "topk_steps");
        if (s.ok()) steps = std::move(s).value();
    }
    for (int64_t i = 0; i < rows; ++i) {
        int64_t at = row + i;
        if (!steps.empty()) {
            const auto found = std::find(steps.begin(), steps.end(), static_cast<int32_t>(at));
            if (found == steps.end()) continue;
            at = found - steps.begin();
        }
        if (at >= file_rows) continue;
        int32_t* out = values + i * k;
        if (name == "expert_ids") {
            std::memcpy(out, t.bytes.data() + at * k * 4, static_cast<size_t>(k) * 4);
            continue;
        }
        std::fill_n(out, k, -1);
        int64_t n = 0;
        for (int64_t j = 0; j < width * 8 && n < k; ++j) {
            if ((t.bytes[static_cast<size_t>(at * width + j / 8)] >> (j % 8)) & 1)
                out[n++] = static_cast<int32_t>(j);
        }
    }
    backend.device().copy_to_device(backend.device().stream(), choice.data, raw.data(), raw.size());
    backend.device().stream().synchronize();
}

// ---- builder
// -------------------------------------------------------------------------------------------

DumpBuilder::DumpBuilder(LoneSequence& sequence, const Phase& phase, const ForcedChoices& forced)
    : sequence_(sequence),
      config_(sequence.model().config()),
      backend_(sequence.model().backend()),
      phase_(phase),
      forced_(forced) {
    stored_.assign(static_cast<size_t>(phase_.num_rows), 0);
    for (int32_t r : phase_.rows) stored_[static_cast<size_t>(r)] = 1;
    const auto n = static_cast<size_t>(phase_.num_rows);
    argmax_.assign(n, 0);
    margin_.assign(n, 0);
    if (!phase_.decode && n > 0) logprob_next_.assign(n - 1, 0);
}

ForwardHooks DumpBuilder::hooks(int64_t first) {
    base_ = first;
    ForwardHooks h;
    h.observe = [this](const char* name, int layer, int64_t row, const Tensor& value) {
        observe(name, layer, base_ + row, value);
    };
    if (!forced_.empty()) {
        h.replace = [this](const char* name, int layer, int64_t row, const Tensor& choice) {
            forced_.apply(name, layer, base_ + row, choice, backend_);
        };
    }
    return h;
}

void DumpBuilder::observe(const char* name_chars, int layer, int64_t first, const Tensor& value) {
    static const std::set<std::string> kRowTensors = {"attn_pre",
                                                      "attn_post",
                                                      "attn_comb",
                                                      "ffn_pre",
                                                      "ffn_post",
                                                      "ffn_comb",
                                                      "attn_o",
                                                      "attn_out",
                                                      "moe_out",
                                                      "x",
                                                      "engram_out",
                                                      "main_hidden",
                                                      "q"};
    const std::string name = name_chars;
    const int first_source =
        config_.kv_source_layer_ids.empty() ? -1 : static_cast<int>(config_.kv_source_layer_ids[0]);
    if (name == "expert_ids" || name == "expert_weights" || name == "engram_hash") {
        keep_rows(key_of(layer, name), first, value, true);
    } else if (name == "topk") {
        keep_mask(key_of(layer, "topk_mask"),
                  first,
                  value,
                  entries_at_end(config_.ratio(layer)),
                  wanted_steps(layer));
    } else if (name == "candidate_blocks") {
        const int64_t size = config_.candidate_block_size;
        keep_mask(key_of(layer, "candidate_mask"),
                  first,
                  value,
                  (entries_at_end(config_.ratio(layer)) + size - 1) / size,
                  wanted_steps(layer));
    } else if (phase_.decode) {
        // Of the streams, decode keeps the first layer, the first kv source and the last layer.
        if (name == "x" &&
            (layer == 0 || layer == first_source || layer == config_.num_hidden_layers - 1)) {
            keep_rows(key_of(layer, name), first, value, true);
        }
    } else if (name == "index_score") {
        keep_scores(layer, first, value);
    } else if (name == "latent") {
        keep_latents(layer, base_, value);
    } else if (name == "q" && layer != 0 && layer != first_source) {
        return;
    } else if (kRowTensors.count(name) > 0) {
        keep_rows(key_of(layer, name), first, value, false);
    }
}

void DumpBuilder::keep_rows(const std::string& key,
                            int64_t first,
                            const Tensor& value,
                            bool all_rows) {
    Series& s = series_[key];
    const bool is_bf16 = value.dtype == DType::kBF16, is_int = value.dtype == DType::kI32;
    s.dtype = is_bf16 ? "BF16" : is_int ? "I32" : "F32";
    s.row_shape.assign(value.shape.begin() + 1, value.shape.begin() + value.ndim);
    const int64_t width = value.numel() / std::max<int64_t>(1, value.dim(0));
    std::vector<uint8_t> raw;
    if (is_bf16 || is_int) {
        raw = to_host(backend_, value);
    } else {
        const std::vector<double> d = acc_to_host(backend_, value);
        raw = f32_tensor({}, std::vector<float>(d.begin(), d.end())).bytes;
    }
    const int64_t row_bytes = width * (is_bf16 ? 2 : 4);
    for (int64_t i = 0; i < value.dim(0); ++i) {
        if (!all_rows && stored_[static_cast<size_t>(first + i)] == 0) continue;
        s.bytes.insert(
            s.bytes.end(), raw.begin() + i * row_bytes, raw.begin() + (i + 1) * row_bytes);
    }
}

void DumpBuilder::keep_mask(const std::string& key,
                            int64_t first,
                            const Tensor& lists,
                            int64_t bits,
                            const std::vector<uint8_t>& wanted) {
    Series& s = series_[key];
    const int64_t width = (bits + 7) / 8, k = lists.dim(1);
    s.dtype = "U8";
    s.row_shape = {width};
    const std::vector<uint8_t> raw = to_host(backend_, lists);
    const auto* values = reinterpret_cast<const int32_t*>(raw.data());
    for (int64_t i = 0; i < lists.dim(0); ++i) {
        if (!wanted.empty() && wanted[static_cast<size_t>(first + i)] == 0) continue;
        std::vector<uint8_t> row(static_cast<size_t>(width), 0);
        for (int64_t j = 0; j < k; ++j) {
            const int32_t v = values[i * k + j];
            if (v >= 0) row[static_cast<size_t>(v / 8)] |= static_cast<uint8_t>(1 << (v % 8));
        }
        s.bytes.insert(s.bytes.end(), row.begin(), row.end());
    }
}

void DumpBuilder::keep_scores(int layer, int64_t first, const Tensor& scores) {
    const int64_t total = entries_at_end(config_.ratio(layer)), n = std::min(total, scores.dim(1));
    if (total == 0) return;
    Series& s = series_[key_of(layer, "index_score")];
    s.dtype = "F32";
    s.row_shape = {total};
    for (int64_t i = 0; i < scores.dim(0); ++i) {
        if (stored_[static_cast<size_t>(first + i)] == 0) continue;
        const std::vector<double> d = acc_to_host(backend_, scores.rows(i, i + 1));
        std::vector<float> row(static_cast<size_t>(total), -std::numeric_limits<float>::infinity());
        for (int64_t j = 0; j < n; ++j)
            row[static_cast<size_t>(j)] = static_cast<float>(d[static_cast<size_t>(j)]);
        const std::vector<uint8_t> raw = f32_tensor({}, row).bytes;
        s.bytes.insert(s.bytes.end(), raw.begin(), raw.end());
    }
}

void DumpBuilder::keep_latents(int layer, int64_t first_row, const Tensor& latent) {
    Series& s = series_[key_of(layer, "latent")];
    s.dtype = "BF16";
    s.row_shape = {config_.head_dim};
    const std::vector<int32_t> wanted = wanted_entries(layer);
    const int64_t first_entry = first_row / config_.ratio(layer), row_bytes = config_.head_dim * 2;
    const std::vector<uint8_t> raw = to_host(backend_, latent);
    for (int32_t e : wanted) {
        const int64_t i = e - first_entry;
        if (i >= 0 && i < latent.dim(0))
            s.bytes.insert(
                s.bytes.end(), raw.begin() + i * row_bytes, raw.begin() + (i + 1) * row_bytes);
    }
}

std::vector<int32_t> DumpBuilder::wanted_entries(int layer) const {
    const auto it = phase_.given.find(key_of(layer, "entries"));
    if (it != phase_.given.end()) {
        Result<std::vector<int32_t>> v = int_values(it->second, it->first);
        if (v.ok()) return v.value();
    }
    const int64_t n = entries_at_end(config_.ratio(layer));
    const int64_t keep = std::min(
        n, n * config_.head_dim > kAllEntriesElements ? kAllEntriesElements / config_.head_dim : n);
    std::vector<int32_t> out;
    for (int64_t e = n - keep; e < n; ++e) out.push_back(static_cast<int32_t>(e));
    return out;
}

std::vector<uint8_t> DumpBuilder::wanted_steps(int layer) const {
    const auto it = phase_.given.find(key_of(layer, "topk_steps"));
    if (!phase_.decode || it == phase_.given.end()) return {};
    std::vector<uint8_t> out(static_cast<size_t>(phase_.num_rows), 0);
    Result<std::vector<int32_t>> v = int_values(it->second, it->first);
    if (!v.ok()) return {};
    for (int32_t s : v.value()) {
        if (s >= 0 && s < phase_.num_rows) out[static_cast<size_t>(s)] = 1;
    }
    return out;
}

void DumpBuilder::add_logits(int64_t first,
                             const Tensor& logits,
                             const std::vector<int32_t>& next_ids) {
    Series& s = series_["logits"];
    const int64_t v = logits.dim(1);
    s.dtype = "F32";
    s.row_shape = {v};
    for (int64_t i = 0; i < logits.dim(0); ++i) {
        const std::vector<double> row = acc_to_host(backend_, logits.rows(i, i + 1));
        const auto at = static_cast<size_t>(first + i);
        const auto best =
            std::max_element(row.begin(), row.end());  // the first maximum: smallest id
        argmax_[at] = static_cast<int32_t>(best - row.begin());
        double second = -std::numeric_limits<double>::infinity();
        for (size_t j = 0; j < row.size(); ++j) {
            if (static_cast<int32_t>(j) != argmax_[at]) second = std::max(second, row[j]);
        }
        margin_[at] = static_cast<float>(*best - second);
        if (at < logprob_next_.size()) {
            double sum = 0;
            for (double x : row) sum += std::exp(x - *best);
            logprob_next_[at] = static_cast<float>(
                row[static_cast<size_t>(next_ids[static_cast<size_t>(i)])] - *best - std::log(sum));
        }
        if (phase_.decode || stored_[at] != 0) {
            const std::vector<uint8_t> raw =
                f32_tensor({}, std::vector<float>(row.begin(), row.end())).bytes;
            s.bytes.insert(s.bytes.end(), raw.begin(), raw.end());
        }
    }
}

void DumpBuilder::read_caches(TensorMap& out) {
    const int64_t dh = config_.head_dim, di = config_.index_head_dim, total = phase_.total_tokens;
    const CacheGeometry& geometry = sequence_.model().cache_geometry();
    const int64_t backbone = config_.num_hidden_layers,
                  all = static_cast<int64_t>(geometry.layers.size());
    for (int64_t l = 0; l < all; ++l) {
        const CacheView::Layer& v = sequence_.cache().layers[static_cast<size_t>(l)];
        const std::string p =
            (l < backbone ? "L" + std::to_string(l) : "mtp" + std::to_string(l - backbone)) + ".";
        const int64_t keep = std::min(total, window_rows_kept(config_));
        std::vector<float> window(static_cast<size_t>(keep * dh));
        const std::vector<uint8_t> ring = to_host(backend_, v.window_ring);
        for (int64_t i = 0; i < keep; ++i) {
            const int64_t slot = (total - keep + i) % geometry.ring_len;
            unpack_window_row(
                ring.data() + slot * window_row_bytes(dh), dh, window.data() + i * dh);
        }
        out[p + "window"] = bf16_tensor({keep, dh}, window);
        if (l >= backbone || !config_.is_kv_source(l)) continue;

        // Blocks are in order, so entry e is row e of the pools.
        const int64_t n = entries_at_end(config_.ratio(l));
        std::vector<int32_t> entries = wanted_entries(static_cast<int>(l));
        if (phase_.decode) {
            entries.clear();
            for (int64_t e = std::max<int64_t>(0, n - kTailRows); e < n; ++e)
                entries.push_back(static_cast<int32_t>(e));
        }
        const auto count = static_cast<int64_t>(entries.size());
        if (count == 0) continue;
        std::vector<float> kv(static_cast<size_t>(count * dh)),
            keys(static_cast<size_t>(count * di));
        for (int64_t i = 0; i < count; ++i) {
            const int64_t e = entries[static_cast<size_t>(i)];
            unpack_kv_entry(
                to_host(backend_, v.kv_pool.rows(e, e + 1)).data(), dh, kv.data() + i * dh);
            unpack_index_key(
                to_host(backend_, v.key_pool.rows(e, e + 1)).data(), di, keys.data() + i * di);
        }
        out[p + (phase_.decode ? "kv_tail" : "kv")] = bf16_tensor({count, dh}, kv);
        out[p + (phase_.decode ? "index_key_tail" : "index_key")] = bf16_tensor({count, di}, keys);
        if (!phase_.decode) out[p + "entries"] = i32_tensor({count}, entries);
    }
}

TensorMap DumpBuilder::finish() {
    TensorMap out;
    for (auto& [key, s] : series_) {
        NamedTensor t;
        t.dtype = s.dtype;
        int64_t row_bytes = s.dtype == "BF16" ? 2 : s.dtype == "U8" ? 1 : 4;
        for (int64_t d : s.row_shape) row_bytes *= d;
        if (row_bytes == 0 || s.bytes.empty()) continue;  // tensors without an element are left out
        t.shape = {static_cast<int64_t>(s.bytes.size()) / row_bytes};
        t.shape.insert(t.shape.end(), s.row_shape.begin(), s.row_shape.end());
        t.bytes = std::move(s.bytes);
        out[key] = std::move(t);
    }
    const int64_t n = phase_.num_rows;
    out["margin"] = f32_tensor({n}, margin_);
    if (!phase_.decode) {
        out["argmax"] = i32_tensor({n}, argmax_);
        if (n > 1) out["logprob_next"] = f32_tensor({n - 1}, logprob_next_);
        out["rows"] = i32_tensor({static_cast<int64_t>(phase_.rows.size())}, phase_.rows);
    }
    read_caches(out);
    return out;
}

}  // namespace deepinfer
