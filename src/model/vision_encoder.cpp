#include "model/vision_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "model/rope_frequencies.h"
#include "model/weights.h"
#include "ops/vision/patch_values.h"

namespace deepinfer {
namespace {

constexpr float kEps = 1e-6f;  // the tower's own; the language model's is 1e-20 (vision spec 2)

constexpr int64_t kAlignTile = 1024;  // cells that the aligner widens at once (18 KiB each)

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace

struct VisionEncoder::Impl {
    Impl(const ModelConfig& c, Backend& b, int64_t max) : config(c), backend(b), max_patches(max) {}

    // ---- sizes
    const VisionConfig& vision() const { return config.vision; }
    int64_t area() const { return vision().downsample_ratio * vision().downsample_ratio; }
    int64_t head_dim() const { return vision().hidden_size / vision().num_attention_heads; }
    int64_t max_cells() const { return max_patches; }  // a picture of one patch is one cell
    int64_t align_tile() const { return std::min(max_cells(), kAlignTile); }

    const ModelConfig config;
    Backend& backend;
    const int64_t max_patches;
    VisionWeights weights;
    std::vector<bf16> values;  // of the 256 bytes
    Buffer memory;
    const ForwardHooks* hooks = nullptr;

    // Workspace. `wide` is qkv, then gate and up; `h` is a norm's output, then the attended rows.
    Tensor patches, x, h, wide, act, cos_sin;  // bf16 [P, …], cos_sin acc [P, head_dim/2, 2]
    Tensor positions, cells, cu_rows, freqs;   // i32 [2P], [P, r²], [B + 1]; f32 [head_dim/4]
    Tensor gathered, hidden, rows;             // bf16 [n, r²·E], [n, D], [n, D]

    // The batch under way.
    struct Picture {
        int64_t grid_h = 0, grid_w = 0, llm_h = 0, llm_w = 0;
    };
    std::vector<Picture> batch;
    int64_t num_patches = 0, num_cells = 0;
    int next_stage = 0;

