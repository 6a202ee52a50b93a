#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/planes.h"
#include "kernels/ops/moe.h"

// The work of the experts as products of pieces: up to kGroupRows activation rows that meet one
// expert. What the kernels of plain and of tensor products share.

namespace ebb::cuda {

inline constexpr int kGroupRows = 8;     // rows of a piece
inline constexpr int kMaxUngrouped = 8;  // rows of a step that is not grouped

struct Piece {
  std::int32_t expert;
  std::int32_t first;  // entry
  std::int32_t n;
};

struct Groups {
  std::int32_t* n_pieces = nullptr;
  std::int32_t* entries = nullptr;  // [rows * n_used] row * n_used + slot, by expert
  Piece* pieces = nullptr;

  static std::int64_t max_pieces(std::int64_t rows, std::int64_t n_used, std::int64_t n_experts) {
    return rows * n_used / kGroupRows + n_experts;
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

__device__ __forceinline__ float gated(float gate, float up, float clamp) {
  gate = gate > clamp ? clamp : gate;
  up = up > clamp ? clamp : up;
  up = up < -clamp ? -clamp : up;
  float negative = -gate;
  negative = negative > 88.0f ? 88.0f : negative;
  return gate * (1.0f / (1.0f + expf(negative))) * up;
}

/// The rows of the block's piece: places in `in` and `out`, and the expert.
template <int kRows>
struct PieceRows {
  const float* in[kRows];
  float* out[kRows];
  std::int32_t expert = -1;

  /// `piece` counts pieces, or pairs of row and slot if there are no groups.
  __device__ PieceRows(const Product& p, int piece_index) {
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
      first = piece.first;
      n = piece.n;
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

/// How the product is launched: pieces, and whether they hold one row or up to kGroupRows.
struct PieceGrid {
  std::int64_t n = 0;
  bool grouped = false;
};

/// out = W in for all pieces, or out = gated(gate in, up in) with `gate_up`; the plain kernels.
cudaError_t plain_product(const Launch& launch, DType type, const Product& p, const PieceGrid& grid,
                          bool gate_up);
/// The same on the matrix units, for has_tensor_codec types of at most kMaxTensorInputs inputs.
cudaError_t tensor_product(const Launch& launch, DType type, const Product& p,
                           const PieceGrid& grid, bool gate_up);
/// Routed experts on the matrix units and the shared expert, of Q8_0, in one launch; no groups.
cudaError_t both_products(const Launch& launch, DType routed_type, const Product& routed,
                          std::int64_t routed_pieces, const Product& shared,
                          std::int64_t shared_pieces, bool gate_up);

}  // namespace ebb::cuda
