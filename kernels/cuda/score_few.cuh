#pragma once

#include "kernels/cuda/score_block.cuh"

// The scores of score_block.cuh, bit for bit, for steps of few rows, where the time is that of one
// block and not of all. Four warps share 16 chunks, each with a quarter of the heads; the products
// meet in shared memory and are added in order. The code is short: it runs once, and so is fetched
// at the pace of the memory.

namespace ebb::cuda {

inline constexpr int kFewChunks = 32;   // of a block
inline constexpr int kVectorLanes = 8;  // that bring in one vector
inline constexpr int kFewVectors = kScoreThreads / kVectorLanes;

/// Places in the shared memory of a block, in bytes.
template <int kWidth>
struct FewMemory {
  static constexpr int kStride = kQueryStride<kWidth>;
  static constexpr int kDotStride = kFewChunks + 1;
  int q_low, key_high, key_low, dots, weight, inverse, lows, end;

  __host__ __device__ explicit FewMemory(int n_heads) {
    const int heads = (n_heads + 15) / 16 * 16;
    q_low = heads * kStride * 2;
    key_high = 2 * q_low;
    key_low = key_high + kFewChunks * kStride * 2;
    dots = key_low + kFewChunks * kStride * 2;
    weight = dots + heads * kDotStride * 4;
    inverse = weight + heads * 4;
    lows = inverse + kFewChunks * 4;
    end = lows + kScoreWarps * 4;
  }
};

/// Splits the vector that eight lanes hold; lane l has quads l, l + 8, ... Returns the factor, and
/// in `any_low` the bits of the lane's low halves.
template <int kWidth>
__device__ __forceinline__ float split_row(const float4 (&v)[kWidth / 32], __half* high,
                                           __half* low, std::uint32_t& any_low) {
  const int own = static_cast<int>(threadIdx.x) % kVectorLanes;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kWidth / 32; ++i) largest = fmaxf(largest, largest_of(v[i]));
#pragma unroll
  for (int step = 1; step < kVectorLanes; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  const float factor = half_range_factor(largest);
#pragma unroll
  for (int i = 0; i < kWidth / 32; ++i) {
    uint2 high_bits, low_bits;
    split_halves(v[i].x * factor, v[i].y * factor, high_bits.x, low_bits.x);
    split_halves(v[i].z * factor, v[i].w * factor, high_bits.y, low_bits.y);
    const int dim = 4 * (own + kVectorLanes * i);
    *reinterpret_cast<uint2*>(high + dim) = high_bits;
    *reinterpret_cast<uint2*>(low + dim) = low_bits;
    any_low |= (low_bits.x | low_bits.y) & 0x7fff7fffu;
  }
  return factor;
}

/// Scores of chunks begin .. begin + kFewChunks - 1 for one row that sees `visible`; write(chunk,
/// score) is called once for every visible one. The width of a vector is kWidth, and keys are read
/// by quads.
template <int kWidth, class Args, class Write>
__device__ __forceinline__ void score_few(const Args& a, const RowReader& reader,
                                          std::uint8_t* memory, int row, int seq, int visible,
                                          int begin, Write write) {
  using M = FewMemory<kWidth>;
  const M layout(a.n_heads);
  auto* const q_high = reinterpret_cast<__half*>(memory);
  auto* const q_low = reinterpret_cast<__half*>(memory + layout.q_low);
  auto* const key_high = reinterpret_cast<__half*>(memory + layout.key_high);
  auto* const key_low = reinterpret_cast<__half*>(memory + layout.key_low);
  auto* const dots = reinterpret_cast<float*>(memory + layout.dots);
  auto* const weight = reinterpret_cast<float*>(memory + layout.weight);
  auto* const inverse = reinterpret_cast<float*>(memory + layout.inverse);
  auto* const lows = reinterpret_cast<std::uint32_t*>(memory + layout.lows);
  const int n_heads = (a.n_heads + 15) / 16 * 16;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int vector = threadIdx.x / kVectorLanes, own = threadIdx.x % kVectorLanes;

  // All that the block needs is asked for before anything is waited for.
  constexpr int kQuads = kWidth / 32, kTurns = 2;
  float4 key[kQuads], q[kTurns][kQuads];
  float q_weight[kTurns];
  const auto load_queries = [&](int first) {
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      const int h = first + k * kFewVectors + vector;
      const std::int64_t at = static_cast<std::int64_t>(row) * a.n_heads + h;
      q_weight[k] = h < a.n_heads ? a.weight[at] * a.weight_scale : 0.0f;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        q[k][i] = h < a.n_heads
                      ? reinterpret_cast<const float4*>(a.q + at * kWidth)[own + kVectorLanes * i]
                      : make_float4(0, 0, 0, 0);
      }
    }
  };
  load_queries(0);
  // A chunk past the store's end repeats its last one; the score is not used.
  const std::int64_t chunk = min(begin + vector, static_cast<int>(a.keys.n_rows) - 1);
  load_quads(reader, row_at(a.keys, seq, chunk), 4 * own, 4 * kVectorLanes, key);
  std::uint32_t any_q_low = 0, any_key_low = 0;
  for (int first = 0;;) {
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      const int h = first + k * kFewVectors + vector;
      if (h >= n_heads) break;  // whole warps: 16 heads are four of them
      const float factor =
          split_row<kWidth>(q[k], q_high + h * M::kStride, q_low + h * M::kStride, any_q_low);
      if (own == 0) weight[h] = q_weight[k] / factor;
    }
    first += kTurns * kFewVectors;
    if (first >= n_heads) break;
    load_queries(first);
  }
  {
    const float factor = split_row<kWidth>(key, key_high + vector * M::kStride,
                                           key_low + vector * M::kStride, any_key_low);
    if (own == 0) inverse[vector] = 1.0f / factor;
    const bool any = __any_sync(kAllLanes, any_key_low != 0) != 0;
    if (lane == 0) lows[warp] = any ? 1 : 0;
  }
  const bool q_has_low = __syncthreads_or(any_q_low != 0) != 0;

  const int group = warp / 4;  // of 16 chunks
  const bool keys_have_low =
      (lows[4 * group] | lows[4 * group + 1] | lows[4 * group + 2] | lows[4 * group + 3]) != 0;
  for (int m = warp % 4 * 16; m < n_heads; m += 64) {
    float dot[2][4] = {};
#pragma unroll 2
    for (int step = 0; step < kWidth / 16; ++step) {
      const int at = 16 * step + 4 * t;
      const auto queries = [&](const __half* from, std::uint32_t(&r)[4]) {
        const uint2 x = *reinterpret_cast<const uint2*>(from + (m + g) * M::kStride + at);
        const uint2 y = *reinterpret_cast<const uint2*>(from + (m + 8 + g) * M::kStride + at);
        r[0] = x.x, r[1] = y.x, r[2] = x.y, r[3] = y.y;
      };
      const auto keys = [&](const __half* from, int n) {
        return *reinterpret_cast<const uint2*>(from + (16 * group + 8 * n + g) * M::kStride + at);
      };
      std::uint32_t upper[4], lower[4];
      queries(q_high, upper);
      const uint2 high[2] = {keys(key_high, 0), keys(key_high, 1)};
#pragma unroll
      for (int n = 0; n < 2; ++n) add_product(dot[n], upper, high[n].x, high[n].y);
      if (keys_have_low) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint2 low = keys(key_low, n);
          add_product(dot[n], upper, low.x, low.y);
        }
      }
      if (q_has_low) {
        queries(q_low, lower);
#pragma unroll
        for (int n = 0; n < 2; ++n) add_product(dot[n], lower, high[n].x, high[n].y);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dots[(m + g + i % 4 / 2 * 8) * M::kDotStride + 16 * group + i / 4 * 8 + 2 * t + i % 2] =
          dot[i / 4][i % 4];
    }
  }
  __syncthreads();
  // Thread (chunk, g) adds the heads that lane group g of score_block has.
  float score = 0;
#pragma unroll 4
  for (int h = own; h < n_heads; h += 8) {
    score = fmaf(weight[h], rectified(dots[h * M::kDotStride + vector]), score);
  }
#pragma unroll
  for (int step = 1; step < kVectorLanes; step *= 2) {
    score += __shfl_xor_sync(kAllLanes, score, step);
  }
  if (own == 0 && begin + vector < visible) write(begin + vector, score * inverse[vector]);
}

}  // namespace ebb::cuda
