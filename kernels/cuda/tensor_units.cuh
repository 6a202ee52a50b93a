#pragma once

#include <cuda_fp16.h>

#include <cstdint>

// What the matrix units do, and the steps by which packed bytes become their operands.

namespace ebb::cuda {

/// d = a * b + c on the matrix units; a is 16 x 16, b 16 x 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1,
                                             const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/// d += a * b.
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  multiply_add(d, a, b0, b1, d);
}

/// d = a * b.
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  multiply_add(d, a, b0, b1, {0.0f, 0.0f, 0.0f, 0.0f});
}

/// d += a * b in integers; a is 16 x 32 unsigned bytes, b 32 x 8 bytes, signed or not.
template <bool kSigned>
__device__ __forceinline__ void multiply_add_bytes(std::int32_t (&d)[4],
                                                   const std::uint32_t (&a)[4], std::uint32_t b0,
                                                   std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::int32_t(&two)[2] = *reinterpret_cast<std::int32_t(*)[2]>(d + i % 2 * 2);
    if constexpr (kSigned) {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
          : "+r"(two[0]), "+r"(two[1])
          : "r"(a[i]), "r"(i < 2 ? b0 : b1));
    } else {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
          : "+r"(two[0]), "+r"(two[1])
          : "r"(a[i]), "r"(i < 2 ? b0 : b1));
    }
  }
#endif
}

/// d = c + a * b in integers; a is 16 x 32 signed bytes, b 32 x 8 signed bytes.
__device__ __forceinline__ void multiply_add_signed(std::int32_t (&d)[4],
                                                    const std::uint32_t (&a)[4], std::uint32_t b0,
                                                    std::uint32_t b1, const std::int32_t (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = c[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::int32_t(&two)[2] = *reinterpret_cast<std::int32_t(*)[2]>(d + i % 2 * 2);
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(two[0]), "+r"(two[1])
        : "r"(a[i]), "r"(i < 2 ? b0 : b1));
  }
#endif
}

/// 256 * high + low by the units for integers: a multiplication would take those for numbers.
__device__ __forceinline__ std::int32_t shifted_sum(std::int32_t high, std::int32_t low) {
  std::int32_t sum;
  asm("{.reg .s32 s; shl.b32 s, %1, 8; add.s32 %0, s, %2;}" : "=r"(sum) : "r"(high), "r"(low));
  return sum;
}

/// Bytes of low and high that the four numbers in the low half of `select` name, each below 8.
__device__ __forceinline__ std::uint32_t pick_bytes(std::uint32_t low, std::uint32_t high,
                                                    std::uint32_t select) {
  std::uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(select));
  return picked;
}

/// The word of shared memory kOffset bytes behind `address`.
template <int kOffset>
__device__ __forceinline__ std::uint32_t shared_word(std::uint32_t address) {
  std::uint32_t word;
  asm("ld.shared.u32 %0, [%1+%2];" : "=r"(word) : "r"(address), "n"(kOffset));
  return word;
}

__device__ __forceinline__ __half2 as_half2(std::uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ std::uint32_t as_bits(__half2 value) {
  return *reinterpret_cast<std::uint32_t*>(&value);
}

/// Bytes of `word` as f16 numbers 1024 + byte, the low pair and the high pair.
__device__ __forceinline__ __half2 low_bytes(std::uint32_t word) {
  return as_half2(__byte_perm(word, 0x64646464u, 0x4140));
}
__device__ __forceinline__ __half2 high_bytes(std::uint32_t word) {
  return as_half2(__byte_perm(word, 0x64646464u, 0x4342));
}

/// Both pairs of `word`, each byte less `bias`.
__device__ __forceinline__ void unpack_bytes(std::uint32_t word, float bias, std::uint32_t& low,
                                             std::uint32_t& high) {
  const __half2 offset = __float2half2_rn(-1024.0f - bias);
  low = as_bits(__hadd2(low_bytes(word), offset));
  high = as_bits(__hadd2(high_bytes(word), offset));
}

/// The upper half of `word`, in both halves, by the units for numbers, which have more time than
/// those that shift. As an f16 number it is finite and not -0.
__device__ __forceinline__ std::uint32_t upper_half(std::uint32_t word) {
  return as_bits(__hadd2(__high2half2(as_half2(word)), __float2half2_rn(0.0f)));
}

/// A small integer, twice.
__device__ __forceinline__ __half2 half_integer(std::uint32_t value) {
  return __hsub2(as_half2(0x64006400u | value * 0x10001u), __float2half2_rn(1024.0f));
}

/// factor * byte: 1024 + byte, then one exact fused step with offset = -1024 (or more) * factor.
__device__ __forceinline__ void unpack_bytes(std::uint32_t word, __half2 factor, __half2 offset,
                                             std::uint32_t& low, std::uint32_t& high) {
  low = as_bits(__hfma2(low_bytes(word), factor, offset));
  high = as_bits(__hfma2(high_bytes(word), factor, offset));
}

}  // namespace ebb::cuda
