#pragma once

#include "tests/tokenizer/fake_host.h"

namespace ebb::test {

/// A small good vocabulary: ids 0..2 control tokens, 3..258 the bytes in order, then one token per
/// merge of kSmallMerges, then <think> </think> <｜User｜> <｜Assistant｜> ｜DSML｜ (user-defined)
/// and
/// "[PAD]" (unused).
FakeLoader small_model();

inline constexpr std::int32_t kFirstByte = 3;
inline constexpr std::int32_t kFirstMerge = kFirstByte + 256;
inline constexpr std::int32_t kFirstMarkup = kFirstMerge + 7;
inline constexpr std::int32_t kThinkOpen = kFirstMarkup;
inline constexpr std::int32_t kThinkClose = kFirstMarkup + 1;
inline constexpr std::int32_t kUser = kFirstMarkup + 2;
inline constexpr std::int32_t kAssistant = kFirstMarkup + 3;
inline constexpr std::int32_t kDsml = kFirstMarkup + 4;
inline constexpr std::int32_t kSmallVocabulary = kFirstMarkup + 6;

}  // namespace ebb::test
