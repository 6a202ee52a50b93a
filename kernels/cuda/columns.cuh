#pragma once

#include "kernels/cuda/columns.h"
#include "kernels/cuda/device.cuh"

namespace ebb::cuda {

/// Where value n of a vector goes within its column; n is a multiple of 4, and so is the place.
__device__ __forceinline__ int column_place(Order order, int n) {
  const int block = n / kOrderBlock, i = n % kOrderBlock;
  int o = 0, t = 0, h = 0;
  switch (order) {
    case Order::octets:
      o = i / 32, t = i % 32 / 8, h = i % 8 / 4;
      break;
    case Order::halves:
      o = i / 32, h = i % 32 / 16, t = i % 16 / 4;
      break;
    case Order::chunks:
      t = i / 64, o = i % 64 / 8, h = i % 8 / 4;
      break;
    case Order::quarters:
      t = i / 128 * 2 + i % 32 / 16, o = i % 128 / 32 * 2 + i % 16 / 8, h = i % 8 / 4;
      break;
  }
  return block * kOrderBlock + o * 32 + t * 8 + h * 4;
}

/// Where the sum of values [16 n, 16 n + 16) goes: lane t of a product wants sums 2 t, 2 t + 1,
/// 2 t + 8 and 2 t + 9 of a block.
__device__ __forceinline__ int sum_place(int n) {
  const int k = n % 16;
  return n / 16 * 16 + k % 8 / 2 * 4 + k / 8 * 2 + k % 2;
}

__device__ __forceinline__ std::uint32_t half_pair(float a, float b, float& rest_a, float& rest_b) {
  const __half2 pair = __floats2half2_rn(a, b);
  const float2 back = __half22float2(pair);
  rest_a = a - back.x;
  rest_b = b - back.y;
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ __forceinline__ float largest_magnitude(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/// 2^e with 2^13 <= largest * 2^e < 2^14, kept where both it and its inverse are normal.
struct ColumnScale {
  float factor, inverse;

  __device__ __forceinline__ explicit ColumnScale(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int e = min(max(13 - exponent, -126), 126);
    factor = __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
    inverse = __uint_as_float(static_cast<std::uint32_t>(127 - e) << 23);
  }
};

__device__ __forceinline__ float4 scaled(float4 v, float factor) {
  return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

/// Splits values n .. n + 3 of a vector into its columns.
__device__ __forceinline__ void split_quad(float4 v, float factor, int n, int n_in, Order order,
                                           int n_columns, __half* values) {
  v = scaled(v, factor);
  float4 rest;
  const int place = column_place(order, n);
  uint2 bits = make_uint2(half_pair(v.x, v.y, rest.x, rest.y), half_pair(v.z, v.w, rest.z, rest.w));
  *reinterpret_cast<uint2*>(values + place) = bits;
  if (n_columns == 2) {
    float4 nothing;
    bits = make_uint2(half_pair(rest.x, rest.y, nothing.x, nothing.y),
                      half_pair(rest.z, rest.w, nothing.z, nothing.w));
    *reinterpret_cast<uint2*>(values + n_in + place) = bits;
  }
}

/// Does the same for the sum of 16 values; neighbouring lanes have neighbouring quads.
__device__ __forceinline__ void split_sum(float4 v, float factor, int n, int n_in, int n_columns,
                                          __half* sums) {
  v = scaled(v, factor);
  float sum = (v.x + v.y) + (v.z + v.w);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (n % kSumValues != 0) return;
  sum *= 1.0f / kSumValues;
  const __half high = __float2half_rn(sum);
  const int at = sum_place(n / kSumValues);
  sums[at] = high;
  if (n_columns == 2) {
    sums[n_in / kSumValues + at] = __float2half_rn(sum - __half2float(high));
  }
}

/// Splits a vector of n_in values (a multiple of 256), of which quad(q) are 4 q .. 4 q + 3, by a
/// whole block of whole warps. `values` are its columns, one after another, `sums` theirs (nullptr:
/// not wanted); `memory` holds 32 floats. Returns the inverse of the scale, to every thread. Ends
/// without a barrier.
///
/// Each quad is asked for twice, the second time out of the L1 cache. The loops are short on
/// purpose: code that runs once is fetched at the pace of the memory.
template <class Quad>
__device__ __forceinline__ float split_quads(Quad quad, int n_in, Order order, int n_columns,
                                             __half* values, __half* sums, float* memory) {
  const int n_quads = n_in / 4, threads = static_cast<int>(blockDim.x);
  float largest = 0;
#pragma unroll 4
  for (int q = threadIdx.x; q < n_quads; q += threads) {
    largest = fmaxf(largest_magnitude(quad(q)), largest);
  }
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) memory[threadIdx.x / kWarp] = largest;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const ColumnScale scale(warp_max(lane < threads / kWarp ? memory[lane] : 0.0f));
#pragma unroll 2
  for (int q = threadIdx.x; q < n_quads; q += threads) {  // whole warps have a q
    const float4 v = quad(q);
    split_quad(v, scale.factor, 4 * q, n_in, order, n_columns, values);
    if (sums != nullptr) split_sum(v, scale.factor, 4 * q, n_in, n_columns, sums);
  }
  return scale.inverse;
}

/// The same for x as it stands.
__device__ inline float split_vector(const float* x, int n_in, Order order, int n_columns,
                                     __half* values, __half* sums, float* memory) {
  return split_quads([x](int q) { return reinterpret_cast<const float4*>(x)[q]; }, n_in, order,
                     n_columns, values, sums, memory);
}

}  // namespace ebb::cuda
