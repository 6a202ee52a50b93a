#pragma once

#include "kernels/chunks.h"
#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/row_quads.cuh"

// Scores of chunks, for the choice among them and for scorers: a warp holds 16 keys as operands of
// the matrix units (matrix.cuh) and takes row after row, 16 heads at a time. The sum of a score
// depends on the row and the chunk alone. `Args` are SelectArgs or ScoreArgs.

namespace ebb::cuda {

inline constexpr int kScoreThreads = 256;
inline constexpr int kScoreWarps = kScoreThreads / kWarp;
inline constexpr int kWarpChunks = 16;
inline constexpr int kBlockChunks = kScoreWarps * kWarpChunks;
inline constexpr int kBlockRows = 16;  // rows that share the keys of a block
inline constexpr int kFewRows = 16;    // up to which each has blocks of its own

/// Rows of queries in shared memory, halves; the padding puts the rows that a quarter of a warp
/// reads, 8 bytes a lane, in different banks.
template <int kWidth>
inline constexpr int kQueryStride = kWidth + 16;

template <int kWidth>
constexpr std::size_t score_bytes(std::int32_t n_heads) {
  const auto heads = static_cast<std::size_t>((n_heads + 15) / 16 * 16);
  return heads * (2 * kQueryStride<kWidth> * sizeof(__half) + sizeof(float));
}

/// The warp's keys as operands: lane (g, t) holds values 16 step + 4 t .. + 3 of keys g and g + 8.
/// Which value has which place along k does not matter as long as the queries agree.
template <int kWidth>
struct KeyOperands {
  uint2 high[kWidth / 16][2], low[kWidth / 16][2];
  float inverse[4];  // 1 / factor of the keys whose scores the lane sums
  bool has_low;

  __device__ __forceinline__ void load(const RowReader& reader, const RowStore& keys, int seq,
                                       int first_chunk) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    std::uint32_t low_bits = 0;
    float own_inverse[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // A chunk past the store's end repeats its last one; the score is not used.
      const std::int64_t chunk = min(first_chunk + 8 * n + g, static_cast<int>(keys.n_rows) - 1);
      float4 value[kWidth / 16];
      float largest = 0;
      const std::byte* const stored = row_at(keys, seq, chunk);
      load_quads(reader, stored, 4 * t, 16, value);
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        largest = fmaxf(largest, largest_of(value[step]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float factor = half_range_factor(largest);
      own_inverse[n] = 1.0f / factor;
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        const float4 v = value[step];
        split_halves(v.x * factor, v.y * factor, high[step][n].x, low[step][n].x);
        split_halves(v.z * factor, v.w * factor, high[step][n].y, low[step][n].y);
        low_bits |= low[step][n].x | low[step][n].y;
      }
    }
    // The lane's sums are of keys 2 t and 2 t + 1 of both eights.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      inverse[i] = __shfl_sync(kAllLanes, own_inverse[i / 2], 4 * (2 * t + i % 2));
    }
    has_low = __any_sync(kAllLanes, (low_bits & 0x7fff7fffu) != 0) != 0;
  }
};

/// Some heads' queries of a row, on their way from memory; a warp per head.
template <int kWidth>
struct HeldQueries {
  static constexpr int kQuads = (kWidth + 127) / 128;
  static constexpr int kHeads = 8 / kQuads;  // of a warp
  float4 of[kHeads][kQuads];

  template <class Args>
  __device__ __forceinline__ void load(const Args& a, int row, int first_head) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      const int h = first_head + k * kScoreWarps + warp;
      const float* const q = a.q + (static_cast<std::int64_t>(row) * a.n_heads + h) * a.d;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int dim = 128 * i + 4 * lane;
        float4 v = make_float4(0, 0, 0, 0);
        if (h < a.n_heads && dim < a.d) {
          if (a.d % 4 == 0) {
            v = *reinterpret_cast<const float4*>(q + dim);
          } else {
            v.x = q[dim];
            if (dim + 1 < a.d) v.y = q[dim + 1];
            if (dim + 2 < a.d) v.z = q[dim + 2];
            if (dim + 3 < a.d) v.w = q[dim + 3];
          }
        }
        of[k][i] = v;
      }
    }
  }

  /// Splits them into halves; true if a low half of the thread's is not zero.
  template <class Args>
  __device__ __forceinline__ bool store(const Args& a, int row, int first_head, int n_heads,
                                        __half* high, __half* low, float* weight) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    std::uint32_t any_low = 0;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      const int h = first_head + k * kScoreWarps + warp;
      if (h >= n_heads) break;
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) largest = fmaxf(largest, largest_of(of[k][i]));
      const float factor = half_range_factor(warp_max(largest));
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int dim = 128 * i + 4 * lane;
        if (dim >= kWidth) continue;
        const float4 v = of[k][i];
        uint2 high_bits, low_bits;
        split_halves(v.x * factor, v.y * factor, high_bits.x, low_bits.x);
        split_halves(v.z * factor, v.w * factor, high_bits.y, low_bits.y);
        *reinterpret_cast<uint2*>(high + h * kQueryStride<kWidth> + dim) = high_bits;
        *reinterpret_cast<uint2*>(low + h * kQueryStride<kWidth> + dim) = low_bits;
        any_low |= low_bits.x | low_bits.y;
      }
      if (lane == 0) {
        weight[h] = h < a.n_heads ? a.weight[static_cast<std::int64_t>(row) * a.n_heads + h] *
                                        a.weight_scale / factor
                                  : 0.0f;
      }
    }
    return (any_low & 0x7fff7fffu) != 0;
  }
};

