// run_forward: a file of tokens in, a file of named tensors out.
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "deepinfer/judge.h"
#include "judge/draft_recorder.h"
#include "judge/dump_builder.h"
#include "judge/pictures.h"
#include "judge/sequence.h"
#include "judge/tensor_file.h"

namespace deepinfer {
namespace {

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidFile, what};
}

Result<std::vector<int32_t>> token_ids(const TensorMap& file,
                                       const std::string& name,
                                       int64_t vocab,
                                       const std::string& path) {
    Result<std::vector<int32_t>> ids = int_values(file.at(name), name);
    if (!ids.ok()) return ids.status();
    if (file.at(name).shape.size() != 1 || ids->empty())
        return invalid(path + ": " + name + " must be a non-empty vector");
    for (int32_t id : ids.value()) {
        if (id < 0 || id >= vocab)
            return invalid(path + ": " + name + " holds id " + std::to_string(id) +
                           ", the vocabulary has " + std::to_string(vocab));
    }
    return ids;
}

/// An input says what is run: tokens, a prompt and its continuation, or a picture alone.
Status check_kind(const TensorMap& file, const std::string& path) {
    const bool tokens =
        file.count("input_ids") > 0 || (file.count("prompt_ids") > 0 && file.count("tokens") > 0);
    if (!tokens && file.count("rgb") == 0)
        return invalid(path + " holds neither input_ids, nor prompt_ids and tokens, nor rgb");
    return {};
}

void copy_given(const TensorMap& file, TensorMap& out) {
    for (const auto& [name, t] : file) {
        const bool describes = name == "input_ids" || name == "rows" || name == "token_types" ||
                               name == "prompt_ids" || name == "rgb" ||
                               name.ends_with(".topk_steps");
        if (describes) out[name] = t;
    }
}

struct Run {
    const ForwardOptions& options;
    LoneSequence& sequence;
    TensorMap file;
    std::vector<EncodedImage> images;
    int64_t done = 0, total = 0;

    /// Puts the pictures into their places among the prompt's ids.
    Status place_images(const std::vector<int32_t>& ids) {
        const auto types = file.find("token_types");
        Result<std::vector<LoneSequence::Span>> spans =
            place_spans(ids,
                        static_cast<int32_t>(sequence.model().config().image_token_id),
                        images,
                        types == file.end() ? nullptr : &types->second,
                        options.input);
        if (!spans.ok()) return spans.status();
        sequence.set_images(std::move(spans).value());
        return {};
    }

    void report(int64_t rows) {
        done += rows;
        if (options.progress) options.progress(done, total);
    }

    /// Feeds ids in chunks; `builder` (may be null) sees every row.
    void prefill(const std::vector<int32_t>& ids, DumpBuilder* builder, const ForwardHooks& plain) {
        const auto n = static_cast<int64_t>(ids.size()), chunk = sequence.model().limits().max_rows;
        for (int64_t begin = 0; begin < n; begin += chunk) {
            const int64_t end = std::min(n, begin + chunk);
            const std::vector<int32_t> part(ids.begin() + begin, ids.begin() + end);
            std::vector<int32_t> rows;
            if (builder != nullptr) {
                rows.resize(part.size());
                std::iota(rows.begin(), rows.end(), 0);
            }
            const ForwardHooks hooks = builder != nullptr ? builder->hooks(begin) : plain;
            const Tensor logits = sequence.append(part, rows, &hooks);
            if (builder != nullptr) {
                std::vector<int32_t> next(ids.begin() + begin + 1,
                                          ids.begin() + std::min(n, end + 1));
                builder->add_logits(begin, logits, next);
            }
            report(end - begin);
        }
    }

