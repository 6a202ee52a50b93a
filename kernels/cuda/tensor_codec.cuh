#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/tensor_stage.cuh"

// How stored weights become operands of the matrix units: f16 numbers that are exact integers, and
// scales that multiply f32 sums.
//
// A warp takes 16 rows, kBlock columns at a time (a stage, tensor_stage.cuh). Lane (g, t) = lane /
// 4, lane % 4 holds values of rows g and g + 8. Octet o of a row is eight of its values: four of
// one product of k 16, then four of the next. Which value has which k does not matter as long as
// the activations follow (kOrder).
//
// What is common to a block (d, dmin) multiplies its term; kGroup is then 0. A scale that would not
// leave the integers exact multiplies the sums of its group: kGroup products of k 16 at a time, 1
// or 2.

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

/// Bytes of low and high that the four numbers in the low half of `select` name, each below 8.
__device__ __forceinline__ std::uint32_t pick_bytes(std::uint32_t low, std::uint32_t high,
                                                    std::uint32_t select) {
  std::uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(select));
  return picked;
}

/// Two words of shared memory, kOffset bytes behind `address`.
template <int kOffset>
__device__ __forceinline__ uint2 shared_pair(std::uint32_t address) {
  uint2 pair;
  asm("ld.shared.v2.u32 {%0,%1}, [%2+%3];"
      : "=r"(pair.x), "=r"(pair.y)
      : "r"(address), "n"(kOffset));
  return pair;
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

template <class T>
__device__ __forceinline__ T staged(const std::uint8_t* at) {
  return *reinterpret_cast<const T*>(at);
}

/// Half of the word at `at` that is an odd or an even 2-byte field.
__device__ __forceinline__ float staged_half(const std::uint8_t* at, bool odd) {
  const auto word = staged<std::uint32_t>(at);
  return half_float(odd ? word >> 16 : word & 0xffffu);
}

/// The tables of IQ2_XXS: of every codeword, and of every sign field, eight bytes that select what
/// becomes eight f16 numbers; added up they select with signs. Each stands kTableCopies times,
/// since half a warp reads at a time, so that every lane has its own banks. A codec gets the
/// address of the lane's first copy.
inline constexpr int kTableCopies = kWarp / 2;
inline constexpr int kTableStride = kTableCopies * 8;  // bytes
inline constexpr int kTableBytes = (256 + 128) * kTableStride;

template <DType kType>
struct TensorCodec;

struct TensorDefaults {
  static constexpr bool kMinus = false;  // has minus() and minimum()
  static constexpr bool kTables = false;
  static constexpr bool kScaled = true;  // with kGroup 0: has scale()
  static constexpr int kGroup = 0;
};

template <>
struct TensorCodec<DType::q8_0> : TensorDefaults {
  static constexpr int kBlock = 128, kGroup = 2, kFields = 2;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 128 : 8; }
  static constexpr Order kOrder = Order::octets;
  static __device__ int swizzle(int, int row, int piece) { return piece ^ (row & 3) << 1; }
  struct Row {
    const std::uint8_t* at;
    int lane;
    uint2 d;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    return {stage + row * 128, (row & 3) * 32 + t * 8,
            staged<uint2>(stage + field_offset<TensorCodec>(1) + row * 8)};
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
    const auto q = staged<uint2>(row.at + (row.lane ^ o * 32));
    unpack_bytes(q.x ^ 0x80808080u, 128.0f, pairs[0], pairs[1]);
    unpack_bytes(q.y ^ 0x80808080u, 128.0f, pairs[2], pairs[3]);
  }
  static __device__ float scale(const Row& row, int o, int) {
    const std::uint32_t word = o < 2 ? row.d.x : row.d.y;
    return half_float((o & 1) != 0 ? word >> 16 : word & 0xffffu);
  }
};

template <>
struct TensorCodec<DType::f16> : TensorDefaults {
  static constexpr bool kScaled = false;
  static constexpr int kBlock = 64, kFields = 1;
  static __host__ __device__ constexpr int bytes(int) { return 128; }
  static constexpr Order kOrder = Order::octets;
  static __device__ int swizzle(int, int row, int piece) { return piece ^ (row & 1) << 2; }
  struct Row {
    const std::uint8_t* at;
    int lane;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    return {stage + row * 128, (row & 1) * 64 + t * 16};
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
    const auto q = staged<uint4>(row.at + (row.lane ^ o * 64));
    pairs[0] = q.x;
    pairs[1] = q.y;
    pairs[2] = q.z;
    pairs[3] = q.w;
  }
};

