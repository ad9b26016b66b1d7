// fill_synthetic(): Philox words, keyed by the seed, counted by tensor name and place.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/philox.h"
#include "checkpoint/synthetic.h"
#include "tensor/dtype.h"

namespace deepinfer {
namespace {

/// FNV-1a: the tensor's name in the counter.
uint64_t name_hash(const std::string& name) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return h;
}

/// 16 random bytes of place `block`.
class Draws {
  public:
    Draws(const ExpectedTensor& tensor, uint64_t seed)
        : seed_(seed), name_(name_hash(tensor.name)) {}
    PhiloxWords at(uint64_t block) const {
        return philox4x32_10({{static_cast<uint32_t>(block),
                               static_cast<uint32_t>(block >> 32),
                               static_cast<uint32_t>(name_),
                               static_cast<uint32_t>(name_ >> 32)}},
                             static_cast<uint32_t>(seed_),
                             static_cast<uint32_t>(seed_ >> 32));
    }
    /// Eight 16-bit draws of place `block`.
    std::array<uint16_t, 8> halves(uint64_t block) const {
        const PhiloxWords w = at(block);
        std::array<uint16_t, 8> h{};
        for (size_t i = 0; i < 8; ++i) h[i] = static_cast<uint16_t>(w.w[i / 2] >> (16 * (i % 2)));
        return h;
    }

  private:
    uint64_t seed_, name_;
};
constexpr int64_t kDraws = 8;  // per place

double polynomial(const double (&c)[8], double r) {
    double v = c[7];
    for (int i = 6; i >= 0; --i) v = v * r + c[i];
    return v;
}

/// Inverse of the normal distribution function (Wichura, algorithm AS 241, 1988).
double normal_quantile(double p) {
    static constexpr double kA[8] = {3.3871328727963666080e0,
                                     1.3314166789178437745e2,
                                     1.9715909503065514427e3,
                                     1.3731693765509461125e4,
                                     4.5921953931549871457e4,
                                     6.7265770927008700853e4,
                                     3.3430575583588128105e4,
                                     2.5090809287301226727e3};
    static constexpr double kB[8] = {1.0,
                                     4.2313330701600911252e1,
                                     6.8718700749205790830e2,
                                     5.3941960214247511077e3,
                                     2.1213794301586595867e4,
                                     3.9307895800092710610e4,
                                     2.8729085735721942674e4,
                                     5.2264952788528545610e3};
    static constexpr double kC[8] = {1.42343711074968357734e0,
                                     4.63033784615654529590e0,
                                     5.76949722146069140550e0,
                                     3.64784832476320460504e0,
                                     1.27045825245236838258e0,
                                     2.41780725177450611770e-1,
                                     2.27238449892691845833e-2,
                                     7.74545014278341407640e-4};
    static constexpr double kD[8] = {1.0,
                                     2.05319162663775882187e0,
                                     1.67638483018380384940e0,
                                     6.89767334985100004550e-1,
                                     1.48103976427480074590e-1,
                                     1.51986665636164571966e-2,
                                     5.47593808499534494600e-4,
                                     1.05075007164441684324e-9};
    const double q = p - 0.5;
    if (std::fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * polynomial(kA, r) / polynomial(kB, r);
    }
    // 16-bit draws stay within 2^-17 of the ends: the third piece of AS 241 is never reached.
    const double r = std::sqrt(-std::log(q < 0 ? p : 1 - p)) - 1.6;
    const double z = polynomial(kC, r) / polynomial(kD, r);
    return q < 0 ? -z : z;
}

/// N(0, 1) of a 16-bit draw; symmetric, the extremes are ±4.3.
const std::array<float, 65536>& normal_table() {
    static const auto table = [] {
        std::array<float, 65536> t{};
        for (size_t i = 0; i < t.size(); ++i)
            t[i] = static_cast<float>(normal_quantile((static_cast<double>(i) + 0.5) / 65536));
        return t;
    }();
    return table;
}

const std::array<uint8_t, 65536>& fp8_table() {
    static const auto table = [] {
        std::array<uint8_t, 65536> t{};
        for (size_t i = 0; i < t.size(); ++i) t[i] = float_to_e4m3(normal_table()[i] * 16.0f);
        return t;
    }();
    return table;
}

bool ends_with(const std::string& name, const char* suffix) {
    const size_t n = std::strlen(suffix);
    return name.size() >= n && name.compare(name.size() - n, n, suffix) == 0;
}

bool is_small_f32(const std::string& name) {
    for (const char* s : {"_fn", "_base", "_scale", "attn_sink", "gate.bias", "gate.bias_vl"}) {
        if (ends_with(name, s)) return true;
    }
    return false;
}

uint8_t scale_byte(double code_rms, int64_t k) {
    return static_cast<uint8_t>(
        127 - std::lround(std::log2(code_rms * std::sqrt(static_cast<double>(k)))));
}

/// Mean of a norm's weight; 0: not a norm.
float norm_mean(const ExpectedTensor& t) {
    static constexpr struct {
        const char* suffix;
        float mean;
    } kMeans[] = {{"attn_norm.weight", 0.025f},
                  {"ffn_norm.weight", 0.2f},
                  {"q_norm.weight", 0.97f},
                  {"kv_norm.weight", 0.4f},
                  {"compressor.norm.weight", 0.6f},
                  {"k_norm.weight", 0.5f},
                  {"engram.q_weight", 1.0f},
                  {"engram.k_weight", 1.0f},
                  {"norm.weight", 1.0f}};
    for (const auto& m : kMeans) {
        if (ends_with(t.name, m.suffix)) return m.mean;
    }
    return t.shape.size() == 1 && t.name.rfind("vision.", 0) == 0 && ends_with(t.name, ".weight")
               ? 1.0f
               : 0.0f;
}

/// Standard deviation of a matrix; 0: the tensor is zero (biases, sinks).
float deviation(const ExpectedTensor& t) {
    if (t.shape.size() < 2) return 0.0f;
    const double gain = ends_with(t.name, "gate.weight") ? 2.9 : 1.0;
    if (t.name == "embed.weight") return 0.12f;
    return static_cast<float>(gain / std::sqrt(static_cast<double>(t.shape[1])));
}

/// The constants of a hyper-connection site: sigmoid(-1.0986) = 1/4, 2 · sigmoid(0) = 1, and a
/// softmax that leaves a stream 95 % of itself.
float hyper_connection_value(const ExpectedTensor& t, int64_t i, int64_t hc) {
    if (ends_with(t.name, "_scale")) return 0.1f;
    if (i < hc) return -1.0986123f;
    if (i < 2 * hc) return 0.0f;
    const int64_t j = i - 2 * hc;
    return j / hc == j % hc ? 4.0f : 0.0f;
}

/// Writes value(i) for [begin, end) as bf16 or f32.
template <typename Value>
void store_plain(bool f32, int64_t begin, int64_t end, uint8_t* out, const Value& value) {
    for (int64_t i = begin; i < end; ++i) {
        const float v = value(i);
        if (f32) {
            std::memcpy(out + (i - begin) * 4, &v, 4);
        } else {
            const bf16 b = to_bf16(v);
            std::memcpy(out + (i - begin) * 2, &b.bits, 2);
        }
    }
}

void fill_plain(const ExpectedTensor& t,
                const Draws& draws,
                int64_t hc,
                int64_t begin,
                int64_t end,
                uint8_t* out) {
    const bool f32 = is_small_f32(t.name);
    if (ends_with(t.name, "_base") || ends_with(t.name, "_scale")) {
        return store_plain(
            f32, begin, end, out, [&](int64_t i) { return hyper_connection_value(t, i, hc); });
    }
    const float mean = norm_mean(t), sigma = mean > 0 ? 0.0f : deviation(t);
    const auto& normal = normal_table();
    std::array<uint16_t, 8> h{};
    store_plain(f32, begin, end, out, [&](int64_t i) {
        if (mean == 0 && sigma == 0) return 0.0f;
        if (i % kDraws == 0) h = draws.halves(static_cast<uint64_t>(i / kDraws));
        const uint16_t u = h[static_cast<size_t>(i % kDraws)];
        if (mean > 0) return mean * (0.9f + 0.2f * static_cast<float>(u) / 65536.0f);
        return sigma * normal[u];
    });
}

void fill_fp8(const Draws& draws, int64_t begin, int64_t end, uint8_t* out) {
    const auto& codes = fp8_table();
    for (int64_t i = begin; i < end; i += kDraws) {
        const std::array<uint16_t, 8> h = draws.halves(static_cast<uint64_t>(i / kDraws));
        for (int64_t j = 0; j < kDraws && i + j < end; ++j)
            out[i - begin + j] = codes[h[static_cast<size_t>(j)]];
    }
}

void fill_fp4(const Draws& draws, int64_t begin, int64_t end, uint8_t* out) {
    constexpr int64_t kBytes = sizeof(PhiloxWords);
    for (int64_t i = begin; i < end; i += kBytes) {
        const PhiloxWords w = draws.at(static_cast<uint64_t>(i / kBytes));
        std::memcpy(out + (i - begin), w.w, static_cast<size_t>(std::min(kBytes, end - i)));
    }
}

}  // namespace

