#pragma once

#include <algorithm>
#include <string_view>

namespace ebb::cli {

/// Takes the first line off `text` and returns it without its line feed.
inline std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

inline bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

}  // namespace ebb::cli