    size_t carve(void* base);
    void upload(const Tensor& to, const void* from, size_t bytes) {
        backend.device().copy_to_device(backend.device().stream(), to.data, from, bytes);
        backend.device().stream().synchronize();  // `from` is a local
    }
    void observe(const char* name, int layer, const Tensor& t) const {
        if (hooks != nullptr && hooks->observe) hooks->observe(name, layer, 0, t);
    }
    void load_batch(std::span<const EncoderPicture> pictures);
    void embed();
    void block(int i);
    void align();
};

size_t VisionEncoder::Impl::carve(void* base) {
    size_t used = 0;
    const auto take = [&](Tensor* t, DType type, std::initializer_list<int64_t> dims) {
        *t = Tensor(static_cast<uint8_t*>(base) + used, type, dims);
        used += (static_cast<size_t>(t->bytes()) + 255) / 256 * 256;
    };
    const VisionConfig& v = vision();
    const int64_t p = max_patches, n = max_cells(), e = v.hidden_size, d = config.hidden_size;
    const DType acc = backend.ops().acc;
    take(&patches, DType::kBF16, {p, weights.patch_width});
    take(&x, DType::kBF16, {p, e});
    take(&h, DType::kBF16, {p, e});
    take(&wide, DType::kBF16, {p * std::max(3 * e, 2 * v.intermediate_size)});
    take(&act, DType::kBF16, {p, std::max(e, v.intermediate_size)});
    take(&cos_sin, acc, {p, head_dim() / 2, 2});
    take(&positions, DType::kI32, {2 * p});
    take(&cells, DType::kI32, {n, area()});
    take(&cu_rows, DType::kI32, {p + 1});
    take(&freqs, DType::kF32, {head_dim() / 4});
    take(&gathered, DType::kBF16, {align_tile(), area() * e});
    take(&hidden, DType::kBF16, {align_tile(), d});
    take(&rows, DType::kBF16, {n, d});
    return used;
}

VisionEncoder::VisionEncoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VisionEncoder::~VisionEncoder() = default;

const VisionConfig& VisionEncoder::config() const {
    return impl_->vision();
}
int64_t VisionEncoder::max_patches() const {
    return impl_->max_patches;
}
size_t VisionEncoder::workspace_bytes() const {
    return impl_->memory.bytes();
}
int VisionEncoder::num_stages() const {
    return static_cast<int>(impl_->vision().num_hidden_layers) + 2;
}
bool VisionEncoder::busy() const {
    return !impl_->batch.empty();
}
void VisionEncoder::watch(const ForwardHooks* hooks) {
    impl_->hooks = hooks;
}

int64_t VisionEncoder::largest_picture(const VisionConfig& c) {
    // One row of M − 3 cells holds the most: every further row spends a token on its NEWLINE.
    return (c.max_image_tokens - 3) * c.downsample_ratio * c.downsample_ratio;
}

Result<std::unique_ptr<VisionEncoder>> VisionEncoder::load(const Checkpoint& checkpoint,
                                                           Backend& backend,
                                                           int64_t max_patches) {
    const ModelConfig& c = checkpoint.config();
    if (!c.has_vision) {
        return Status(StatusCode::kInvalidArgument,
                      "the checkpoint takes no pictures: it has no vision tower");
    }
    if (!backend.ops().runs_pictures()) {
        return Status(StatusCode::kUnimplemented,
                      "the backend " + backend.name() +
                          " has no picture ops (linear_bias, vit_attention, …): it takes no "
                          "pictures");
    }
    auto impl =
        std::make_unique<Impl>(c, backend, std::max(max_patches, largest_picture(c.vision)));
    Impl& m = *impl;
    DI_RETURN_IF_ERROR(bind_vision_weights(checkpoint, backend, m.weights));
    const auto table = patch_values();
    m.values.assign(table.begin(), table.end());
    Result<Buffer> memory = backend.device().allocate(m.carve(nullptr));
    if (!memory.ok()) return memory.status();
    m.memory = std::move(memory).value();
    m.carve(m.memory.data());
    // Half of a head's pairs turn with the row, half with the column: each a table of head_dim / 2.
    const std::vector<float> freqs =
        rope_frequencies(m.head_dim() / 2, c.vision.rope_theta, nullptr);
    m.upload(m.freqs, freqs.data(), freqs.size() * sizeof(float));
    return std::unique_ptr<VisionEncoder>(new VisionEncoder(std::move(impl)));
}

// ---- the batch

void VisionEncoder::Impl::load_batch(std::span<const EncoderPicture> pictures) {
    const int64_t r = vision().downsample_ratio,
                  bytes = 3 * vision().patch_size * vision().patch_size;
    batch.clear();
    num_patches = num_cells = 0;
    next_stage = 0;
    std::vector<int32_t> places, picks, cu{0};
    std::vector<bf16> wide_patches;
    for (const EncoderPicture& p : pictures) {
        const Picture own{p.grid_h, p.grid_w, ceil_div(p.grid_h, r), ceil_div(p.grid_w, r)};
        for (int64_t y = 0; y < p.grid_h; ++y) {
            for (int64_t x0 = 0; x0 < p.grid_w; ++x0) {
                places.push_back(static_cast<int32_t>(y));
                places.push_back(static_cast<int32_t>(x0));
            }
        }
        for (int64_t cy = 0; cy < own.llm_h; ++cy) {
            for (int64_t cx = 0; cx < own.llm_w; ++cx) {
                for (int64_t i = 0; i < r * r; ++i) {
                    const int64_t y = cy * r + i / r, x0 = cx * r + i % r;
                    const bool inside = y < p.grid_h && x0 < p.grid_w;
                    picks.push_back(inside ? static_cast<int32_t>(num_patches + y * p.grid_w + x0)
                                           : -1);
                }
            }
        }
        for (int64_t i = 0; i < p.num_patches(); ++i) {
            const uint8_t* src = p.patches + i * bytes;
            for (int64_t j = 0; j < bytes; ++j) wide_patches.push_back(values[src[j]]);
            wide_patches.resize(static_cast<size_t>((num_patches + i + 1) * weights.patch_width));
        }
        num_patches += p.num_patches();
        num_cells += own.llm_h * own.llm_w;
        cu.push_back(static_cast<int32_t>(num_patches));
        batch.push_back(own);
    }
    DI_CHECK_LE(num_patches, max_patches);
    upload(patches, wide_patches.data(), wide_patches.size() * sizeof(bf16));
    upload(positions, places.data(), places.size() * sizeof(int32_t));
    upload(cells, picks.data(), picks.size() * sizeof(int32_t));
    upload(cu_rows, cu.data(), cu.size() * sizeof(int32_t));
}

void VisionEncoder::begin(std::span<const EncoderPicture> pictures) {
    DI_CHECK(!busy() && !pictures.empty());
    impl_->load_batch(pictures);
}

bool VisionEncoder::advance(int stages) {
    Impl& m = *impl_;
    DI_CHECK(busy());
    const int blocks = static_cast<int>(m.vision().num_hidden_layers);
    for (; stages > 0 && m.next_stage < num_stages(); --stages, ++m.next_stage) {
        if (m.next_stage == 0) {
            m.embed();
        } else if (m.next_stage <= blocks) {
            m.block(m.next_stage - 1);
        } else {
            m.align();
        }
    }
    return m.next_stage == num_stages();
}

std::vector<EncodedImage> VisionEncoder::encode(std::span<const EncoderPicture> pictures) {
    begin(pictures);
    advance(num_stages());
    return take();
}

std::vector<EncodedImage> VisionEncoder::take() {
    Impl& m = *impl_;
    DI_CHECK(busy() && m.next_stage == num_stages());
    const size_t d = static_cast<size_t>(m.config.hidden_size);
    std::vector<bf16> all(static_cast<size_t>(m.num_cells) * d);
    Device& device = m.backend.device();
    device.copy_to_host(device.stream(), all.data(), m.rows.data, all.size() * sizeof(bf16));
    device.stream().synchronize();
    std::vector<EncodedImage> out;
    const bf16* at = all.data();
    for (const Impl::Picture& p : m.batch) {
        EncodedImage image;
        image.num_tokens = p.llm_h * (p.llm_w + 1) + 2;
        const auto put = [&](const bf16* from, size_t n) {
            image.rows.insert(image.rows.end(), from, from + n);
        };
        put(m.weights.image_start.data(), d);
        for (int64_t y = 0; y < p.llm_h; ++y) {
            const size_t n = static_cast<size_t>(p.llm_w) * d;
            put(at, n);
            at += n;
            put(m.weights.image_newline.data(), d);
        }
        put(m.weights.image_end.data(), d);
        out.push_back(std::move(image));
    }
    m.batch.clear();
    return out;
}

// ---- the tower

void VisionEncoder::Impl::embed() {
    const OpTable& ops = backend.ops();
    Stream& stream = backend.device().stream();
    const int64_t n = num_patches;
    observe("patches", -1, patches.rows(0, n));
    // Row and column angles of a patch stand side by side: two positions of the table per patch.
    const Tensor table(cos_sin.data, cos_sin.dtype, {2 * n, head_dim() / 4, 2});
    ops.rope_table(stream, positions.rows(0, 2 * n), freqs, table);
    ops.linear_bias(
        stream, patches.rows(0, n), weights.patch_embed, weights.patch_embed_bias, x.rows(0, n));
    observe("patch_embed", -1, x.rows(0, n));
}

void VisionEncoder::Impl::block(int i) {
    const OpTable& ops = backend.ops();
    Stream& stream = backend.device().stream();
    const VisionBlockWeights& w = weights.blocks[static_cast<size_t>(i)];
    const int64_t n = num_patches, e = vision().hidden_size, heads = vision().num_attention_heads,
                  dh = head_dim(), inner = vision().intermediate_size,
                  pictures = static_cast<int64_t>(batch.size());
    const Tensor xs = x.rows(0, n), hs = h.rows(0, n);
    const Tensor qkv(wide.data, DType::kBF16, {n, 3 * e});
    ops.rms_norm(stream, xs, w.norm1, kEps, hs);
    ops.linear_bias(stream, hs, w.wqkv, w.wqkv_bias, qkv);
    const Tensor q_and_k = qkv.cols(0, 2 * e);  // v is not rotated
    Tensor heads_of_qk(q_and_k.data, DType::kBF16, {n, 2 * heads, dh});
    heads_of_qk.stride[0] = 3 * e;
    ops.vit_rope(stream, heads_of_qk, cos_sin.rows(0, n));
    ops.vit_attention(stream,
                      qkv.reshaped({n, 3, heads, dh}),
                      cu_rows.rows(0, pictures + 1),
                      1.0 / std::sqrt(static_cast<double>(dh)),
                      hs);
    const Tensor y(act.data, DType::kBF16, {n, e});
    ops.linear_bias(stream, hs, w.wo, w.wo_bias, y);
    ops.add_bf16(stream, xs, y);

    const Tensor gate_up(wide.data, DType::kBF16, {n, 2 * inner}),
        gated(act.data, DType::kBF16, {n, inner});
    ops.rms_norm(stream, xs, w.norm2, kEps, hs);
    ops.linear(stream, hs, w.mlp_w1, gate_up);
    ops.vit_swiglu(stream, gate_up, gated);
    ops.linear(stream, gated, w.mlp_w2, hs);
    ops.add_bf16(stream, xs, hs);
    observe("block", i, xs);
}

void VisionEncoder::Impl::align() {
    const OpTable& ops = backend.ops();
    Stream& stream = backend.device().stream();
    const Tensor tower = h.rows(0, num_patches);
    ops.rms_norm(stream, x.rows(0, num_patches), weights.norm, kEps, tower);
    observe("tower", -1, tower);
    for (int64_t begin = 0; begin < num_cells; begin += align_tile()) {
        const int64_t end = std::min(num_cells, begin + align_tile());
        const Tensor z = gathered.rows(0, end - begin), mid = hidden.rows(0, end - begin);
        ops.pixel_unshuffle(stream, tower, cells.rows(begin, end), z);
        ops.linear_bias(stream, z, weights.aligner_w1, weights.aligner_w1_bias, mid);
        ops.gelu(stream, mid);
        ops.linear_bias(
            stream, mid, weights.aligner_w2, weights.aligner_w2_bias, rows.rows(begin, end));
    }
    observe("rows", -1, rows.rows(0, num_cells));
}

}  // namespace deepinfer
