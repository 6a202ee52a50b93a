#pragma once

#include <string>

#include "core/api/result.h"

namespace ebb::cli {

/// Whether the file is called .safetensors, or begins like one.
bool is_safetensors(const std::string& path);

/// `ebb inspect` of a .safetensors file: metadata, tensors, totals by type.
Result<int> inspect_safetensors(const std::string& path, bool is_json, bool full);

}  // namespace ebb::cli
