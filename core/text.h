#pragma once

#include <string>
#include <string_view>

namespace ebb {

/// `text` fit for one line of a terminal: control characters (C0, DEL, and C1 in UTF-8) become
/// \xNN, and what is longer than `limit` bytes is cut between characters. Other bytes are kept.
inline std::string printable(std::string_view text, std::size_t limit = 400) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1_head = byte == 0xc2 && i + 1 < text.size() && (text[i + 1] & 0xe0) == 0x80;
    const bool c1_tail = (byte & 0xe0) == 0x80 && i > 0 && text[i - 1] == '\xc2';
    if (out.size() >= limit && (byte & 0xc0) != 0x80) return out + "...";
    // U+200E, U+200F, U+2028..U+202E and U+2066..U+2069 turn the direction or break the line.
    const auto next = [&](std::size_t n) {
      return i + n < text.size() ? static_cast<unsigned char>(text[i + n]) : 0;
    };
    const bool turns =
        byte == 0xe2 &&
        ((next(1) == 0x80 && ((next(2) & 0xfe) == 0x8e || (next(2) >= 0xa8 && next(2) <= 0xae))) ||
         (next(1) == 0x81 && next(2) >= 0xa6 && next(2) <= 0xa9));
    if (byte < 0x20 || byte == 0x7f || c1_head || c1_tail || turns) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace ebb
