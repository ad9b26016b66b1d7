#include "ops/numeric_class.h"

#include <functional>
#include <iterator>
#include <map>
#include <mutex>

#include "base/check.h"

namespace deepinfer {
namespace {

struct Declaration {
    std::string name;
    NumericClass numeric_class = NumericClass::kUndeclared;
};

struct Registry {
    std::mutex mutex;
    std::map<KernelId, Declaration, std::less<>> kernels;
};
Registry& registry() {
    static Registry r;
    return r;
}

Declaration declaration_of(KernelId kernel) {
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    const auto it = r.kernels.find(kernel);
    return it == r.kernels.end() ? Declaration{} : it->second;
}

template <auto kMember>
KernelId kernel_at(const OpTable& table) {
    return kernel_id(table.*kMember);
}

struct Site {
    const char* op;
    KernelId (*kernel)(const OpTable&);
};
#define DI_SITE(op)                     \
    Site {                              \
#op, &kernel_at < &OpTable::op> \
    }
constexpr Site kSites[] = {
    DI_SITE(rms_norm),
    DI_SITE(linear),
    DI_SITE(grouped_o_proj),
    DI_SITE(quant_q8),
    DI_SITE(quant_q4m),
    DI_SITE(scale_bf16),
    DI_SITE(rope_table),
    DI_SITE(rope),
    DI_SITE(mhc_mixes),
    DI_SITE(mhc_collapse),
    DI_SITE(mhc_expand),
    DI_SITE(streams_mean),
    DI_SITE(engram_hash),
    DI_SITE(engram_lookup),
    DI_SITE(engram_gate),
    DI_SITE(embed_streams),
    DI_SITE(gather_rows),
    DI_SITE(window_pack),
    DI_SITE(window_store),
    DI_SITE(kv_entry_store),
    DI_SITE(index_key_store),
    DI_SITE(compress_pool),
    DI_SITE(compress_tail_store),
    DI_SITE(index_scores),
    DI_SITE(candidate_blocks),
    DI_SITE(topk_select),
    DI_SITE(sparse_attention),
    DI_SITE(router_scores),
    DI_SITE(router_topk),
    DI_SITE(router_weights),
    DI_SITE(swiglu),
    DI_SITE(moe_ffn),
    DI_SITE(mhc_step),
    DI_SITE(rms_norm_q8),
    DI_SITE(sample_rows),
    DI_SITE(draft_attention),
    DI_SITE(add_rows),
    DI_SITE(argmax_rows),
    DI_SITE(linear_bias),
    DI_SITE(vit_rope),
    DI_SITE(vit_attention),
    DI_SITE(vit_swiglu),
    DI_SITE(add_bf16),
    DI_SITE(gelu),
    DI_SITE(pixel_unshuffle),
    DI_SITE(place_rows),
};
#undef DI_SITE
// An op that is added to the table must be added above: name, accumulator type, then pointers
// alone.
static_assert(sizeof(OpTable) == 2 * sizeof(void*) + std::size(kSites) * sizeof(KernelId),
              "OpTable and kSites list different ops");

}  // namespace

const char* numeric_class_name(NumericClass c) {
    switch (c) {
        case NumericClass::kUndeclared:
            return "undeclared";
        case NumericClass::kBatchDependent:
            return "batch_dependent";
        case NumericClass::kRowInvariant:
            return "row_invariant";
        case NumericClass::kExact:
            return "exact";
    }
    return "undeclared";
}

void declare_kernel(KernelId kernel, const std::string& name, NumericClass numeric_class) {
    DI_CHECK(kernel != nullptr && !name.empty());
    DI_CHECK(numeric_class != NumericClass::kUndeclared);
    Registry& r = registry();
    const std::lock_guard<std::mutex> lock(r.mutex);
    const auto [it, added] = r.kernels.emplace(kernel, Declaration{name, numeric_class});
    DI_CHECK_MSG(it->second.name == name && it->second.numeric_class == numeric_class,
                 name + " was declared before as " + it->second.name + ", " +
                     numeric_class_name(it->second.numeric_class));
    (void)added;
}

std::vector<OpSite> op_sites(const OpTable& table) {
    std::vector<OpSite> sites;
    for (const Site& s : kSites) {
        const KernelId kernel = s.kernel(table);
        if (kernel == nullptr) continue;
        Declaration d = declaration_of(kernel);
        sites.push_back({s.op, kernel, std::move(d.name), d.numeric_class});
    }
    return sites;
}

std::vector<std::string> op_names() {
    std::vector<std::string> names;
    for (const Site& s : kSites) names.emplace_back(s.op);
    return names;
}

Status check_numeric_classes(const OpTable& table, NumericClass least) {
    for (const OpSite& s : op_sites(table)) {
        if (s.numeric_class >= least) continue;
        const std::string kernel =
            s.kernel_name.empty() ? "a kernel" : "the kernel " + s.kernel_name;
        return Status(StatusCode::kInvalidArgument,
                      "op " + std::string(s.op) + " of backend " + table.name + " runs " + kernel +
                          " of numeric class " + numeric_class_name(s.numeric_class) +
                          ", expected " + numeric_class_name(least) + " or better");
    }
    return {};
}

std::string numeric_summary(const OpTable& table) {
    std::map<NumericClass, int, std::greater<>> counts;
    int total = 0;
    for (const OpSite& s : op_sites(table)) {
        ++counts[s.numeric_class];
        ++total;
    }
    std::string text = std::to_string(total) + " ops:";
    for (const auto& [c, n] : counts) {
        text += (text.back() == ':' ? " " : ", ") + std::to_string(n) + " " + numeric_class_name(c);
    }
    return text;
}

}  // namespace deepinfer
