// Text from a file goes to a terminal, so it is taken as hostile: one character is decoded at a
// time and everything that could move the cursor, hide or reorder what follows is shown by its
// bytes.
#include "modules/mapped_files/text.h"

#include <cstdint>

namespace ebb::files {
namespace {

struct Character {
  std::size_t bytes = 1;
  char32_t code = 0;
  bool valid = false;
};

Character decode_at(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, first, true};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) return {};
  char32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {length, code, true};
}

bool shows_as_itself(char32_t code) noexcept {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;  // C0, DEL, C1
  if (code >= 0x200B && code <= 0x200F) return false;              // zero width, direction marks
  if (code >= 0x2028 && code <= 0x202E) return false;              // line separators, overrides
  if (code >= 0x2060 && code <= 0x206F) return false;              // invisible operators, isolates
  return code != 0xAD && code != 0xFEFF && (code < 0xFFF9 || code > 0xFFFB);
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const Character next = decode_at(text, at);
    if (at + next.bytes > limit) {
      return shown + "... (" + std::to_string(text.size()) + " bytes)";
    }
    if (next.valid && shows_as_itself(next.code)) {
      shown.append(text.substr(at, next.bytes));
    } else {
      for (std::size_t i = 0; i < next.bytes; ++i) {
        const auto byte = static_cast<unsigned char>(text[at + i]);
        shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    at += next.bytes;
  }
  return shown;
}

bool is_plain_text(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const Character next = decode_at(text, at);
    if (!next.valid || !shows_as_itself(next.code)) return false;
    at += next.bytes;
  }
  return true;
}

}  // namespace ebb::files
