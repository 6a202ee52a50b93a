#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/result.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/phase.h"
#include "kernels/cpu/unpack.h"
#include "kernels/ops/dense.h"

// The arithmetic under matmul and experts: a block of weight rows times a block of activation rows.
//
// The bits of one y depend on one weight row and one activation row alone. Every sum runs in 16
// lanes, in ascending order of k within a lane, and the lanes are added as a fixed tree; blocking,
// threads and the number of rows change nothing.

namespace ebb::cpu {

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

inline constexpr std::int32_t kMaxActRows = 64;  ///< activation rows of one product

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

/// An error that names `op` and `what` unless the weight can be multiplied.
Status check_weight(const char* op, const char* what, const Weight& weight);

}  // namespace ebb::cpu
