// Fuzz target: constraints. The first byte chooses the kind, the rest is its text: productions or a
// refusal, never a crash. The library behind is not run: it only sees what this makes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "grammar/lowering.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace deepinfer;
    using Type = StructuredOutputArgs::Type;
    constexpr Type kTypes[] = {Type::kJson, Type::kRegex, Type::kEbnf, Type::kStructuralTag};
    if (size == 0) return 0;
    StructuredOutputArgs args = StructuredOutputArgs::of(
        kTypes[data[0] % 4], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
    args.strict = (data[0] & 4) != 0;
    grammar::Limits small;
    small.automaton_states = 200;
    small.grammar_size = 10000;
    try {
        const grammar::Lowered lowered = grammar::lower(args, small);
        if (lowered.ebnf.rfind("root ::= ", 0) != 0) __builtin_trap();
    } catch (const grammar::Refusal& r) {
        if (r.reason.empty()) __builtin_trap();
    }
    return 0;
}
