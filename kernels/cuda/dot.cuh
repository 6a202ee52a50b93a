#pragma once

#include <cstdint>

#include "kernels/cuda/codec.cuh"

// Dot products of stored weight rows with activation rows. A warp takes kWeights weight rows at a
// time against kRows activation rows. Lane l sums, in ascending order of steps, the chunks that are
// its own; then the lanes are added as a tree, then the warps that share a row in order. So the
// bits of an element depend on its weight row and its activation row alone, not on kWeights, kRows
// or the size of the tiles that activations are staged in.
//
// Activations are staged in shared memory in the order in which lanes read them: quad j of chunk
// 32 s + l of row r at float4 index ((r * steps + s) * kQuads + j) * 32 + l; no two lanes of a read
// meet in a bank.

namespace ebb::cuda {

inline constexpr int kThreads = 256;  ///< of a block of products
inline constexpr int kWarps = kThreads / kWarp;
inline constexpr int kStagedFloats = 16384;  ///< activations staged at a time

/// Values of one step of a warp.
template <class C>
inline constexpr int kStepValues = C::kQuads * 4 * kWarp;

/// Steps that are staged at a time.
template <class C, int kRows>
inline constexpr int kTileSteps =
    kStagedFloats / kRows / kStepValues<C> > 0 ? kStagedFloats / kRows / kStepValues<C> : 1;

template <class C, int kRows>
constexpr std::size_t staged_bytes(std::int64_t n_in) {
  const std::int64_t steps = (n_in + kStepValues<C> - 1) / kStepValues<C>;
  const std::int64_t tile = steps < kTileSteps<C, kRows> ? steps : kTileSteps<C, kRows>;
  return static_cast<std::size_t>(kRows * tile * kStepValues<C>) * sizeof(float);
}

/// Stages steps [first, first + n) of the rows; x[r] is nullptr for a row that is not there.
template <class C, int kRows>
__device__ __forceinline__ void stage(const float* const (&x)[kRows], int n_in, int first, int n,
                                      float4* staged) {
  const int quads = n * C::kQuads * kWarp;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
      const int lane = i % kWarp, j = i / kWarp % C::kQuads, s = i / kWarp / C::kQuads;
      const int position = C::position((first + s) * kWarp + lane, j);
      float4 value = make_float4(0, 0, 0, 0);
      if (x[r] != nullptr && position < n_in) {
        value = *reinterpret_cast<const float4*>(x[r] + position);
      }
      staged[r * quads + i] = value;
    }
  }
}

/// Adds steps `slice`, slice + n_slices, ... of a staged tile to the sums. Weight row w is row
/// row[w] of planes[w].
template <class C, int kRows, int kWeights>
__device__ __forceinline__ void add_steps(const Planes (&planes)[kWeights],
                                          const std::int64_t (&first_chunk)[kWeights], int n_chunks,
                                          int first, int n, int slice, int n_slices,
                                          const float4* staged, const std::uint64_t* grid,
                                          float (&sum)[kWeights][kRows]) {
  // Loads in flight per lane.
  constexpr int kBatch = kWeights >= 8 ? 1 : 8 / kWeights;
  using Raw = typename C::Raw;
  const int lane = threadIdx.x % kWarp;
  // The first step at or after `first` that is this slice's.
  int s = (slice - first % n_slices + n_slices) % n_slices;
  for (; s < n; s += kBatch * n_slices) {
    Raw raw[kBatch][kWeights];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int step = s + b * n_slices;
      const int chunk = (first + step) * kWarp + lane;
      const bool there = step < n && chunk < n_chunks;
#pragma unroll
      for (int w = 0; w < kWeights; ++w) {
        if (there) {
          C::load(planes[w], first_chunk[w] + chunk, raw[b][w]);
        } else {
          raw[b][w] = Raw{};
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int step = s + b * n_slices;
      if (step >= n) break;
      const float4* const x = staged + step * C::kQuads * kWarp + lane;
#pragma unroll
      for (int g = 0; g < C::kQuads / C::kGroupQuads; ++g) {
        float partial[kWeights][kRows];
        float total[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          total[r] = 0;
#pragma unroll
          for (int w = 0; w < kWeights; ++w) partial[w][r] = C::kScaled ? 0.0f : sum[w][r];
        }
#pragma unroll
        for (int k = 0; k < C::kGroupQuads; ++k) {
          const int j = g * C::kGroupQuads + k;
          float4 weight[kWeights];
#pragma unroll
          for (int w = 0; w < kWeights; ++w) weight[w] = C::quad(raw[b][w], j, grid);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const float4 value = x[(r * n * C::kQuads + j) * kWarp];
#pragma unroll
            for (int w = 0; w < kWeights; ++w) {
              partial[w][r] = dot4(weight[w], value, partial[w][r]);
            }
            if constexpr (C::kMinus) total[r] += (value.x + value.y) + (value.z + value.w);
          }
        }
#pragma unroll
        for (int w = 0; w < kWeights; ++w) {
          if constexpr (C::kScaled) {
            const float scale = C::scale(raw[b][w], g);
#pragma unroll
            for (int r = 0; r < kRows; ++r) sum[w][r] = fmaf(scale, partial[w][r], sum[w][r]);
            if constexpr (C::kMinus) {
              const float minus = C::minus(raw[b][w], g);
#pragma unroll
              for (int r = 0; r < kRows; ++r) sum[w][r] = fmaf(-minus, total[r], sum[w][r]);
            }
          } else {
#pragma unroll
            for (int r = 0; r < kRows; ++r) sum[w][r] = partial[w][r];
          }
        }
      }
    }
  }
}

