#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/api/compute.h"
#include "kernels/ops/attention.h"

namespace ebb {

/// Fills stored rows and compressor state with random values of mean 0 and standard deviation 1,
/// which is about the size that norms leave them. Members may throw std::bad_alloc.
class RandomState {
 public:
  RandomState(Compute& compute, std::uint64_t seed) : compute_(compute), random_(seed) {}

  /// Rows 0..n_rows-1 of a sequence; d and n_rot as in row_format.h.
  Status fill(const RowStore& store, std::int32_t sequence, std::int64_t n_rows, std::int32_t d,
              std::int32_t n_rot);
  /// `count` f32 values in compute memory.
  Status fill(float* values, std::int64_t count);

 private:
  /// Encoded rows of one shape.
  struct Pool {
    RowFormat format;
    std::int32_t d;
    std::int32_t n_rot;
    std::vector<std::byte> rows;
  };
  const Pool& pool_of(RowFormat format, std::int32_t d, std::int32_t n_rot);
  float normal();

  Compute& compute_;
  std::mt19937_64 random_;
  std::vector<Pool> pools_;
};

}  // namespace ebb
