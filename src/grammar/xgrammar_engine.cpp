#include "grammar/xgrammar_engine.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "base/work_budget.h"
#include "grammar/char_set.h"

namespace deepinfer::grammar {
namespace {

uint64_t mix(uint64_t hash, std::string_view bytes) {  // FNV-1a with the length
    for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
    return (hash ^ bytes.size()) * 1099511628211u;
}

}  // namespace

struct Vocabulary::Impl {
    xgrammar::TokenizerInfo info{xgrammar::NullObj{}};
    /// One compiler for all grammars: rules that are alike (strings, numbers, blanks) share their
    /// masks.
    mutable std::mutex mutex;
    mutable std::unique_ptr<xgrammar::GrammarCompiler> compiler;

    xgrammar::GrammarCompiler& compiler_for(int threads) const {
        constexpr int64_t kSharedBytes = int64_t{96} << 20;
        const std::lock_guard<std::mutex> lock(mutex);
        if (compiler == nullptr) {
            compiler =
                std::make_unique<xgrammar::GrammarCompiler>(info, threads, true, kSharedBytes);
        }
        return *compiler;
    }
};

Vocabulary::~Vocabulary() = default;

void Vocabulary::finish(std::vector<std::string> tokens,
                        int32_t eos,
                        int64_t width,
                        std::vector<bool> defined) {
    width_ = width;
    eos_ = eos;
    tokens.resize(static_cast<size_t>(width));
    defined.resize(static_cast<size_t>(width), false);
    defined_ = std::move(defined);
    defined_mask_.assign(static_cast<size_t>((width + 31) / 32), 0);
    for (size_t i = 0; i < defined_.size(); ++i) {
        if (defined_[i]) defined_mask_[i / 32] |= 1u << (i % 32);
    }
    for (const std::string& t : tokens) has_text_.push_back(!t.empty());
    fingerprint_ = 1469598103934665603u;
    for (const std::string& t : tokens) fingerprint_ = mix(fingerprint_, t);
    fingerprint_ = mix(fingerprint_, std::to_string(eos));
    std::vector<int32_t> stops;
    if (eos >= 0) stops.push_back(eos);
    impl_ = std::make_unique<Impl>();
    impl_->info =
        xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(width), stops);
}

std::shared_ptr<const Vocabulary> Vocabulary::of(const Tokenizer& tokenizer,
                                                 int64_t width,
                                                 int32_t eos) {
    std::shared_ptr<Vocabulary> v(new Vocabulary());
    const auto n = std::min<int64_t>(tokenizer.vocab_size(), width);
    std::vector<std::string> tokens(static_cast<size_t>(n));
    std::vector<bool> defined(static_cast<size_t>(n), true);
    for (int32_t id = 0; id < n; ++id) {
        if (!tokenizer.is_added(id))
            tokens[static_cast<size_t>(id)] = std::string(tokenizer.token_bytes(id));
    }
    for (uint32_t m = 0; m < std::size(kMarkers); ++m) {
        const int32_t id = tokenizer.id_of(kMarkers[m]);
        const bool there = id >= 0 && id < n && tokenizer.is_added(id);
        v->marker_ids_.push_back(there ? id : -1);
        if (there) tokens[static_cast<size_t>(id)] = utf8_of(kMarkerBase + m);
    }
    v->finish(std::move(tokens), eos, width, std::move(defined));
    return v;
}

std::shared_ptr<const Vocabulary> Vocabulary::of_tokens(const std::vector<std::string>& tokens,
                                                        int32_t eos) {
    std::shared_ptr<Vocabulary> v(new Vocabulary());
    v->marker_ids_.assign(std::size(kMarkers), -1);
    v->finish(
        tokens, eos, static_cast<int64_t>(tokens.size()), std::vector<bool>(tokens.size(), true));
    return v;
}

std::shared_ptr<const Vocabulary> Vocabulary::bytes() {
    static const std::shared_ptr<const Vocabulary> all = [] {
        std::vector<std::string> tokens;
        for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
        tokens.emplace_back();
        return of_tokens(tokens, 256);
    }();
    return all;
}

struct CompiledGrammar::Impl {
    xgrammar::CompiledGrammar grammar{xgrammar::NullObj{}};
};

CompiledGrammar::~CompiledGrammar() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::compile(
    std::shared_ptr<const Vocabulary> vocabulary, const std::string& ebnf, int threads) {
    try {
        xgrammar::GrammarCompiler& compiler = vocabulary->impl().compiler_for(threads);
        std::shared_ptr<CompiledGrammar> out(new CompiledGrammar());
        out->impl_ = std::make_unique<Impl>();
        out->impl_->grammar = compiler.CompileGrammar(ebnf, "root");
        out->memory_bytes_ = out->impl_->grammar.MemorySizeBytes();
        out->vocabulary_ = std::move(vocabulary);
        return std::shared_ptr<const CompiledGrammar>(std::move(out));
    } catch (const WorkBudgetExceeded&) {
        throw;  // no fault of the grammar's text
    } catch (const std::exception& e) {
        std::string what = e.what();
        constexpr size_t kMost = 300;
        if (what.size() > kMost) what.resize(kMost);
        return Status(StatusCode::kInvalidArgument, "the grammar does not compile: " + what);
    }
}

struct Matcher::Impl {
    std::shared_ptr<const CompiledGrammar> grammar;
    xgrammar::GrammarMatcher matcher;
};

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : impl_(new Impl{grammar, xgrammar::GrammarMatcher(grammar->impl().grammar)}) {}
Matcher::~Matcher() = default;

void Matcher::fill(std::span<uint32_t> out) {
    const Vocabulary& v = impl_->grammar->vocabulary();
    DI_CHECK_EQ(static_cast<int64_t>(out.size()), (v.width() + 31) / 32);
    std::fill(out.begin(), out.end(), 0u);
    if (impl_->matcher.IsTerminated()) return;
    int64_t shape[1] = {static_cast<int64_t>(out.size())};
    DLTensor tensor{};
    tensor.data = out.data();
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = DLDataType{kDLInt, 32, 1};
    tensor.shape = shape;
    if (!impl_->matcher.FillNextTokenBitmask(&tensor)) {  // "no restriction": every token there is
        std::fill(out.begin(), out.end(), ~0u);
    }
    // Ids without a token, and the bits behind the last id, are nothing.
    for (size_t i = 0; i < out.size(); ++i) out[i] &= v.defined_mask()[i];
}

bool Matcher::accept(int32_t token) {
    if (impl_->matcher.IsTerminated()) return false;
    const Vocabulary& v = impl_->grammar->vocabulary();
    if (token < 0 || token >= v.width()) return false;
    if (token != v.eos() && !v.has_text(token))
        return false;  // the library would complain on stderr
    return impl_->matcher.AcceptToken(token);
}

bool Matcher::accept_text(const std::string& text) {
    if (impl_->matcher.IsTerminated()) return false;
    return text.empty() || impl_->matcher.AcceptString(text);
}

void Matcher::rollback(int count) {
    impl_->matcher.Rollback(count);
}
bool Matcher::complete() const {
    return impl_->matcher.IsCompleted();
}
bool Matcher::terminated() const {
    return impl_->matcher.IsTerminated();
}
std::string Matcher::forced_text() {
    return impl_->matcher.FindJumpForwardString();
}

}  // namespace deepinfer::grammar
