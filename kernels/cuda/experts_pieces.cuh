#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/planes.h"
#include "kernels/ops/moe.h"

// The work of the experts as products of pieces, activation rows that meet one expert: how entries
// are grouped, for all ways to multiply, and the products by plain f32 arithmetic, kGroupRows rows
// at a time.

namespace ebb::cuda {

inline constexpr int kGroupRows = 8;

struct Groups {
  std::int32_t* n_pieces = nullptr;  // and behind it the piece_cost of all (pieces.h)
  std::int32_t* entries = nullptr;   // [rows * n_used] row * n_used + slot, by expert
  Piece* pieces = nullptr;
  std::int32_t piece_rows = 1;
  std::int32_t per_vector = 1;  // columns of a row

  std::int64_t max_pieces(std::int64_t rows, std::int64_t n_used, std::int64_t n_experts) const {
    return rows * n_used / piece_rows + n_experts;
  }
};

struct Product {
  const std::int32_t* n_rows = nullptr;
  const float* in = nullptr;
  float* out = nullptr;
  const std::int32_t* ids = nullptr;  // nullptr: the shared expert
  Groups groups;                      // entries nullptr: not grouped
  Planes a, b;                        // gate and up, or down
  const std::uint64_t* grid = nullptr;
  std::int32_t n_in = 0;
  std::int32_t n_out = 0;  // per expert
  std::int32_t n_experts = 0;
  std::int32_t n_used = 0;
  std::int32_t n_slices = 1;
  bool in_by_slot = false;  // in is [rows, n_used + 1, n_in]
  float clamp = 0;
};

/// Up to kRows rows of the block's piece, from row `skip` on: places in `in` and `out`, and the
/// expert.
template <int kRows>
struct PieceRows {
  const float* in[kRows];
  float* out[kRows];
  std::int32_t expert = -1;

  /// `piece_index` counts pieces, or pairs of row and slot if there are no groups.
  __device__ PieceRows(const Product& p, int piece_index, int skip) {
    const int n_rows = *p.n_rows;
    const int n_slots = p.n_used + 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) in[r] = nullptr;
    std::int32_t first = piece_index * kRows, n = kRows;
    if (p.ids == nullptr) {
      if (first >= n_rows) return;
      n = min(kRows, n_rows - first);
      expert = 0;
    } else if (p.groups.entries != nullptr) {
      if (piece_index >= *p.groups.n_pieces) return;
      const Piece piece = p.groups.pieces[piece_index];
      if (skip >= piece.n) return;
      first = piece.first + skip;
      n = min(kRows, piece.n - skip);
      expert = piece.expert;
    } else {
      if (first >= n_rows * p.n_used) return;  // kRows is 1
      const std::int32_t id = p.ids[first];
      if (id < 0 || id >= p.n_experts) return;
      expert = id;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      std::int64_t row = first + r;
      int slot = p.n_used;
      if (p.ids != nullptr) {
        const std::int32_t entry =
            p.groups.entries != nullptr ? p.groups.entries[first + r] : first + r;
        row = entry / p.n_used;
        slot = entry % p.n_used;
      }
      const std::int64_t place = row * n_slots + slot;
      in[r] = p.in + (p.in_by_slot ? place : row) * p.n_in;
      out[r] = p.out + place * p.n_out;
    }
  }
};

/// How the product is launched: pieces, and whether they hold one row or more.
struct PieceGrid {
  std::int64_t n = 0;
  bool grouped = false;
};

/// out = W in for all pieces, or out = gated(gate in, up in) with `gate_up`; by plain arithmetic.
cudaError_t plain_product(const Launch& launch, DType type, const Product& p, const PieceGrid& grid,
                          bool gate_up);

}  // namespace ebb::cuda
