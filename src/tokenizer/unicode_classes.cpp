#include "tokenizer/unicode_classes.h"

#include <algorithm>
#include <vector>

namespace deepinfer {

const CharClass* unicode_class_table() {
    static const std::vector<CharClass> table = [] {
        std::vector<CharClass> t(0x110000, CharClass::kNone);
        for (size_t i = 0; i < kNumUnicodeRuns; ++i) {
            const UnicodeRun& run = kUnicodeRuns[i];
            std::fill_n(t.begin() + run.first, run.length, run.char_class);
        }
        return t;
    }();
    return table.data();
}

}  // namespace deepinfer
