#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace ebb::cli {

/// Writes to stderr what people read beside the results. What cannot be written there is dropped: a
/// closed or full stderr ends no run and changes no exit status (fmt::print would throw).
template <class... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace ebb::cli