const char* synthetic_dtype(const ExpectedTensor& t) {
    switch (t.kind) {
        case WeightKind::kPlain:
            return is_small_f32(t.name) ? "F32" : "BF16";
        case WeightKind::kFp8:
        case WeightKind::kEngramTable:
            return "F8_E4M3";
        case WeightKind::kFp4:
            return "I8";
        case WeightKind::kFp8Scale:
        case WeightKind::kFp4Scale:
        case WeightKind::kEngramScale:
            return "F8_E8M0";
    }
    return "?";
}

int64_t synthetic_bytes(const ExpectedTensor& t) {
    int64_t bytes = t.kind != WeightKind::kPlain ? 1 : is_small_f32(t.name) ? 4 : 2;
    for (const int64_t d : t.shape) bytes *= d;
    return bytes;
}

void fill_synthetic(const ExpectedTensor& t,
                    uint64_t seed,
                    int64_t hc_mult,
                    int64_t begin,
                    int64_t end,
                    uint8_t* out) {
    DI_CHECK_EQ(begin % kSyntheticBlock, 0);
    if (end <= begin) return;
    const Draws draws(t, seed);
    const auto constant = [&](uint8_t byte) {
        std::memset(out, byte, static_cast<size_t>(end - begin));
    };
    constexpr double kFp4Rms = 2.93, kFp8Rms = 16;
    switch (t.kind) {
        case WeightKind::kPlain:
            return fill_plain(t, draws, hc_mult, begin, end, out);
        case WeightKind::kFp8:
        case WeightKind::kEngramTable:
            return fill_fp8(draws, begin, end, out);
        case WeightKind::kFp4:
            return fill_fp4(draws, begin, end, out);
        case WeightKind::kFp8Scale:
            return constant(scale_byte(kFp8Rms, t.shape[1] * 32));
        case WeightKind::kFp4Scale:
            return constant(scale_byte(kFp4Rms, t.shape[1] * 32));
        case WeightKind::kEngramScale:
            return constant(127 - 7);
    }
}

}  // namespace deepinfer
