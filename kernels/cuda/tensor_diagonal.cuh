#pragma once

#include "kernels/cuda/tensor_piece.cuh"

// Products with one or two columns of weights whose groups of 32 have scales of their own. Two
// tiles at a time.
//
// A product of k 32 would sum what lanes with different scales have. But its eight columns are more
// than one vector needs: column 2 t has the upper bytes of lane t's octet and zeros elsewhere,
// column 2 t + 1 the lower bytes. So a lane gets the two sums of its own octet, of rows g and g +
// 8, where it has these rows' scales. No lane has to read what others unpack, and a column costs
// one product.
//
// The four chunks of a term meet across lanes: two of a half as integers, which are still exact,
// and the halves as numbers. Term has the same sums for tiles.

namespace ebb::cuda {

/// Most columns.
inline constexpr int kDiagonalColumns = 2;

/// Where the lane's octets are in a column's term, in Order::signed_chunks.
struct ChunkPlaces {
  static __device__ __forceinline__ const uint2* of(const void* column, int octet) {
    const int lane = threadIdx.x % kWarp;
    return static_cast<const uint2*>(column) + octet * 8 + lane % 4 * 2 + lane / 4 % 2;
  }
};

/// Where piece `index` of 16 bytes of a column is held: the octets of a group stand in different
/// banks, and so do those at one place of the chunks.
__host__ __device__ constexpr int held_place(int index) { return index ^ (index >> 3 & 3); }

/// The same in Order::signed_octets, permuted by held_place.
struct HeldPlaces {
  static __device__ __forceinline__ const uint2* of(const void* column, int octet) {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
    return static_cast<const uint2*>(column) + t * 16 + octet / 4 * 8 + (octet % 4 ^ t) * 2 +
           lane / 4 % 2;
  }
};

/// The lane's sums of its chunk in one tile: of rows g and g + 8, as numbers. values(o, c) are the
/// lane's bytes of octet o of column c.
template <class C, int kColumns, class Values>
__device__ __forceinline__ void add_chunk(const std::uint8_t* stage, const Tables& tables,
                                          Values values, float (&number)[kColumns][2]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const uint4 groups[2] = {C::groups(stage, g, t), C::groups(stage, g + 8, t)};
  std::int32_t sum[kColumns][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::int32_t group[kColumns][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t low[2], high[2];
      const auto octet = [&](const uint4& of, std::uint32_t(&bytes)[2]) {
        C::octet(half == 0 ? of.x : of.z, half == 0 ? of.y : of.w, i, tables, bytes);
      };
      octet(groups[0], low);
      octet(groups[1], high);
      const std::uint32_t a[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const uint2 value = values(half * 4 + i, c);
        multiply_add_signed(group[c], a, value.x, value.y, group[c]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int32_t odd = C::odd_of(half == 0 ? groups[h].y : groups[h].w);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const std::int32_t both = group[c][2 * h] * 256 + group[c][2 * h + 1];
        sum[c][h] = half == 0 ? odd * both : sum[c][h] + odd * both;
        number[c][h] = static_cast<float>(sum[c][h]);
      }
    }
  }
}

/// Adds up over lanes 0 to 3 what they have for [tile][h]. Lane t gets that of tile t / 2, h = t
/// % 2.
__device__ __forceinline__ float sum_of_lanes(const float (&sum)[2][2], int t) {
  const bool odd = t % 2 != 0, upper = t / 2 != 0;
  float half[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float kept = odd ? sum[k][1] : sum[k][0], sent = odd ? sum[k][0] : sum[k][1];
    half[k] = kept + __shfl_xor_sync(kAllLanes, sent, 1);
  }
  const float kept = upper ? half[1] : half[0], sent = upper ? half[0] : half[1];
  return kept + __shfl_xor_sync(kAllLanes, sent, 2);
}

/// Calls put(c, term) for the lane's part of a term of each of kColumns columns: of tile t / 2, row
/// g + 8 (t % 2). `stage` has both tiles, whose rows begin at an odd block where odd[tile] says so.
/// x(c) is where this stage of column c begins; `second` is second_column.
template <class C, class Places, int kColumns, class Column, class Put>
__device__ __forceinline__ void diagonal_terms(const std::uint8_t* stage, const bool (&odd)[2],
                                               Column x, const Tables& tables, float second,
                                               Put put) {
  static_assert(kColumns <= kDiagonalColumns);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const auto load = [&](int octet, int c) {
    uint2 value = make_uint2(0, 0);
    if (g / 2 == t) value = *Places::of(x(c), octet);
    return value;
  };
  float sum[2][kColumns][2];
  if constexpr (kColumns == 1) {
    uint2 values[8];
#pragma unroll
    for (int o = 0; o < 8; ++o) values[o] = load(o, 0);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      add_chunk<C, kColumns>(
          stage + k * kStageBytes<C>, tables, [&](int o, int) { return values[o]; }, sum[k]);
    }
  } else {
    // Held for both tiles they would want too many registers.
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      add_chunk<C, kColumns>(stage + k * kStageBytes<C>, tables, load, sum[k]);
    }
  }
  const float scale =
      C::scale(stage + t / 2 * kStageBytes<C>, g + 8 * (t % 2), t / 2 == 0 ? odd[0] : odd[1]);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    float term =
        sum_of_lanes({{sum[0][c][0], sum[0][c][1]}, {sum[1][c][0], sum[1][c][1]}}, t) * scale;
    if (c % 2 != 0) term *= second;
    put(c, term);
  }
}

/// A lane's sums of the terms of its columns.
struct DiagonalSums {
  float of[kDiagonalColumns] = {};

  __device__ __forceinline__ void add(int column, float term) {
#pragma unroll
    for (int c = 0; c < kDiagonalColumns; ++c) {
      if (c == column) of[c] += term;
    }
  }

  /// The fragments of store_sums of the first n columns.
  __device__ __forceinline__ void spread(int n, float (&sum)[2][4]) const {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
#pragma unroll
    for (int c = 0; c < kDiagonalColumns; ++c) {
      if (c >= n) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v = __shfl_sync(kAllLanes, of[c], lane / 4 * 4 + i);
        if (c / 2 == t) sum[i / 2][i % 2 * 2 + c % 2] = v;
      }
    }
  }
};

}  // namespace ebb::cuda
