// Spellings of the template's special tokens (fullwidth bars U+FF5C, blocks U+2581).
#pragma once

#include <string_view>

namespace deepinfer::recipe {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemToken = "<｜System｜>";
inline constexpr std::string_view kUserToken = "<｜User｜>";
inline constexpr std::string_view kAssistantToken = "<｜Assistant｜>";
inline constexpr std::string_view kReminderToken = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
/// What the model writes to point into an image.
inline constexpr std::string_view kGroundingTokens[] = {"<｜ref｜>",
                                                        "<｜/ref｜>",
                                                        "<｜box｜>",
                                                        "<｜/box｜>",
                                                        "<｜point｜>",
                                                        "<｜/point｜>",
                                                        "<｜polygon｜>",
                                                        "<｜/polygon｜>"};
inline constexpr std::string_view kDsml = "｜DSML｜";  // a token of its own, without angle brackets

}  // namespace deepinfer::recipe
