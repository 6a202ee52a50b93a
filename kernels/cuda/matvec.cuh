#pragma once

#include "kernels/cuda/dot.cuh"

// One activation row: what dot.cuh computes, bit for bit, arranged for the bandwidth of the memory.
// A block keeps the row in shared memory and goes through many tiles of weight rows. A warp asks
// for the weights of its next batch before it multiplies the current one, and for its first batch
// even before the activations are there.

namespace ebb::cuda {

/// All tiles blockIdx.x, + gridDim.x, ... of the launch. find_tile(tile, planes, row) names the
/// calling warp's weight rows; store(tile, sum) is called by one lane of the warps of slice 0. The
/// activations (n_in of them, staged_bytes at `staged`) are read after wait_for_inputs, which it
/// calls.
template <class C, int kWeights, class FindTile, class Store>
__device__ __forceinline__ void matvec(const float* x, int n_in, int n_tiles, int n_slices,
                                       float4* staged, const std::uint64_t* grid_source,
                                       std::uint64_t* grid, float* shared_sums, FindTile find_tile,
                                       Store store) {
  constexpr int kBatch = kWeights >= 4 ? 1 : 4 / kWeights;  // steps of a batch
  using Raw = typename C::Raw;
  const int n_chunks = n_in / (C::kQuads * 4);
  const int n_steps = (n_chunks + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int slice = warp % n_slices;

  struct Tile {
    Planes planes;
    std::int64_t first_chunk[kWeights];
  };
  const auto open = [&](int tile, Tile& t) {
    std::int64_t row[kWeights];
    find_tile(tile, t.planes, row);
#pragma unroll
    for (int w = 0; w < kWeights; ++w) t.first_chunk[w] = row[w] * n_chunks;
  };
  const auto load = [&](const Tile& t, int step, Raw(&raw)[kBatch][kWeights]) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int chunk = (step + b * n_slices) * kWarp + lane;
#pragma unroll
      for (int w = 0; w < kWeights; ++w) {
        if (chunk < n_chunks) {
          C::load(t.planes, t.first_chunk[w] + chunk, raw[b][w]);
        } else {
          raw[b][w] = Raw{};
        }
      }
    }
  };

  Raw raw[kBatch][kWeights], next[kBatch][kWeights];
  int tile = blockIdx.x, step = slice;
  Tile place;
  if (tile < n_tiles) {
    open(tile, place);
    load(place, step, raw);
  }
  wait_for_inputs();
  stage_grid<C>(grid_source, grid);
  const float* const rows[1] = {x};
  stage<C, 1>(rows, n_in, 0, n_steps, staged);
  __syncthreads();
  float sum[kWeights] = {};
  while (tile < n_tiles) {
    int next_tile = tile, next_step = step + kBatch * n_slices;
    // The same for all slices, also for one whose last batch is empty.
    const bool tile_ends = next_step - slice >= n_steps;
    if (tile_ends) {
      next_tile = tile + gridDim.x;
      next_step = slice;
    }
    if (next_tile < n_tiles) {
      if (tile_ends) open(next_tile, place);
      load(place, next_step, next);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int s = step + b * n_slices;
      if (s >= n_steps) break;
      const float4* const at = staged + s * C::kQuads * kWarp + lane;
#pragma unroll
      for (int g = 0; g < C::kQuads / C::kGroupQuads; ++g) {
        float partial[kWeights];
        float total = 0;
#pragma unroll
        for (int w = 0; w < kWeights; ++w) partial[w] = C::kScaled ? 0.0f : sum[w];
#pragma unroll
        for (int k = 0; k < C::kGroupQuads; ++k) {
          const int j = g * C::kGroupQuads + k;
          const float4 value = at[j * kWarp];
#pragma unroll
          for (int w = 0; w < kWeights; ++w) {
            partial[w] = dot4(C::quad(raw[b][w], j, grid), value, partial[w]);
          }
          if constexpr (C::kMinus) total += (value.x + value.y) + (value.z + value.w);
        }
#pragma unroll
        for (int w = 0; w < kWeights; ++w) {
          if constexpr (C::kScaled) {
            sum[w] = fmaf(C::scale(raw[b][w], g), partial[w], sum[w]);
            if constexpr (C::kMinus) sum[w] = fmaf(-C::minus(raw[b][w], g), total, sum[w]);
          } else {
            sum[w] = partial[w];
          }
        }
      }
    }
    if (tile_ends) {
#pragma unroll
      for (int w = 0; w < kWeights; ++w) sum[w] = warp_sum(sum[w]);
      if (n_slices > 1) {
        __syncthreads();  // the sums of the tile before have been read
        if (lane == 0) {
#pragma unroll
          for (int w = 0; w < kWeights; ++w) shared_sums[warp * kWeights + w] = sum[w];
        }
        __syncthreads();
        if (slice == 0) {
          for (int other = 1; other < n_slices; ++other) {
#pragma unroll
            for (int w = 0; w < kWeights; ++w) {
              sum[w] += shared_sums[(warp + other) * kWeights + w];
            }
          }
        }
      }
      if (slice == 0 && lane == 0) store(tile, sum);
#pragma unroll
      for (int w = 0; w < kWeights; ++w) sum[w] = 0;
    }
    tile = next_tile;
    step = next_step;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int w = 0; w < kWeights; ++w) raw[b][w] = next[b][w];
    }
  }
}

}  // namespace ebb::cuda
