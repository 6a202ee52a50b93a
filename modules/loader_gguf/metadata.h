#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "modules/loader_gguf/cursor.h"
#include "modules/loader_gguf/gguf_file.h"

namespace ebb::gguf {

/// Reads `n_keys` metadata entries at the cursor. Errors as parse().
Result<std::vector<Key>> read_metadata(const std::string& label, Cursor& cursor,
                                       std::uint64_t n_keys);

}  // namespace ebb::gguf
