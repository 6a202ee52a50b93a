#pragma once

#include <cstdint>

#include "kernels/cpu/unpack.h"

namespace ebb::cpu {

/// 256 activations rounded to int8, 16 to a scale: x ~ scale * q. Products of a weight tile with it
/// have one lane per group of 16 values, and q is stored in the order in which they read it.
/// A group with a NaN or an infinity has scale NaN and q 0, so that it cannot pass for a number.
struct alignas(64) ActTile {
  std::int8_t q[kTileValues];      ///< [4 quarters][16 groups][4 values]
  std::int32_t bias[kTileGroups];  ///< -128 * sum of q: what weights stored as q + 128 add too much
  float scale[kTileGroups];
  float sum[kTileGroups];  ///< scale * sum of q
};

constexpr std::int64_t tiles_of(std::int64_t n_values) {
  return (n_values + kTileValues - 1) / kTileValues;
}

/// Rounds n values into tiles_of(n) tiles, the last one padded with zeros.
void quantise(const float* x, std::int64_t n, ActTile* tiles);

/// h[i] = g * sigmoid(g) * u with g at most clamp and u within +-clamp; NaN stays NaN. h may be g.
void gated(const float* g, const float* u, float clamp, std::int64_t n, float* h);

}  // namespace ebb::cpu
