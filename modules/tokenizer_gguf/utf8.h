#pragma once

#include <unicode/utf8.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ebb::tokenizer_gguf {

struct CodePoint {
  std::int32_t value;  ///< negative: bytes that are not UTF-8
  std::size_t end;     ///< position behind it; at least one byte further
};

/// The code point that begins at `position` < text.size(). Surrogates, overlong forms and values
/// over U+10FFFF are not UTF-8. A broken sequence counts as one code point up to the byte that
/// broke it, as in the Unicode standard's advice for U+FFFD (section 3.9, maximal subparts).
inline CodePoint code_point_at(std::string_view text, std::size_t position) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t size = text.size();
  UChar32 value;
  U8_NEXT(bytes, position, size, value);
  return {value, position};
}

}  // namespace ebb::tokenizer_gguf
