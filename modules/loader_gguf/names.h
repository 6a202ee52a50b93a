#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "modules/loader_gguf/cursor.h"
#include "modules/loader_gguf/place.h"

// What keys and tensors have in common: each begins with a name, and may be cut off by the file's
// end.

namespace ebb::gguf {

/// `place` begins the message.
inline Error truncated(std::string_view place, const char* what, const Cursor& cursor) {
  return bad_file("{}: truncated: the file ends inside {}, at {}", place, what, cursor.size());
}

/// A length and so many bytes: at least one, at most `max_bytes`, and fit to print.
inline Result<std::string_view> read_name(std::string_view place, std::uint64_t max_bytes,
                                          Cursor& cursor) {
  std::uint64_t length = 0;
  if (!cursor.read(length)) return truncated(place, "the name", cursor);
  if (length == 0) return bad_file("{}: the name is empty", place);
  if (length > max_bytes) {
    return bad_file("{}: name length {} exceeds {}", place, length, max_bytes);
  }
  std::string_view name;
  if (!cursor.read_text(length, name)) return truncated(place, "the name", cursor);
  if (!is_plain_text(name)) {
    return bad_file("{}: the name {} holds a control character or is not UTF-8", place,
                    printable(name));
  }
  return name;
}

}  // namespace ebb::gguf
