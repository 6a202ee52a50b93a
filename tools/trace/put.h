#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "core/api/result.h"

namespace ebb::trace {

/// Takes the next bytes of a file that is being made. Whoever owns the file decides what becomes of
/// it if something fails.
using Put = std::function<Status(std::span<const std::byte>)>;

}  // namespace ebb::trace
