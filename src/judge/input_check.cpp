#include "judge/input_check.h"

#include <algorithm>
#include <vector>

namespace deepinfer {
namespace {

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidFile, what};
}

/// Layer of "L12.name", or -1.
int64_t layer_of(const std::string& key) {
    if (key.size() < 3 || key[0] != 'L') return -1;
    int64_t l = 0;
    size_t i = 1;
    for (; i < key.size() && key[i] >= '0' && key[i] <= '9' && i < 6; ++i)
        l = 10 * l + (key[i] - '0');
    return i > 1 && i < key.size() && key[i] == '.' ? l : -1;
}

Status check_ascending(const NamedTensor& t, const std::string& name, int64_t limit) {
    if (t.shape.size() != 1) return invalid(name + " must be a vector");
    Result<std::vector<int32_t>> v = int_values(t, name);
    if (!v.ok()) return v.status();
    int64_t last = -1;
    for (int32_t x : v.value()) {
        if (x <= last || x >= limit) {
            return invalid(name + " holds " + std::to_string(x) +
                           ", expected ascending numbers from 0 to " + std::to_string(limit - 1));
        }
        last = x;
    }
    return {};
}

Status check_experts(const NamedTensor& t,
                     const std::string& name,
                     const ModelConfig& config,
                     const PhaseShape& phase) {
    const int64_t k = config.num_experts_per_tok;
    if (t.shape.size() != 2 || t.dim(0) != phase.num_rows || t.dim(1) != k) {
        return invalid(name + " must be [" + std::to_string(phase.num_rows) + ", " +
                       std::to_string(k) + "]");
    }
    Result<std::vector<int32_t>> ids = int_values(t, name);
    if (!ids.ok()) return ids.status();
    for (size_t i = 0; i < ids->size(); ++i) {
        const int32_t id = ids.value()[i];
        const bool first = i % static_cast<size_t>(k) == 0;
        if (id < 0 || id >= config.n_routed_experts || (!first && id <= ids.value()[i - 1])) {
            return invalid(name + " row " + std::to_string(i / static_cast<size_t>(k)) +
                           " holds expert " + std::to_string(id) +
                           ", expected distinct ascending experts below " +
                           std::to_string(config.n_routed_experts));
        }
    }
    return {};
}

/// Bit j of row i stands for entry (or block) j of the row at its position.
Status check_mask(const NamedTensor& t,
                  const std::string& name,
                  const std::vector<int32_t>& row_numbers,
                  int64_t bits,
                  int64_t most,
                  int64_t per_bit,
                  int64_t ratio,
                  const PhaseShape& phase) {
    const auto rows = static_cast<int64_t>(row_numbers.size());
    const int64_t width = (bits + 7) / 8;
    if (t.dtype != "U8" || t.shape.size() != 2 || t.dim(0) != rows || t.dim(1) != width) {
        return invalid(name + " must be U8 [" + std::to_string(rows) + ", " +
                       std::to_string(width) + "]");
    }
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t position = phase.first_position + row_numbers[static_cast<size_t>(i)];
        const int64_t visible = ((position + 1) / ratio + per_bit - 1) / per_bit;
        int64_t count = 0;
        for (int64_t j = 0; j < width * 8; ++j) {
            if (((t.bytes[static_cast<size_t>(i * width + j / 8)] >> (j % 8)) & 1) == 0) continue;
            ++count;
            if (j >= visible) {
                return invalid(name + " row " + std::to_string(i) + " picks " + std::to_string(j) +
                               ", the row at position " + std::to_string(position) + " sees " +
                               std::to_string(visible));
            }
        }
        if (count > most) {
            return invalid(name + " row " + std::to_string(i) + " picks " + std::to_string(count) +
                           ", at most " + std::to_string(most) + " are kept");
        }
    }
    return {};
}

}  // namespace

Status check_given(const TensorMap& file,
                   const ModelConfig& config,
                   const PhaseShape& phase,
                   const std::string& where) {
    for (const auto& [name, t] : file) {
        const bool entries = name.ends_with(".entries"), steps = name.ends_with(".topk_steps");
        if (!entries && !steps) continue;
        const int64_t l = layer_of(name);
        const bool known = l >= 0 && l < config.num_hidden_layers &&
                           (entries ? config.is_kv_source(l) : config.is_index_source(l));
        if (!known) return invalid(where + ": " + name + " names a layer that has none");
        const int64_t limit = entries ? phase.total_tokens / config.ratio(l) : phase.num_rows;
        if (steps && !phase.decode) continue;
        if (entries && phase.decode) continue;
        Status s = check_ascending(t, where + ": " + name, limit);
        if (!s.ok()) return s;
    }
    return {};
}

Status check_choices(const TensorMap& choices, const ModelConfig& config, const PhaseShape& phase) {
    for (const auto& [name, t] : choices) {
        if (name == "draft.tokens") continue;  // the draft recorder's
        const int64_t l = layer_of(name);
        const bool topk = name.ends_with(".topk_mask"),
                   candidates = name.ends_with(".candidate_mask");
        const bool steps = name.ends_with(".topk_steps");
        const bool known = l >= 0 && l < config.num_hidden_layers &&
                           (!(topk || steps) || config.is_index_source(l)) &&
                           (!candidates || l == config.candidate_source_layer_id);
        if (!known) return invalid("--force: " + name + " names a layer that makes no such choice");
        if (steps) {
            DI_RETURN_IF_ERROR(check_ascending(t, "--force: " + name, phase.num_rows));
            continue;
        }
        if (!topk && !candidates) {
            DI_RETURN_IF_ERROR(check_experts(t, "--force: " + name, config, phase));
            continue;
        }
        std::vector<int32_t> rows;
        const auto listed = choices.find("L" + std::to_string(l) + ".topk_steps");
        if (phase.decode && listed != choices.end()) {
            DI_RETURN_IF_ERROR(
                check_ascending(listed->second, "--force: " + listed->first, phase.num_rows));
            rows = int_values(listed->second, listed->first).value();
        } else {
            for (int64_t i = 0; i < phase.num_rows; ++i) rows.push_back(static_cast<int32_t>(i));
        }
        const int64_t entries = phase.total_tokens / config.ratio(l);
        const int64_t per_bit = candidates ? config.candidate_block_size : 1;
        DI_RETURN_IF_ERROR(check_mask(t,
                                      "--force: " + name,
                                      rows,
                                      (entries + per_bit - 1) / per_bit,
                                      candidates ? config.candidate_topk_blocks : config.index_topk,
                                      per_bit,
                                      config.ratio(l),
                                      phase));
    }
    return {};
}

}  // namespace deepinfer
