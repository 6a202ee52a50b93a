#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/api/result.h"
#include "modules/mapped_files/text.h"

namespace ebb::gguf {

using files::is_plain_text;
using files::printable;

/// How messages begin; `label` is the file's path, printable already.
inline std::string key_place(std::string_view label, std::string_view name, std::uint64_t offset) {
  return fmt::format("{}: key {} at offset {}", label, printable(name), offset);
}
inline std::string tensor_place(std::string_view label, std::string_view name, std::uint64_t offset,
                                std::uint64_t data_offset) {
  return fmt::format("{}: tensor {} at offset {}, data at {}", label, printable(name), offset,
                     data_offset);
}

/// An Error about what the file holds.
template <class... Args>
Error bad_file(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Errc::invalid_argument, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace ebb::gguf