template <>
struct TensorCodec<DType::mxfp4> : TensorDefaults {
  static constexpr int kBlock = 256, kGroup = 2, kFields = 2;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 128 : 8; }
  static constexpr Order kOrder = Order::halves;
  static __device__ int swizzle(int, int row, int piece) { return piece ^ (row & 7); }
  struct Row {
    const std::uint8_t* at;
    int lane;
    uint2 e;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    return {stage + row * 128, (row & 7) * 16 + t * 4,
            staged<uint2>(stage + field_offset<TensorCodec>(1) + row * 8)};
  }
  static __device__ void quad(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
    // The low three bits of four codes, side by side, select from twice the magnitudes.
    std::uint32_t select = codes & 0x07070707u;
    select = (select | select >> 4) & 0x00ff00ffu;
    select = (select | select >> 8) & 0xffffu;
    const std::uint32_t magnitudes = __byte_perm(0x03020100u, 0x0c080604u, select);
    unpack_bytes(signed_bytes(magnitudes, codes >> 3 & 0x01010101u), 128.0f, low, high);
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
    const auto q = staged<std::uint32_t>(row.at + (row.lane ^ o * 16));
    quad(q & 0x0f0f0f0fu, pairs[0], pairs[1]);
    quad(q >> 4 & 0x0f0f0f0fu, pairs[2], pairs[3]);
  }
  static __device__ float scale(const Row& row, int o, int) {
    // 2^(e - 128), since the integers are doubled; the least two are subnormal.
    const std::uint32_t e = (o < 4 ? row.e.x : row.e.y) >> (8 * (o & 3)) & 255u;
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};

template <>
struct TensorCodec<DType::iq2_xxs> : TensorDefaults {
  static constexpr bool kTables = true;
  static constexpr int kBlock = 256, kFields = 2;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 64 : 2; }
  static constexpr Order kOrder = Order::chunks;
  static __device__ int swizzle(int, int, int piece) { return piece; }
  struct Row {
    const std::uint8_t* at;
    float d;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool odd) {
    return {stage + row * 64 + t * 16,
            staged_half(stage + field_offset<TensorCodec>(1) + row * 4, odd) * 0.125f};
  }
  /// d / 8 * (2 s + 1) is the scale of 32 values: the odd number goes into the integers. The tables
  /// select from the six values, kept as bytes that are 128 too large, and 0x64, which makes f16
  /// numbers 1024 + byte of them.
  static __device__ void octet(const Row& row, int o, std::uint32_t tables,
                               std::uint32_t (&pairs)[4]) {
    const int i = o % 4;
    const auto q = staged<uint2>(row.at + o / 4 * 8);
    const std::uint32_t packed = q.y;
    const std::uint32_t code = pick_bytes(q.x, 0, 0x4440u | static_cast<std::uint32_t>(i));
    const std::uint32_t signs = packed >> (7 * i) & 127u;
    const uint2 by_code = shared_pair<0>(tables + code * kTableStride);
    const uint2 by_sign = shared_pair<256 * kTableStride>(tables + signs * kTableStride);
    const std::uint32_t select[2] = {by_code.x + by_sign.x, by_code.y + by_sign.y};
    constexpr std::uint32_t kPlus = 136 | 153 << 8 | 171 << 16 | 0x64 << 24;
    constexpr std::uint32_t kMinusBytes = 120 | 103 << 8 | 85 << 16;
    const __half2 odd = half_integer(packed >> 27 & 30u | 1u);
    const __half2 offset = __hmul2(odd, __float2half2_rn(-1024.0f - 128.0f));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t two = pick_bytes(kPlus, kMinusBytes, select[k / 2] >> (k % 2 * 16));
      pairs[k] = as_bits(__hfma2(as_half2(two), odd, offset));
    }
  }
  static __device__ float scale(const Row& row, int, int) { return row.d; }
};

template <>
struct TensorCodec<DType::q2_k> : TensorDefaults {
  static constexpr bool kMinus = true;
  static constexpr int kBlock = 256, kFields = 3;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 64 : f == 1 ? 16 : 4; }
  static constexpr Order kOrder = Order::quarters;
  static __device__ int swizzle(int, int, int piece) { return piece; }
  struct Row {
    const std::uint8_t* at;
    std::uint32_t scales;      // of the lane's four groups of 16
    std::uint32_t minimum[2];  // operands: of groups 2 t, 2 t + 1, and of 2 t + 8, 2 t + 9
    std::uint32_t dm;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    const std::uint8_t* const scales = stage + field_offset<TensorCodec>(1) + row * 16;
    const auto s = staged<uint2>(scales + 8 * (t >> 1));
    Row r;
    r.at = stage + row * 64 + t * 16;
    r.scales = __byte_perm(s.x, s.y, (t & 1) != 0 ? 0x7531 : 0x6420) & 0x0f0f0f0fu;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::uint32_t two = staged<std::uint16_t>(scales + 8 * k + 2 * t);
      r.minimum[k] =
          as_bits(__hsub2(as_half2(0x64006400u | (two >> 4 & 15u) | (two & 0xf000u) << 4),
                          __float2half2_rn(1024.0f)));
    }
    r.dm = staged<std::uint32_t>(stage + field_offset<TensorCodec>(2) + row * 4);
    return r;
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
    const int g = o >> 1;
    const __half2 scale =
        __hsub2(as_half2(pick_bytes(row.scales, 0x64646464u,
                                    0x4040u + static_cast<std::uint32_t>(g) * 0x101u)),
                __float2half2_rn(1024.0f));
    // The two bits stay where they are: what they are too large by goes into the scale.
    const float unit = 1.0f / static_cast<float>(1 << 2 * g);
    const __half2 s = __hmul2(scale, __float2half2_rn(unit));
    const __half2 offset = __hmul2(scale, __float2half2_rn(-1024.0f * unit));
    const std::uint32_t mask = 0x03030303u << (2 * g);
    const auto q = staged<uint2>(row.at + (o & 1) * 8);
    unpack_bytes(q.x & mask, s, offset, pairs[0], pairs[1]);
    unpack_bytes(q.y & mask, s, offset, pairs[2], pairs[3]);
  }
  static __device__ float scale(const Row& row, int, int) { return half_float(row.dm & 0xffffu); }
  static __device__ float minus(const Row& row) { return half_float(row.dm >> 16); }
};