    Result<TensorMap> prompt_run() {
        Result<std::vector<int32_t>> ids =
            token_ids(file, "input_ids", sequence.model().config().vocab_size, options.input);
        if (!ids.ok()) return ids.status();
        DI_RETURN_IF_ERROR(place_images(ids.value()));
        const auto n = static_cast<int64_t>(ids->size());
        DumpBuilder::Phase phase;
        phase.num_rows = phase.total_tokens = n;
        phase.given = file;
        if (file.count("rows") > 0) {
            Result<std::vector<int32_t>> rows = int_values(file.at("rows"), "rows");
            if (!rows.ok()) return rows.status();
            phase.rows = std::move(rows).value();
            for (size_t i = 0; i < phase.rows.size(); ++i) {
                if (phase.rows[i] < 0 || phase.rows[i] >= n ||
                    (i > 0 && phase.rows[i] <= phase.rows[i - 1])) {
                    return invalid(options.input + ": rows must ascend within the " +
                                   std::to_string(n) + " tokens");
                }
            }
        } else {
            phase.rows.resize(static_cast<size_t>(n));
            std::iota(phase.rows.begin(), phase.rows.end(), 0);
        }
        const PhaseShape shape{false, n, 0, n};
        DI_RETURN_IF_ERROR(check_given(file, sequence.model().config(), shape, options.input));
        ForcedChoices forced;
        DI_RETURN_IF_ERROR(forced.load(options.force, sequence.model().config(), shape));
        DumpBuilder builder(sequence, phase, forced);
        prefill(ids.value(), &builder, {});
        return builder.finish();
    }

    /// Steps whose draft logits are wanted: what the input says, else none.
    Result<std::vector<int32_t>> draft_logit_steps(int64_t steps) const {
        const auto it = file.find("draft.logit_steps");
        if (it == file.end()) return std::vector<int32_t>();
        Result<std::vector<int32_t>> v = int_values(it->second, it->first);
        if (!v.ok()) return v;
        for (size_t i = 0; i < v->size(); ++i) {
            const int32_t s = v.value()[i];
            if (s < 0 || s >= steps || (i > 0 && s <= v.value()[i - 1])) {
                return invalid(options.input + ": draft.logit_steps must ascend within the " +
                               std::to_string(steps) + " steps");
            }
        }
        return v;
    }

    Result<TensorMap> decode_run() {
        const ModelConfig& config = sequence.model().config();
        Result<std::vector<int32_t>> prompt =
            token_ids(file, "prompt_ids", config.vocab_size, options.input);
        if (!prompt.ok()) return prompt.status();
        DI_RETURN_IF_ERROR(place_images(prompt.value()));
        Result<std::vector<int32_t>> tokens =
            token_ids(file, "tokens", config.vocab_size, options.input);
        if (!tokens.ok()) return tokens.status();
        const auto steps = static_cast<int64_t>(tokens->size()) - 1;
        if (steps < 1)
            return invalid(options.input +
                           ": tokens must hold at least two ids (the last one is only predicted)");
        ForcedChoices prompt_choices, choices;
        const auto prompt_rows = static_cast<int64_t>(prompt->size());
        const PhaseShape steps_shape{true, steps, prompt_rows, prompt_rows + steps};
        DI_RETURN_IF_ERROR(check_given(file, config, steps_shape, options.input));
        DI_RETURN_IF_ERROR(
            prompt_choices.load(options.force, config, {false, prompt_rows, 0, prompt_rows}));
        DI_RETURN_IF_ERROR(choices.load(options.force, config, steps_shape));

        ForwardHooks plain;
        int64_t at = 0;
        plain.replace = [&](const char* name, int layer, int64_t row, const Tensor& choice) {
            prompt_choices.apply(name, layer, at + row, choice, sequence.model().backend());
        };
        const auto n = static_cast<int64_t>(prompt->size()),
                   chunk = sequence.model().limits().max_rows;
        for (; at < n; at += chunk) {
            const std::vector<int32_t> part(prompt->begin() + at,
                                            prompt->begin() + std::min(n, at + chunk));
            sequence.append(part, {}, prompt_choices.empty() ? nullptr : &plain);
            report(static_cast<int64_t>(part.size()));
        }
        DumpBuilder::Phase phase;
        phase.decode = true;
        phase.num_rows = steps;
        phase.total_tokens = n + steps;
        phase.given = file;
        DumpBuilder builder(sequence, phase, choices);
        Result<std::vector<int32_t>> logit_steps = draft_logit_steps(steps);
        if (!logit_steps.ok()) return logit_steps.status();
        const NamedTensor* drafts = choices.draft_tokens();
        if (drafts != nullptr && drafts->dim(0) != steps) {
            return invalid("draft.tokens holds " + std::to_string(drafts->dim(0)) +
                           " steps, expected " + std::to_string(steps));
        }
        DraftRecorder recorder(sequence, steps, std::move(logit_steps).value(), drafts);
        for (int64_t i = 0; i < steps; ++i) {
            const ForwardHooks hooks = builder.hooks(i);
            const Tensor logits =
                sequence.append({tokens.value()[static_cast<size_t>(i)]}, {0}, &hooks);
            builder.add_logits(i, logits, {});
            if (sequence.drafting()) recorder.step(i, tokens.value()[static_cast<size_t>(i) + 1]);
            report(1);
        }
        TensorMap out = builder.finish();
        if (sequence.drafting()) recorder.finish(out);
        std::vector<int32_t> written = tokens.value();
        if (options.backend == "exact") {
            for (int64_t i = 0; i < steps; ++i)
                written[static_cast<size_t>(i) + 1] = builder.argmax(i);
        }
        out["tokens"] = i32_tensor({steps + 1}, written);
        return out;
    }
};

}  // namespace

