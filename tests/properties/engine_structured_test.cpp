// Constrained requests under everything the engine does: asynchronous loop, forced preemption, tiny
// steps, drafts of any length and wrongness, reasoning first. The answer is that of the request
// alone, bit for bit, and it keeps to its form.
#include <gtest/gtest.h>
#include <time.h>

#include <set>

#include "deepinfer/structured_output.h"
#include "grammar/constraint_compiler.h"
#include "grammar/token_matcher.h"
#include "properties/engine_lab.h"
#include "properties/spec_drafters.h"

namespace deepinfer::testing {
namespace {

using Type = StructuredOutputArgs::Type;

struct Asked {
    Request request;
    bool reasoning = false;
};

const char* const kSchema =
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":9},"n":{"type":"integer","minimum":0,"maximum":999},"tags":{"type":"array","items":{"enum":["a","b","c"]},"maxItems":3}},"required":["city","n","tags"],"additionalProperties":false})";

std::vector<Asked> asked(const Tokenizer& t, int64_t vocab) {
    std::vector<Asked> all;
    const StructuredOutputArgs forms[] = {
        StructuredOutputArgs::of(Type::kRegex, "[a-z]{3,9}(-[0-9]{2}){2}"),
        StructuredOutputArgs::of(Type::kJson, kSchema),
        StructuredOutputArgs::of(Type::kEbnf, "root ::= \"(\" root \")\" root | [xyz]{0,4}")};
    for (int i = 0; i < 9; ++i) {
        Asked a;
        a.reasoning = i % 3 == 1 && i > 3;
        a.request.prompt_token_ids = random_ids(static_cast<uint64_t>(70 + i), 11 + 3 * i, vocab);
        if (a.reasoning) a.request.prompt_token_ids.push_back(t.id_of("<think>"));
        SamplingParams& s = a.request.sampling;
        s.so_args = forms[i % 3];
        s.temperature = i % 2 == 0 ? 1.0 : 0.0;
        s.seq_seed = static_cast<uint64_t>(i);
        s.max_tokens = a.reasoning ? 120 : 48;
        s.logprobs = 1;
        // The random model never ends its reasoning by itself.
        if (a.reasoning) s.logit_bias = {{t.id_of("</think>"), 10.0}};
        all.push_back(a);
    }
    return all;
}

struct Outcome {
    std::vector<std::string> digests;
    std::vector<Completion> done;
    SchedulerStats stats;
};

Outcome run(const EngineConfig& config, const EngineHooks& hooks = {}) {
    EngineLab lab(config, hooks);
    const Tokenizer& t = *lab.parts().tokenizer;
    const int64_t vocab = lab.parts().info.vocab_size;
    grammar::ConstraintCompiler compiler(
        grammar::Vocabulary::of(t, vocab, lab.parts().info.eos_token_id));
    std::vector<uint64_t> numbers;
    for (const Asked& a : asked(t, vocab)) {
        const auto compiled = compiler.get(a.request.sampling.so_args);
        EXPECT_TRUE(compiled.ok()) << compiled.status().message();
        const bool open =
            grammar::reasoning_is_open(a.request.prompt_token_ids, compiler.vocabulary());
        EXPECT_EQ(open, a.reasoning);
        const auto number =
            lab.submit(a.request, std::make_shared<grammar::TokenMatcher>(compiled->grammar, open));
        EXPECT_TRUE(number.ok()) << number.status().message();
        numbers.push_back(number.value());
    }
    lab.run_until_idle();
    Outcome out;
    for (const uint64_t n : numbers) {
        out.done.push_back(lab.completion(n));
        out.digests.push_back(digest(out.done.back()));
    }
    out.stats = lab.scheduler().stats();
    return out;
}

const Outcome& plain() {
    static const Outcome r = [] {
        EngineConfig c = lab_config("nano");
        c.async_scheduling = false;
        c.prefix_caching = false;
        c.threads = 1;
        return run(c);
    }();
    return r;
}

/// What stands behind the reasoning, as text.
std::string content(const Completion& c) {
    const std::string& text = c.choices[0].text;
    const size_t end = text.find("</think>");
    return end == std::string::npos ? text : text.substr(end + 8);
}

TEST(EngineStructured, AnswersKeepTheirForm) {
    EngineLab lab(lab_config("nano"));
    const std::vector<Asked> all = asked(*lab.parts().tokenizer, lab.parts().info.vocab_size);
    int complete = 0, after_reasoning = 0;
    for (size_t i = 0; i < all.size(); ++i) {
        const CompletionChoice& c = plain().done[i].choices[0];
        ASSERT_TRUE(c.finish_reason == FinishReason::kStop ||
                    c.finish_reason == FinishReason::kLength);
        if (c.finish_reason == FinishReason::kLength) continue;
        const ConstraintReport r =
            check_constraint(all[i].request.sampling.so_args, {content(plain().done[i])});
        ASSERT_TRUE(r.ok);
        EXPECT_TRUE(r.accepted[0]) << c.text;
        ++complete;
        after_reasoning += all[i].reasoning && c.text.find("</think>") != std::string::npos;
    }
    EXPECT_GE(complete, 5);
    EXPECT_GE(after_reasoning, 1);
}

TEST(EngineStructured, LoopBatchPreemptionAndChunksDoNotMatter) {
    for (const bool async : {false, true}) {
        const int64_t budget = async ? 64 : 9;
        {
            EngineConfig c = lab_config("nano");
            c.async_scheduling = async;
            c.max_num_batched_tokens = budget;
            c.max_num_seqs = budget == 9 ? 3 : 16;
            EngineHooks hooks;
            // Every sequence once, in the middle of its answer.
            const auto seen = std::make_shared<std::set<uint64_t>>();
            hooks.force_preempt = [seen](uint64_t, const Sequence& q) {
                return q.num_output() >= 3 + static_cast<int64_t>(q.spec.request % 5) &&
                       seen->insert(q.spec.request).second;
            };
            const Outcome r = run(c, hooks);
            EXPECT_EQ(r.digests, plain().digests) << "async " << async << " budget " << budget;
            EXPECT_GT(r.stats.preemptions, 0);
        }
    }
}

/// A form whose masks take long, as those of ambiguous grammars do.
class SlowForm final : public TokenConstraint {
  public:
    SlowForm(std::shared_ptr<TokenConstraint> form, int64_t burn_us)
        : form_(std::move(form)), burn_us_(burn_us) {}
    std::vector<uint32_t> mask() override {
        timespec t{};
        const auto now = [&] {
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
            return t.tv_sec * 1'000'000 + t.tv_nsec / 1000;
        };
        const int64_t end = now() + burn_us_;
        while (now() < end) {
        }
        return form_->mask();
    }
    bool accept(int32_t token) override { return form_->accept(token); }
    void rollback(int count) override { form_->rollback(count); }
    bool complete() override { return form_->complete(); }

