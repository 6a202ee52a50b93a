#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ebb::cpu {

/// A part of an op whose tasks are independent: they may run in any order on any worker, and no
/// result may depend on which worker runs a task or on how many workers there are. An op is one or
/// more phases; a phase sees everything that the phases before it wrote.
/// A phase is made at plan time and owns a copy of its arguments; running it allocates nothing.
class Phase {
 public:
  virtual ~Phase() = default;
  /// Tasks of the current step (it may read the step struct). 0 is fine. One task should be worth
  /// 2 microseconds or more; a phase of little work has one task.
  virtual std::int64_t n_tasks() const noexcept = 0;
  /// Runs one task. `scratch` is this worker's own, scratch_bytes() long, aligned to 64.
  virtual void run(std::int64_t task, std::byte* scratch) const noexcept = 0;
  virtual std::size_t scratch_bytes() const noexcept { return 0; }
  /// For per-op time tables.
  virtual const char* name() const noexcept = 0;
};

using PhaseList = std::vector<std::unique_ptr<Phase>>;

/// How products with quantised weights are computed.
///   exact  weights dequantised in registers or an L1 tile, f32 products and sums
///   fast   integer dot products against activations rounded to int8, where the type allows it
enum class Precision { exact, fast };

}  // namespace ebb::cpu
