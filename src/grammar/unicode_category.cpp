// General categories from utf8proc's tables (Unicode 15).
#include <utf8proc.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

const std::map<std::string, std::string>& long_names() {
    static const std::map<std::string, std::string> names = {{"Letter", "L"},
                                                             {"Cased_Letter", "LC"},
                                                             {"Uppercase_Letter", "Lu"},
                                                             {"Lowercase_Letter", "Ll"},
                                                             {"Titlecase_Letter", "Lt"},
                                                             {"Modifier_Letter", "Lm"},
                                                             {"Other_Letter", "Lo"},
                                                             {"Mark", "M"},
                                                             {"Nonspacing_Mark", "Mn"},
                                                             {"Spacing_Mark", "Mc"},
                                                             {"Enclosing_Mark", "Me"},
                                                             {"Number", "N"},
                                                             {"Decimal_Number", "Nd"},
                                                             {"digit", "Nd"},
                                                             {"Letter_Number", "Nl"},
                                                             {"Other_Number", "No"},
                                                             {"Punctuation", "P"},
                                                             {"punct", "P"},
                                                             {"Symbol", "S"},
                                                             {"Math_Symbol", "Sm"},
                                                             {"Currency_Symbol", "Sc"},
                                                             {"Modifier_Symbol", "Sk"},
                                                             {"Other_Symbol", "So"},
                                                             {"Separator", "Z"},
                                                             {"Space_Separator", "Zs"},
                                                             {"Line_Separator", "Zl"},
                                                             {"Paragraph_Separator", "Zp"}};
    return names;
}

std::map<std::string, CharSet> make_table() {
    std::map<std::string, CharSet> table;
    std::string last;
    uint32_t start = 0;
    const auto close = [&](uint32_t end) {
        if (last.empty() || end < start) return;
        const CharSet run = CharSet::of(start, end).intersect(CharSet::universe());
        table[last].add(run);
        table[last.substr(0, 1)].add(run);
        if (last == "Lu" || last == "Ll" || last == "Lt") table["LC"].add(run);
    };
    for (uint32_t c = 0; c <= kMaxCodePoint; ++c) {
        const std::string now = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
        if (now == last) continue;
        if (c > 0) close(c - 1);
        last = now;
        start = c;
    }
    close(kMaxCodePoint);
    return table;
}

}  // namespace

CharSet unicode_category(const std::string& name) {
    static const std::map<std::string, CharSet> table = make_table();
    const auto alias = long_names().find(name);
    const auto it = table.find(alias == long_names().end() ? name : alias->second);
    return it == table.end() ? CharSet() : it->second;
}

}  // namespace deepinfer::grammar
