#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "modules/loader_gguf/cursor.h"
#include "modules/loader_gguf/gguf_file.h"

namespace ebb::gguf {

/// Reads `n_tensors` directory entries at the cursor, which walks `bytes`, and places each tensor
/// in the data section that follows at the next multiple of `alignment`. Errors as parse().
Result<std::vector<Tensor>> read_directory(const std::string& label, Cursor& cursor,
                                           std::span<const std::byte> bytes,
                                           std::uint64_t n_tensors, std::uint64_t alignment);

}  // namespace ebb::gguf
