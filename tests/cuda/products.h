#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda/device.h"
#include "tests/kernels/random_weights.h"

// What the cases of products and those of experts share; they are one program.

namespace ebb::test {

inline constexpr std::int32_t kMostRows = 300;

inline const char* name_of(cuda::Precision precision) {
  return precision == cuda::Precision::fast ? "fast" : "exact";
}

inline TestDevice& device() {
  static TestDevice the_device;  // a test program's, made when main has found a GPU
  return the_device;
}

/// Rows of very different magnitude: each has a scale of its own.
inline std::vector<float> activations(std::int32_t n_rows, std::int64_t n, std::uint32_t seed) {
  std::vector<float> x = random_floats(n_rows * n, seed);
  for (std::int32_t r = 0; r < n_rows; ++r) {
    const float scale = std::ldexp(1.0f, (r * 7) % 31 - 15);
    for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(r * n + i)] *= scale;
  }
  return x;
}

inline bool same_bits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

}  // namespace ebb::test
