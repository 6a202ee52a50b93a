#pragma once

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts_pieces.cuh"

// Tiles of the experts' products by plain f32 arithmetic (dot.cuh).

namespace ebb::cuda {

template <class C, int kRows, int kWeights>
__device__ void down_block(const Product& p, int piece, int skip, int tile) {
  extern __shared__ float4 staged[];
  __shared__ float sums[kWarps * kWeights * kRows];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  const PieceRows<kRows> rows(p, piece, skip);
  if (rows.expert < 0) return;
  stage_grid<C>(p.grid, grid);
  const int warp = threadIdx.x / kWarp, slice = warp % p.n_slices;
  const int first = (tile * (kWarps / p.n_slices) + warp / p.n_slices) * kWeights;
  Planes planes[kWeights];
  std::int64_t row[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    planes[w] = p.a;
    row[w] = static_cast<std::int64_t>(rows.expert) * p.n_out + min(first + w, p.n_out - 1);
  }
  float sum[kWeights][kRows];
  products<C, kRows, kWeights>(rows.in, p.n_in, planes, row, first < p.n_out, slice, p.n_slices,
                               staged, grid, sums, sum);
  if (slice != 0 || threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    if (first + w >= p.n_out) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows.in[r] != nullptr) rows.out[r][first + w] = sum[w][r];
    }
  }
}

/// kPairs rows of gate with the same rows of up.
template <class C, int kRows, int kPairs>
__device__ void gate_up_block(const Product& p, int piece, int skip, int tile) {
  extern __shared__ float4 staged[];
  constexpr int kWeights = 2 * kPairs;
  __shared__ float sums[kWarps * kWeights * kRows];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  const PieceRows<kRows> rows(p, piece, skip);
  if (rows.expert < 0) return;
  stage_grid<C>(p.grid, grid);
  const int warp = threadIdx.x / kWarp, slice = warp % p.n_slices;
  const int first = (tile * (kWarps / p.n_slices) + warp / p.n_slices) * kPairs;
  Planes planes[kWeights];
  std::int64_t row[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    planes[w] = w % 2 == 0 ? p.a : p.b;
    row[w] = static_cast<std::int64_t>(rows.expert) * p.n_out + min(first + w / 2, p.n_out - 1);
  }
  float sum[kWeights][kRows];
  products<C, kRows, kWeights>(rows.in, p.n_in, planes, row, first < p.n_out, slice, p.n_slices,
                               staged, grid, sums, sum);
  if (slice != 0 || threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (first + i >= p.n_out) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows.in[r] != nullptr) {
        rows.out[r][first + i] = gated(sum[2 * i][r], sum[2 * i + 1][r], p.clamp);
      }
    }
  }
}

}  // namespace ebb::cuda
