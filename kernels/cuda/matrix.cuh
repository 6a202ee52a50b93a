#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device.cuh"

// Matrix units with the accuracy of f32: a number goes through them as the sum of two f16 numbers,
// x * 2^e = high + low, where 2^e brings the largest magnitude of a vector near 2^14, so that low
// keeps what high drops down to 2^-39 of that magnitude. A product of two such numbers is three
// products (low times low is below the accuracy of f32); sums are f32. Elements of a product do not
// influence each other: an element's bits depend on its two vectors and the order of the steps.

namespace ebb::cuda {

/// d += a * b; a is 16 x 16 (rows along M), b 16 x 8.
__device__ __forceinline__ void add_product(float (&d)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/// Four 8 x 8 tiles of f16 from shared memory; lanes 8 i .. 8 i + 7 give the rows of tile i.
__device__ __forceinline__ void load_tiles(std::uint32_t (&r)[4], const __half* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

/// Two tiles, transposed; lanes 8 i .. 8 i + 7 give the rows of tile i, i < 2.
__device__ __forceinline__ void load_tiles_transposed(std::uint32_t (&r)[2], const __half* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(at)
               : "memory");
}

/// The power of two that brings `largest` to [2^13, 2^14); 1 for zero.
__device__ __forceinline__ float half_range_factor(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 255u) - 127;
  if (largest == 0.0f) return 1.0f;
  const int e = min(max(13 - exponent, -60), 60);
  return __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
}

/// Two numbers as pairs of f16: x in the low half of each word.
__device__ __forceinline__ void split_halves(float x, float y, std::uint32_t& high,
                                             std::uint32_t& low) {
  const __half2 h = __floats2half2_rn(x, y);
  const float2 kept = __half22float2(h);
  const __half2 l = __floats2half2_rn(x - kept.x, y - kept.y);
  high = *reinterpret_cast<const std::uint32_t*>(&h);
  low = *reinterpret_cast<const std::uint32_t*>(&l);
}

__device__ __forceinline__ std::uint32_t warp_or(std::uint32_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value |= __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

__device__ __forceinline__ float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

}  // namespace ebb::cuda