template <>
struct TensorCodec<DType::q4_k> : TensorDefaults {
  static constexpr bool kMinus = true;
  static constexpr int kBlock = 256, kFields = 2;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 128 : 16; }
  static constexpr Order kOrder = Order::chunks;
  static __device__ int swizzle(int field, int row, int piece) {
    return field == 0 ? piece ^ (row & 1) : piece;
  }
  struct Row {
    const std::uint8_t* at;
    int odd;
    std::uint32_t pairs;       // scale and minimum of the low group, then of the high one
    std::uint32_t minimum[2];  // of the groups of 32 that sums 2 t and 2 t + 8 lie in
    std::uint32_t dm;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    using Plain = Codec<DType::q4_k>;
    const auto meta = staged<uint4>(stage + field_offset<TensorCodec>(1) + row * 16);
    Row r;
    r.at = stage + row * 128 + 2 * t * 16;
    r.odd = (row & 1) * 16;
    r.pairs = Plain::pair(meta, 2 * t) | Plain::pair(meta, 2 * t + 1) << 16;
    r.minimum[0] = as_bits(half_integer(Plain::pair(meta, t) >> 8));
    r.minimum[1] = as_bits(half_integer(Plain::pair(meta, t + 4) >> 8));
    r.dm = meta.x;
    return r;
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
    const int i = o & 3, shift = o < 4 ? 0 : 4;
    const __half2 s = half_integer(row.pairs >> (o < 4 ? 0 : 16) & 255u);
    const __half2 offset = __hmul2(s, __float2half2_rn(-1024.0f));
    const auto q = staged<uint2>(row.at + (row.odd ^ i * 8));
    unpack_bytes(q.x >> shift & 0x0f0f0f0fu, s, offset, pairs[0], pairs[1]);
    unpack_bytes(q.y >> shift & 0x0f0f0f0fu, s, offset, pairs[2], pairs[3]);
  }
  static __device__ float scale(const Row& row, int, int) { return half_float(row.dm & 0xffffu); }
  static __device__ float minus(const Row& row) { return half_float(row.dm >> 16); }
};

template <>
struct TensorCodec<DType::q6_k> : TensorDefaults {
  static constexpr int kBlock = 256, kGroup = 1, kFields = 4;
  static __host__ __device__ constexpr int bytes(int f) {
    return f == 0 ? 128 : f == 1 ? 64 : f == 2 ? 16 : 2;
  }
  static constexpr Order kOrder = Order::halves;
  static __device__ int swizzle(int field, int row, int piece) {
    return field == 0 ? piece ^ (row & 7) : field == 1 ? piece ^ (row >> 1 & 3) : piece;
  }
  struct Row {
    const std::uint8_t* low;
    const std::uint8_t* high;
    int low_lane, high_lane;
    const std::uint8_t* scales;
    float d;
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool odd) {
    return {stage + row * 128,
            stage + field_offset<TensorCodec>(1) + row * 64,
            (row & 7) * 16 + t * 4,
            (row >> 1 & 3) * 16 + t * 4,
            stage + field_offset<TensorCodec>(2) + row * 16,
            staged_half(stage + field_offset<TensorCodec>(3) + row * 4, odd)};
  }
  static __device__ void octet(const Row& row, int o, std::uint32_t, std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Sixteen values from n on of one half of the block.
      const int half = o / 4, n = 32 * (o % 4) + 16 * h;
      const auto low =
          staged<std::uint32_t>(row.low + (row.low_lane ^ (half * 4 + n % 64 / 16) * 16));
      const auto high =
          staged<std::uint32_t>(row.high + (row.high_lane ^ (half * 2 + n % 32 / 16) * 16));
      const std::uint32_t bytes =
          (low >> (n < 64 ? 0 : 4) & 0x0f0f0f0fu) | (high >> (2 * (n / 32)) & 0x03030303u) << 4;
      unpack_bytes(bytes, 32.0f, pairs[2 * h], pairs[2 * h + 1]);
    }
  }
  static __device__ float scale(const Row& row, int o, int h) {
    return row.d * static_cast<float>(staged<std::int8_t>(row.scales + 2 * o + h));
  }
};

constexpr bool has_tensor_codec(DType type) {
  switch (type) {
    case DType::q8_0:
    case DType::f16:
    case DType::mxfp4:
    case DType::iq2_xxs:
    case DType::q2_k:
    case DType::q4_k:
    case DType::q6_k:
      return true;
    default:
      return false;
  }
}

}  // namespace ebb::cuda
