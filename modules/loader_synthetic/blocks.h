#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api/types.h"

namespace ebb::synthetic {

/// SplitMix64: the same numbers on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept;
  /// 0..bound-1.
  std::uint32_t below(std::uint32_t bound) noexcept;
  /// About normal, mean 0, standard deviation 1 (sum of four uniforms).
  float normal() noexcept;

 private:
  std::uint64_t state_;
};

/// Whether random blocks of this type can be made.
bool can_fill(DType type) noexcept;

/// Fills `bytes` (whole blocks of `type`) with valid random blocks whose values have mean near 0
/// and root mean square `rms`. The scales stay finite and normal.
void fill_blocks(DType type, float rms, Random& random, std::span<std::byte> bytes) noexcept;

}  // namespace ebb::synthetic
