#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb {

/// `text` fit for one line of a terminal: control characters (C0, DEL, and C1 in their UTF-8 form)
/// become \xNN, and what is longer than `limit` bytes is cut with "...". Other bytes are kept.
inline std::string printable(std::string_view text, std::size_t limit = 400) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool control =
        byte < 0x20 || byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next < 0xa0);
    // Never cut inside a UTF-8 sequence: continuation bytes are 10xxxxxx.
    if (out.size() >= limit && (byte & 0xc0) != 0x80) return out + "...";
    if (control) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace ebb
