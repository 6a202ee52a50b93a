#pragma once

#include <cstdint>
#include <span>

#include "core/api/memory.h"

namespace ebb {

/// Hears what the engine tells its swap module, just before: told the same again, with the same
/// selections, the same module decides the same. In each call, the log of the step before can be
/// read (Staging::log). Thread: [decode]
class SwapObserver {
 public:
  virtual ~SwapObserver() = default;
  virtual void sequence_opens(std::int32_t sequence) noexcept = 0;
  /// All steps are settled.
  virtual void sequence_closes(std::int32_t sequence) noexcept = 0;
  /// By row, as in StepView.
  virtual void step_begins(std::span<const std::int32_t> pos,
                           std::span<const std::int32_t> seq) noexcept = 0;
  virtual void scored(const Forecast& forecast) noexcept = 0;
  virtual void settles() noexcept = 0;
};

}  // namespace ebb