  private:
    std::shared_ptr<TokenConstraint> form_;
    int64_t burn_us_;
};

TEST(EngineStructured, ALateRowWaitsAlone) {
    constexpr int64_t kLate = 12'000;  // above MaskBudget::late_us
    for (const int nextn : {0, 3}) {
        for (const bool async : {false, true}) {
            EngineConfig config = lab_config("nano");
            config.nextn = nextn;
            config.async_scheduling = async;
            EngineLab lab(config);
            const Tokenizer& t = *lab.parts().tokenizer;
            grammar::ConstraintCompiler compiler(grammar::Vocabulary::of(
                t, lab.parts().info.vocab_size, lab.parts().info.eos_token_id));
            const std::vector<Asked> all = asked(t, lab.parts().info.vocab_size);
            constexpr size_t kSlow = 1, kNum = 4;  // the schema is the slow one
            std::vector<uint64_t> numbers;
            for (size_t i = 0; i < kNum; ++i) {
                const auto compiled = compiler.get(all[i].request.sampling.so_args);
                ASSERT_TRUE(compiled.ok());
                std::shared_ptr<TokenConstraint> form =
                    std::make_shared<grammar::TokenMatcher>(compiled->grammar, all[i].reasoning);
                if (i == kSlow) form = std::make_shared<SlowForm>(std::move(form), kLate);
                numbers.push_back(lab.submit(all[i].request, std::move(form)).value());
            }
            const auto others_done = [&] {
                for (size_t i = 0; i < kNum; ++i)
                    if (i != kSlow && !lab.finished(numbers[i])) return false;
                return true;
            };
            while (!others_done()) lab.step();
            const int64_t late_then = lab.scheduler().stats().late_masks;
            EXPECT_FALSE(lab.finished(numbers[kSlow])) << "the others waited for it";
            lab.run_until_idle();
            EXPECT_GT(late_then, 0);
            EXPECT_GT(lab.scheduler().stats().late_masks, late_then);
            for (size_t i = 0; i < kNum; ++i)
                EXPECT_EQ(digest(lab.completion(numbers[i])), plain().digests[i]) << i;
        }
    }
}

TEST(EngineStructured, ALateRowCanBeAborted) {
    EngineLab lab(lab_config("nano"));
    const Tokenizer& t = *lab.parts().tokenizer;
    grammar::ConstraintCompiler compiler(
        grammar::Vocabulary::of(t, lab.parts().info.vocab_size, lab.parts().info.eos_token_id));
    const Asked a = asked(t, lab.parts().info.vocab_size)[1];
    const auto compiled = compiler.get(a.request.sampling.so_args);
    constexpr int64_t kVeryLate = 60'000;
    const uint64_t number =
        lab.submit(
               a.request,
               std::make_shared<SlowForm>(
                   std::make_shared<grammar::TokenMatcher>(compiled->grammar, false), kVeryLate))
            .value();
    while (lab.scheduler().stats().late_masks == 0) lab.step();
    lab.abort(number);
    lab.run_until_idle();
    EXPECT_EQ(lab.completion(number).choices[0].finish_reason, FinishReason::kAbort);
}

TEST(EngineStructured, DraftsDoNotMatter) {
    for (const int nextn : {1, 2, 3, 5}) {
        EngineConfig c = lab_config("nano");
        c.nextn = nextn;
        c.async_scheduling = nextn % 2 == 1;
        EXPECT_EQ(run(c).digests, plain().digests) << "nextn " << nextn;
        EngineHooks wrong;
        wrong.drafts = random_drafts(2048);
        EXPECT_EQ(run(c, wrong).digests, plain().digests) << "random drafts, nextn " << nextn;
    }
    // All drafts right: the boundary of reasoning falls inside a step.
    EngineLab lab(lab_config("nano"));
    std::vector<Request> requests;
    for (const Asked& a : asked(*lab.parts().tokenizer, lab.parts().info.vocab_size))
        requests.push_back(a.request);
    const auto oracle = std::make_shared<const Oracle>(requests, plain().done);
    for (const int right : {2, 5}) {
        EngineConfig c = lab_config("nano");
        c.nextn = 5;
        EngineHooks hooks;
        hooks.drafts = right_then_wrong(
            oracle, [right](const SlotState&) { return right; }, 2048);
        const Outcome r = run(c, hooks);
        EXPECT_EQ(r.digests, plain().digests) << right << " right drafts";
    }
}

}  // namespace
}  // namespace deepinfer::testing
