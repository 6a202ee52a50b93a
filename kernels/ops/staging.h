#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/staging.h"

namespace ebb {

// Ops that tie a step to what the host keeps beside it.

/// Copies every move's row, then sets its table entry.
struct MoveRowsArgs {
  SlotMoves moves;
};

/// to[0, bytes) = from[0, bytes); one of them may be host memory of Compute::allocate_host.
struct CopyArgs {
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t bytes = 0;
};

/// Calls `function(context, index)` on the host when the ops before it are done; the ops after it
/// see what it wrote to host memory. It must not call the backend.
struct HostCallArgs {
  void (*function)(void* context, std::int32_t index) noexcept = nullptr;
  void* context = nullptr;
  std::int32_t index = 0;
};

}  // namespace ebb
