#pragma once

#include <string>

#include "core/api/result.h"

namespace ebb::cli {

/// `ebb inspect` of a trace: its header and totals. A torn one is shown as far as it goes.
Result<int> inspect_trace(const std::string& path, bool is_json);

}  // namespace ebb::cli
