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
    case Order::signed_octets:
      o = i / 32, t = i % 32 / 8, h = i % 8 / 4;
      break;
    case Order::halves:
      o = i / 32, h = i % 32 / 16, t = i % 16 / 4;
      break;
    case Order::chunks:
    case Order::signed_chunks:
      t = i / 64, o = i % 64 / 8, h = i % 8 / 4;
      break;
    case Order::quarters:
      t = i / 128 * 2 + i % 32 / 16, o = i % 128 / 32 * 2 + i % 16 / 8, h = i % 8 / 4;
      break;
  }
  return block * kOrderBlock + o * 32 + t * 8 + h * 4;
}

/// Where the sum of values [16 n, 16 n + 16) goes: lane t of a product wants sums 2 t, 2 t + 1,
/// 2 t + 8 and 2 t + 9 of a block; of Q2_K those of its own values.
__device__ __forceinline__ int sum_place(Order order, int n) {
  const int k = n % 16;
  const int of_lanes = order == Order::quarters ? (k / 8 * 2 + k % 2) * 4 + k % 8 / 2
                                                : k % 8 / 2 * 4 + k / 8 * 2 + k % 2;
  return n / 16 * 16 + of_lanes;
}

__device__ __forceinline__ std::uint32_t half_pair(float a, float b, float& rest_a, float& rest_b) {
  const __half2 pair = __floats2half2_rn(a, b);
  const float2 back = __half22float2(pair);
  rest_a = a - back.x;
  rest_b = b - back.y;
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// The larger one; NaN if one of them is.
__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a > b || a != a ? a : b;
#endif
}

__device__ __forceinline__ float largest_magnitude(float4 v) {
  return larger(larger(fabsf(v.x), fabsf(v.y)), larger(fabsf(v.z), fabsf(v.w)));
}

__device__ __forceinline__ float warp_larger(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = larger(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// 2^e with 2^13 <= largest * 2^e < 2^14, for Q2_K twice as much, kept where both it and its
/// inverse are normal. Integers cannot say what is not finite: the inverse, which multiplies every
/// product, is then NaN.
struct ColumnScale {
  float factor, inverse;

  __device__ __forceinline__ ColumnScale(float largest, Order order) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int e = min(max((order == Order::quarters ? 14 : 13) - exponent, -126), 126);
    factor = __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
    inverse = __uint_as_float(static_cast<std::uint32_t>(127 - e) << 23);
    if (holds_integers(order) && exponent == 128) inverse = __int_as_float(0x7fc00000);
  }
};

__device__ __forceinline__ float4 scaled(float4 v, float factor) {
  return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

/// The nearest integer of 16 bits, which are the lowest of the result, and the rest times
/// kDigitStep; |x| <= 2^15.
__device__ __forceinline__ std::uint32_t nearest_integer(float x, float& rest) {
  constexpr float kUnits = 3 << 22;  // numbers near this are integers
  const float whole = fminf(x, 32767.0f) + kUnits;
  rest = (x - (whole - kUnits)) * kDigitStep;
  return __float_as_uint(whole);
}

/// The upper and the lower bytes of four integers, and the rests. With signed lower bytes the upper
/// ones are those of the integers plus 128; |v| <= 2^14 then.
__device__ __forceinline__ uint2 digits_of(float4 v, Order order, float4& rest) {
  const std::uint32_t more = order == Order::quarters ? 0 : 128;
  const std::uint32_t a = nearest_integer(v.x, rest.x) + more;
  const std::uint32_t b = nearest_integer(v.y, rest.y) + more;
  const std::uint32_t c = nearest_integer(v.z, rest.z) + more;
  const std::uint32_t d = nearest_integer(v.w, rest.w) + more;
  const std::uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  return make_uint2(__byte_perm(ab, cd, 0x7632), __byte_perm(ab, cd, 0x5410) ^ more * 0x01010101u);
}

/// Splits values n .. n + 3 of a vector into its columns.
__device__ __forceinline__ void split_quad(float4 v, float factor, int n, int n_in, Order order,
                                           int n_columns, __half* values) {
  v = scaled(v, factor);
  float4 rest;
  const int place = column_place(order, n);
  if (holds_integers(order)) {
    const auto put = [&](__half* column, uint2 digits) {
      auto* const to = reinterpret_cast<std::uint32_t*>(column + place / 8 * 8) + place / 4 % 2;
      to[0] = digits.x;
      to[2] = digits.y;
    };
    put(values, digits_of(v, order, rest));
    float4 nothing;
    if (n_columns == 2) put(values + n_in, digits_of(rest, order, nothing));
    return;
  }
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
__device__ __forceinline__ void split_sum(float4 v, float factor, int n, int n_in, Order order,
                                          int n_columns, __half* sums) {
  v = scaled(v, factor);
  float sum = (v.x + v.y) + (v.z + v.w);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (n % kSumValues != 0) return;
  sum *= 1.0f / kSumValues;
  const __half high = __float2half_rn(sum);
  const int at = sum_place(order, n / kSumValues);
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
    largest = larger(largest_magnitude(quad(q)), largest);
  }
  largest = warp_larger(largest);
  if (threadIdx.x % kWarp == 0) memory[threadIdx.x / kWarp] = largest;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const ColumnScale scale(warp_larger(lane < threads / kWarp ? memory[lane] : 0.0f), order);
#pragma unroll 2
  for (int q = threadIdx.x; q < n_quads; q += threads) {  // whole warps have a q
    const float4 v = quad(q);
    split_quad(v, scale.factor, 4 * q, n_in, order, n_columns, values);
    if (sums != nullptr) split_sum(v, scale.factor, 4 * q, n_in, order, n_columns, sums);
  }
  return scale.inverse;
}

/// The same for x as it stands.
__device__ inline float split_vector(const float* x, int n_in, Order order, int n_columns,
                                     __half* values, __half* sums, float* memory) {
  return split_quads([x](int q) { return reinterpret_cast<const float4*>(x)[q]; }, n_in, order,
                     n_columns, values, sums, memory);
}

/// The share of one of n_blocks blocks of kSplitThreads threads, which take vectors in turn, those
/// of the second split after those of the first. Waits for the inputs.
__device__ inline void split_share(const float* x, int n_in, const std::int32_t* n_rows,
                                   const Splits& splits, int block, int n_blocks) {
  __shared__ float memory[2][32];
  const std::int64_t rows = of_step(n_rows);
  const std::int64_t n_first = rows * splits.of[0].vectors.n;
  const std::int64_t n = n_first + rows * splits.of[1].vectors.n;
  wait_for_inputs();
  int turn = 0;
  for (std::int64_t i = block; i < n; i += n_blocks) {
    const Split& split = splits.of[i < n_first ? 0 : 1];
    const std::int64_t at = i < n_first ? i : i - n_first;
    const RowVectors& vectors = split.vectors;
    const Columns& columns = split.columns;
    const std::int64_t v = at / vectors.n * vectors.stride + vectors.first + at % vectors.n;
    const std::int64_t column = v * columns.per_vector;
    // Two pieces of memory in turn: a thread may still read the one of the vector before.
    const float inverse = split_vector(
        x + v * n_in, n_in, split.order, columns.per_vector, columns.values + column * n_in,
        columns.sums == nullptr ? nullptr : columns.sums + column * (n_in / kSumValues),
        memory[turn]);
    if (threadIdx.x == 0) columns.inverse[v] = inverse;
    turn ^= 1;
  }
}

}  // namespace ebb::cuda
