#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/api/result.h"
#include "modules/safetensors/safetensors.h"

namespace ebb::safetensors {

/// One entry of the header; tensor.offset and tensor.bytes are not set yet.
struct Entry {
  Tensor tensor;
  std::uint64_t begin = 0, end = 0;  ///< of its data, from the start of the data section
};

struct Header {
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<Entry> entries;  ///< in file order
};

/// Reads the JSON text of a header; every entry is complete and consistent in itself, and names are
/// unique.
Result<Header> read_header(const std::string& label, std::string_view text);

/// How a message about a tensor begins.
std::string tensor_place(std::string_view label, std::string_view name);

/// An Error about what the file holds.
template <class... Args>
Error bad_file(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Errc::invalid_argument, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace ebb::safetensors