/// Copies the codebook to shared memory where the codec wants one.
template <class C>
__device__ __forceinline__ void stage_grid(const std::uint64_t* grid, std::uint64_t* shared) {
  if constexpr (C::kGrid) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) shared[i] = grid[i];
  }
}

/// The whole product: on return, in every warp whose slice is 0, each lane holds the finished sums.
/// All threads of the block call it with the same x; `staged` has staged_bytes. `shared_sums` holds
/// kWarps * kWeights * kRows floats.
template <class C, int kRows, int kWeights>
__device__ __forceinline__ void products(const float* const (&x)[kRows], int n_in,
                                         const Planes (&planes)[kWeights],
                                         const std::int64_t (&row)[kWeights], bool active,
                                         int slice, int n_slices, float4* staged,
                                         const std::uint64_t* grid, float* shared_sums,
                                         float (&sum)[kWeights][kRows]) {
  const int n_chunks = n_in / (C::kQuads * 4);
  const int n_steps = (n_chunks + kWarp - 1) / kWarp;
  std::int64_t first_chunk[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    first_chunk[w] = row[w] * n_chunks;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[w][r] = 0;
  }
  for (int first = 0; first < n_steps; first += kTileSteps<C, kRows>) {
    const int n = min(kTileSteps<C, kRows>, n_steps - first);
    if (first > 0) __syncthreads();
    stage<C, kRows>(x, n_in, first, n, staged);
    __syncthreads();
    if (active) {
      add_steps<C, kRows, kWeights>(planes, first_chunk, n_chunks, first, n, slice, n_slices,
                                    staged, grid, sum);
    }
  }
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[w][r] = warp_sum(sum[w][r]);
  }
  if (n_slices == 1) return;
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) shared_sums[(warp * kWeights + w) * kRows + r] = sum[w][r];
    }
  }
  __syncthreads();
  if (slice != 0) return;
  for (int other = 1; other < n_slices; ++other) {
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sum[w][r] += shared_sums[((warp + other) * kWeights + w) * kRows + r];
      }
    }
  }
}

/// Calls run with Codec<type>; false for a type that has none.
template <class Run>
bool with_codec(DType type, Run run) {
  switch (type) {
    case DType::f32:
      return run(Codec<DType::f32>{}), true;
    case DType::f16:
      return run(Codec<DType::f16>{}), true;
    case DType::bf16:
      return run(Codec<DType::bf16>{}), true;
    case DType::q8_0:
      return run(Codec<DType::q8_0>{}), true;
    case DType::mxfp4:
      return run(Codec<DType::mxfp4>{}), true;
    case DType::iq2_xxs:
      return run(Codec<DType::iq2_xxs>{}), true;
    case DType::q2_k:
      return run(Codec<DType::q2_k>{}), true;
    case DType::q4_k:
      return run(Codec<DType::q4_k>{}), true;
    case DType::q6_k:
      return run(Codec<DType::q6_k>{}), true;
    default:
      return false;
  }
}

}  // namespace ebb::cuda