namespace {

std::string summary_of(const ForwardOptions& options,
                       int64_t rows,
                       size_t tensors,
                       bool drafts,
                       std::chrono::steady_clock::time_point start) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return nlohmann::json{{"output", options.output},
                          {"backend", options.backend},
                          {"rows", rows},
                          {"tensors", tensors},
                          {"drafts", drafts},
                          {"seconds", spent.count()}}
        .dump();
}

/// Adds what describes the run, and writes.
Status write_dump(const ForwardOptions& options, const TensorMap& file, TensorMap* out) {
    TensorMap given;
    copy_given(file, given);
    for (auto& [name, t] : given) out->emplace(name, std::move(t));
    return write_tensor_file(options.output, *out);
}

BackendOptions backend_options(const ForwardOptions& options) {
    BackendOptions b;
    b.num_threads = options.threads;
    b.isa = options.isa;
    return b;
}

Result<TensorMap> run_picture(const ForwardOptions& options, const TensorMap& file) {
    Result<std::unique_ptr<Backend>> backend =
        create_backend(options.backend, backend_options(options));
    if (!backend.ok()) return backend.status();
    const Result<Checkpoint> checkpoint = Checkpoint::open(options.model_dir);
    if (!checkpoint.ok()) return checkpoint.status();
    return picture_run(file, options.input, checkpoint.value(), *backend.value());
}

}  // namespace

Result<std::string> run_forward(const ForwardOptions& options) {
    if (options.chunk < 1)
        return Status(StatusCode::kInvalidArgument, "--chunk must be at least 1");
    const auto start = std::chrono::steady_clock::now();
    Result<TensorMap> file = read_tensor_file(options.input);
    if (!file.ok()) return file.status();
    DI_RETURN_IF_ERROR(check_kind(file.value(), options.input));
    const bool prompt = file->count("input_ids") > 0;
    if (!prompt && file->count("prompt_ids") == 0) {
        Result<TensorMap> out = run_picture(options, file.value());
        if (!out.ok()) return out.status();
        DI_RETURN_IF_ERROR(write_dump(options, file.value(), &out.value()));
        return summary_of(options, out->at("rows").dim(0), out->size(), false, start);
    }
    const int64_t length = prompt ? file->at("input_ids").numel()
                                  : file->at("prompt_ids").numel() + file->at("tokens").numel();

    ModelLimits limits;
    limits.max_rows = std::max<int64_t>(1, std::min(options.chunk, length));
    limits.max_logit_rows = limits.max_rows;
    limits.max_seqs = 1;
    limits.max_draft_seqs = 1;
    Result<LoadedModel> loaded =
        load_model(options.model_dir, options.backend, backend_options(options), limits);
    if (!loaded.ok()) return loaded.status();
    if (length > loaded->model->limits().max_positions) {
        return Status(StatusCode::kOutOfRange,
                      options.input + " holds " + std::to_string(length) +
                          " tokens, the model's context is " +
                          std::to_string(loaded->model->limits().max_positions));
    }
    Result<std::unique_ptr<LoneSequence>> sequence = LoneSequence::create(*loaded->model, length);
    if (!sequence.ok()) return sequence.status();
    Result<std::vector<EncodedImage>> images =
        encode_pictures(options.images, *loaded->checkpoint, *loaded->backend);
    if (!images.ok()) return images.status();
    Run run{options,
            *sequence.value(),
            std::move(file).value(),
            std::move(images).value(),
            0,
            prompt ? length : length - 1};
    Result<TensorMap> out = prompt ? run.prompt_run() : run.decode_run();
    if (!out.ok()) return out.status();
    DI_RETURN_IF_ERROR(write_dump(options, run.file, &out.value()));
    return summary_of(
        options, run.total, out->size(), loaded->model->limits().max_draft_seqs > 0, start);
}

}  // namespace deepinfer
