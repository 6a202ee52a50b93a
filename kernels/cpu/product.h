#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/ops_dense.h"
#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/cpu/unpack.h"

// The arithmetic under matmul and experts: a block of weight rows times a block of activation rows.
//
// The bits of one y depend on one weight row and one activation row alone. Every sum runs in 16
// lanes, in ascending order of k within a lane, and the lanes are added as a fixed tree; blocking,
// threads and the number of rows change nothing.

namespace ebb::cpu {

/// 256 activations rounded to int8, 16 to a scale: x ~ scale * q. Products of a weight tile with it
/// have one lane per group of 16 values, so q is stored in the order in which the product reads it,
/// and the arrays go by lane: lane p is group 4 * (p % 4) + p / 4.
/// A group with a NaN or an infinity has scale NaN and q 0, so that it cannot pass for a number.
struct alignas(64) ActTile {
  std::int8_t q[kTileValues];      ///< [4 quarters][16 lanes][4 values]
  std::int32_t bias[kTileGroups];  ///< -128 * sum of q: what weights stored as q + 128 add too much
  float scale[kTileGroups];
  float sum[kTileGroups];  ///< scale * sum of q
};

constexpr std::int64_t tiles_of(std::int64_t n_values) {
  return (n_values + kTileValues - 1) / kTileValues;
}

/// Rounds n values into tiles_of(n) tiles, the last one padded with zeros.
void quantise(const float* x, std::int64_t n, ActTile* tiles);

/// A weight as products use it; made at plan time.
struct ProductWeight {
  ProductWeight() = default;
  ProductWeight(const Weight& weight, Precision precision);

  /// Row `row` of matrix `mat`.
  const std::byte* row(std::int64_t mat, std::int64_t row) const {
    return data + (mat * n_out + row) * bytes_per_row;
  }

  const std::byte* data = nullptr;
  DType type = DType::f32;
  std::int64_t n_in = 0;
  std::int64_t n_out = 0;
  std::int64_t bytes_per_row = 0;
  Unpacker unpacker;
  bool integer = false;  ///< multiplies ActTiles, not floats
};

inline constexpr std::int32_t kMaxActRows = 128;  ///< activation rows of one product

/// Where the activation rows of a product are: `x` for float products, `tiles` for integer ones.
struct ActRows {
  std::int32_t n = 0;                 ///< 1..kMaxActRows
  const float* x[kMaxActRows];        ///< [n][n_in]
  const ActTile* tiles[kMaxActRows];  ///< [n][tiles_of(n_in)]
};

/// y[a][i] = weight row (first + i) of `mat` times activation row a, for i < n_rows.
/// `scratch` is product_scratch_bytes() long and aligned to 64.
void product(const ProductWeight& weight, std::int64_t mat, std::int64_t first, std::int64_t n_rows,
             const ActRows& acts, float* const* y, std::byte* scratch);

std::size_t product_scratch_bytes();

/// Weight rows that make one task, given how many activation rows they meet.
std::int64_t rows_per_task(std::int64_t n_in, std::int32_t n_acts);

/// h[i] = g * sigmoid(g) * u with g at most clamp and u within +-clamp; NaN stays NaN. h may be g.
void gated(const float* g, const float* u, float clamp, std::int64_t n, float* h);

/// An error that names `op` and `what` unless the weight can be multiplied.
Status check_weight(const char* op, const char* what, const Weight& weight);

}  // namespace ebb::cpu
