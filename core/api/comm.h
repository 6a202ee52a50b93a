#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api/module.h"

namespace ebb {

/// Ranks that run one model together. Buffers are host memory, borrowed for the call; every rank
/// makes the same calls in the same order. Thread: [decode]; blocking.
/// Errors: device if the transport fails, invalid_argument if sizes differ between ranks or a rank
/// does not exist.
class Comm : public Module {
 public:
  static constexpr const char* kKind = "comm";

  virtual std::int32_t rank() const noexcept = 0;
  virtual std::int32_t size() const noexcept = 0;
  /// After the call `bytes` holds rank `root`'s bytes everywhere.
  virtual Status broadcast(std::span<std::byte> bytes, std::int32_t root) noexcept = 0;
  /// Element-wise sum over ranks, in rank order, the same bits on every rank.
  virtual Status all_reduce_sum(std::span<float> values) noexcept = 0;
  /// `all` (size() * mine.size() floats) receives rank 0's values first.
  virtual Status all_gather(std::span<const float> mine, std::span<float> all) noexcept = 0;
  virtual Status barrier() noexcept = 0;
};

}  // namespace ebb