/// Not a maximum with 0, which would drop a NaN.
__device__ __forceinline__ float rectified(float x) { return x < 0.0f ? 0.0f : x; }

/// Scores of the chunks begin .. begin + kBlockChunks - 1 for the rows first .. last - 1, by a
/// block of kScoreThreads. wanted(row, visible) is false for rows that need none, write(row, chunk,
/// score) is called once for every visible chunk of the others. Every thread of the block must get
/// the same from `wanted`. `memory`: score_bytes.
template <int kWidth, class Args, class Wanted, class Write>
__device__ __forceinline__ void score_block(const Args& a, const RowReader& reader, __half* memory,
                                            int first, int last, int begin, Wanted wanted,
                                            Write write) {
  const int n_heads = (a.n_heads + 15) / 16 * 16;
  __half* const q_high = memory;
  __half* const q_low = q_high + n_heads * kQueryStride<kWidth>;
  float* const weight = reinterpret_cast<float*>(q_low + n_heads * kQueryStride<kWidth>);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int own = begin + warp * kWarpChunks;
  KeyOperands<kWidth> keys;
  int loaded = -1;  // the sequence whose keys are held
  for (int row = first; row < last; ++row) {
    const int visible = visible_chunks(a.step.pos[row], a.ratio);
    if (!wanted(row, visible)) continue;
    const int seq = a.step.seq[row];
    HeldQueries<kWidth> queries;
    constexpr int kAtOnce = HeldQueries<kWidth>::kHeads * kScoreWarps;
    queries.load(a, row, 0);
    if (loaded != seq) {
      // Chunks past the visible ones may hold anything; their scores are not used.
      loaded = seq;
      keys.load(reader, a.keys, seq, own);
    }
    __syncthreads();  // the row before is done with
    bool any_low = queries.store(a, row, 0, n_heads, q_high, q_low, weight);
    for (int h = kAtOnce; h < n_heads; h += kAtOnce) {
      queries.load(a, row, h);
      any_low = queries.store(a, row, h, n_heads, q_high, q_low, weight) || any_low;
    }
    const bool q_has_low = __syncthreads_or(any_low) != 0;
    if (own >= visible) continue;
    float score[4] = {};
    for (int m = 0; m < n_heads; m += 16) {
      float dot[2][4] = {};
      const __half* const upper = q_high + (m + g) * kQueryStride<kWidth> + 4 * t;
      const __half* const upper_low = q_low + (m + g) * kQueryStride<kWidth> + 4 * t;
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        const uint2 x = *reinterpret_cast<const uint2*>(upper + 16 * step);
        const uint2 y =
            *reinterpret_cast<const uint2*>(upper + 8 * kQueryStride<kWidth> + 16 * step);
        const std::uint32_t q[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          add_product(dot[n], q, keys.high[step][n].x, keys.high[step][n].y);
        }
        if (keys.has_low) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            add_product(dot[n], q, keys.low[step][n].x, keys.low[step][n].y);
          }
        }
        if (q_has_low) {
          const uint2 z = *reinterpret_cast<const uint2*>(upper_low + 16 * step);
          const uint2 w =
              *reinterpret_cast<const uint2*>(upper_low + 8 * kQueryStride<kWidth> + 16 * step);
          const std::uint32_t r[4] = {z.x, w.x, z.y, w.y};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            add_product(dot[n], r, keys.high[step][n].x, keys.high[step][n].y);
          }
        }
      }
      const float w_upper = weight[m + g], w_lower = weight[m + g + 8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[i] = fmaf(w_upper, rectified(dot[i / 2][i % 2]), score[i]);
        score[i] = fmaf(w_lower, rectified(dot[i / 2][2 + i % 2]), score[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 4);
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 8);
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 16);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = own + i / 2 * 8 + 2 * t + i % 2;
      if (g == 0 && chunk < visible) write(row, chunk, score[i] * keys.inverse[i]);
    }
  }
}

}  // namespace ebb::cuda
