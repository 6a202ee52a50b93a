#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/planes.h"
#include "kernels/numeric.h"

// How one lane reads its share of a weight row. A row is cut into chunks of kQuads * 4 values; lane
// l of a step takes chunk 32 * step + l, with one 16-byte load where the type allows it. Values
// come out in quads, as floats that are exact integers for quantised types:
//   value = scale(group) * quad - minus(group),  kGroupQuads quads to a group.
// position(chunk, j) is the index in the row of the first of the four values of quad j.
//
// Bytes become floats without conversion instructions, which are slow: byte b under the exponent of
// 2^23 is 2^23 + b.

namespace ebb::cuda {

/// 16 bytes that are read once: past the L1 cache.
__device__ __forceinline__ uint4 load16(const std::uint8_t* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
__device__ __forceinline__ uint2 load8(const std::uint8_t* at) {
  return __ldg(reinterpret_cast<const uint2*>(at));
}
__device__ __forceinline__ std::uint32_t load4(const std::uint8_t* at) {
  return __ldg(reinterpret_cast<const std::uint32_t*>(at));
}
__device__ __forceinline__ std::uint32_t load2(const std::uint8_t* at) {
  return __ldg(reinterpret_cast<const std::uint16_t*>(at));
}
__device__ __forceinline__ float half_float(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/// The four bytes of `word`, each minus `bias`.
__device__ __forceinline__ float4 bytes_to_floats(std::uint32_t word, float bias) {
  const float offset = 8388608.0f + bias;
  return make_float4(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440)) - offset,
                     __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7441)) - offset,
                     __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7442)) - offset,
                     __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7443)) - offset);
}

/// Bytes of magnitudes below 128, negated where bit 0 of the same byte of `negative` is set, plus
/// 128.
__device__ __forceinline__ std::uint32_t signed_bytes(std::uint32_t magnitudes,
                                                      std::uint32_t negative) {
  const std::uint32_t mask = negative * 255u;
  return ((magnitudes ^ mask) ^ 0x80808080u) + negative;
}

__device__ __forceinline__ std::uint32_t word_of(uint4 v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <DType kType>
struct Codec;

struct PlainCodec {
  static constexpr bool kScaled = false;
  static constexpr bool kMinus = false;
  static constexpr bool kGrid = false;
};
struct ScaledCodec {
  static constexpr bool kScaled = true;
  static constexpr bool kMinus = false;
  static constexpr bool kGrid = false;
};

template <>
struct Codec<DType::f32> : PlainCodec {
  static constexpr int kQuads = 1, kGroupQuads = 1;
  struct Raw {
    uint4 q;
  };
  static __device__ int position(int chunk, int) { return chunk * 4; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
  }
  static __device__ float4 quad(const Raw& raw, int, const std::uint64_t*) {
    return make_float4(__uint_as_float(raw.q.x), __uint_as_float(raw.q.y), __uint_as_float(raw.q.z),
                       __uint_as_float(raw.q.w));
  }
};

template <>
struct Codec<DType::f16> : PlainCodec {
  static constexpr int kQuads = 2, kGroupQuads = 2;
  struct Raw {
    uint4 q;
  };
  static __device__ int position(int chunk, int j) { return chunk * 8 + 4 * j; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    const std::uint32_t a = word_of(raw.q, 2 * j), b = word_of(raw.q, 2 * j + 1);
    return make_float4(half_float(a & 0xffffu), half_float(a >> 16), half_float(b & 0xffffu),
                       half_float(b >> 16));
  }
};

template <>
struct Codec<DType::bf16> : PlainCodec {
  static constexpr int kQuads = 2, kGroupQuads = 2;
  struct Raw {
    uint4 q;
  };
  static __device__ int position(int chunk, int j) { return chunk * 8 + 4 * j; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    const std::uint32_t a = word_of(raw.q, 2 * j), b = word_of(raw.q, 2 * j + 1);
    return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u),
                       __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u));
  }
};

template <>
struct Codec<DType::q8_0> : ScaledCodec {
  static constexpr int kQuads = 4, kGroupQuads = 4;
  struct Raw {
    uint4 q;
    std::uint32_t d;
  };
  static __device__ int position(int chunk, int j) { return chunk * 16 + 4 * j; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
    raw.d = load2(p.plane[1] + (chunk >> 1) * 2);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    return bytes_to_floats(word_of(raw.q, j) ^ 0x80808080u, 128.0f);
  }
  static __device__ float scale(const Raw& raw, int) { return half_float(raw.d); }
};

template <>
struct Codec<DType::mxfp4> : ScaledCodec {
  static constexpr int kQuads = 8, kGroupQuads = 8;
  struct Raw {
    uint4 q;
    std::uint32_t e;
  };
  static __device__ int position(int chunk, int j) { return chunk * 32 + 4 * j; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
    raw.e = __ldg(p.plane[1] + chunk);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    const std::uint32_t codes = (word_of(raw.q, j & 3) >> (j < 4 ? 0 : 4)) & 0x0f0f0f0fu;
    // The low three bits of four codes, side by side, select from twice the magnitudes.
    std::uint32_t select = codes & 0x07070707u;
    select = (select | select >> 4) & 0x00ff00ffu;
    select = (select | select >> 8) & 0xffffu;
    const std::uint32_t magnitudes = __byte_perm(0x03020100u, 0x0c080604u, select);
    return bytes_to_floats(signed_bytes(magnitudes, codes >> 3 & 0x01010101u), 128.0f);
  }
  static __device__ float scale(const Raw& raw, int) {
    // 2^(e - 128), since the integers are doubled; the least two are subnormal.
    return __uint_as_float(raw.e < 2 ? 0x00200000u << raw.e : (raw.e - 1) << 23);
  }
};

template <>
struct Codec<DType::iq2_xxs> : ScaledCodec {
  static constexpr bool kGrid = true;
  static constexpr int kQuads = 16, kGroupQuads = 8;
  struct Raw {
    uint4 q;  // two groups: four codeword indices, then signs and scale
    std::uint32_t d;
  };
  static __device__ int position(int chunk, int j) { return chunk * 64 + 4 * j; }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
    raw.d = load2(p.plane[1] + (chunk >> 2) * 2);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t* grid) {
    const std::uint32_t codes = j < 8 ? raw.q.x : raw.q.z;
    const std::uint32_t packed = j < 8 ? raw.q.y : raw.q.w;
    const int octet = j % 8 / 2;
    const std::uint64_t codeword = grid[codes >> (8 * octet) & 255u];
    const std::uint32_t magnitudes =
        static_cast<std::uint32_t>((j & 1) != 0 ? codeword >> 32 : codeword);
    const std::uint32_t field = packed >> (7 * octet) & 127u;
    std::uint32_t signs;
    if ((j & 1) == 0) {
      signs = field & 15u;
    } else {
      signs = field >> 4 | (__popc(field) & 1u) << 3;
    }
    const std::uint32_t negative = signs * 0x00204081u & 0x01010101u;
    return bytes_to_floats(signed_bytes(magnitudes, negative), 128.0f);
  }
  static __device__ float scale(const Raw& raw, int group) {
    const std::uint32_t packed = group == 0 ? raw.q.y : raw.q.w;
    return half_float(raw.d) * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
  }
};

template <>
struct Codec<DType::q2_k> : ScaledCodec {
  static constexpr bool kMinus = true;
  static constexpr int kQuads = 16, kGroupQuads = 4;
  struct Raw {
    uint4 q;
    std::uint32_t scales;  // of the chunk's four groups
    std::uint32_t dm;
  };
  /// Chunk l of a block holds 16 values of each quarter of one half.
  static __device__ int position(int chunk, int j) {
    const int l = chunk & 3;
    return (chunk >> 2) * 256 + 128 * (l >> 1) + 16 * (l & 1) + 32 * (j >> 2) + 4 * (j & 3);
  }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
    const int l = static_cast<int>(chunk & 3);
    const uint2 s = load8(p.plane[1] + (chunk >> 2) * 16 + 8 * (l >> 1));
    raw.scales = __byte_perm(s.x, s.y, (l & 1) != 0 ? 0x7531 : 0x6420);
    raw.dm = load4(p.plane[2] + (chunk >> 2) * 4);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    return bytes_to_floats(word_of(raw.q, j & 3) >> (2 * (j >> 2)) & 0x03030303u, 0.0f);
  }
  static __device__ float scale(const Raw& raw, int group) {
    return half_float(raw.dm & 0xffffu) * static_cast<float>(raw.scales >> (8 * group) & 15u);
  }
  static __device__ float minus(const Raw& raw, int group) {
    return half_float(raw.dm >> 16) * static_cast<float>(raw.scales >> (8 * group + 4) & 15u);
  }
};

template <>
struct Codec<DType::q4_k> : ScaledCodec {
  static constexpr bool kMinus = true;
  static constexpr int kQuads = 8, kGroupQuads = 4;
  struct Raw {
    uint4 q;
    std::uint32_t dm;
    std::uint32_t pairs;  // scale and minimum of the low group, then of the high one, a byte each
  };
  static __device__ int position(int chunk, int j) {
    const int l = chunk & 7;
    return (chunk >> 3) * 256 + 64 * (l >> 1) + 16 * (l & 1) + 32 * (j >> 2) + 4 * (j & 3);
  }
  static __device__ std::uint32_t pair(uint4 meta, int group) {
    const auto byte = [&](int i) { return word_of(meta, 1 + (i >> 2)) >> (8 * (i & 3)) & 255u; };
    if (group < 4) return (byte(group) & 63u) | (byte(group + 4) & 63u) << 8;
    const std::uint32_t low = byte(group + 4);
    return (low & 15u) | (byte(group - 4) >> 6) << 4 | (low >> 4 | (byte(group) >> 6) << 4) << 8;
  }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    raw.q = load16(p.plane[0] + chunk * 16);
    const uint4 meta = __ldg(reinterpret_cast<const uint4*>(p.plane[1] + (chunk >> 3) * 16));
    const int group = static_cast<int>(chunk & 7) >> 1 << 1;
    raw.dm = meta.x;
    raw.pairs = pair(meta, group) | pair(meta, group + 1) << 16;
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    return bytes_to_floats(word_of(raw.q, j & 3) >> (j < 4 ? 0 : 4) & 0x0f0f0f0fu, 0.0f);
  }
  static __device__ float scale(const Raw& raw, int group) {
    return half_float(raw.dm & 0xffffu) * static_cast<float>(raw.pairs >> (16 * group) & 255u);
  }
  static __device__ float minus(const Raw& raw, int group) {
    return half_float(raw.dm >> 16) * static_cast<float>(raw.pairs >> (16 * group + 8) & 255u);
  }
};

template <>
struct Codec<DType::q6_k> : ScaledCodec {
  static constexpr int kQuads = 8, kGroupQuads = 2;
  struct Raw {
    uint2 low, high;  // eight bytes of the even and of the odd quarters
    uint2 top;
    std::uint32_t scales;  // of the four groups
    std::uint32_t d;
  };
  /// Chunk l of a block holds 8 values of each quarter of one half.
  static __device__ int position(int chunk, int j) {
    const int l = chunk & 7;
    return (chunk >> 3) * 256 + 128 * (l >> 2) + 8 * (l & 3) + 32 * (j >> 1) + 4 * (j & 1);
  }
  static __device__ void load(const Planes& p, std::int64_t chunk, Raw& raw) {
    const std::int64_t block = chunk >> 3;
    const int half = static_cast<int>(chunk & 7) >> 2, c = static_cast<int>(chunk & 3);
    const std::uint8_t* const low = p.plane[0] + block * 128 + 64 * half + 8 * c;
    raw.low = load8(low);
    raw.high = load8(low + 32);
    raw.top = load8(p.plane[1] + block * 64 + 32 * half + 8 * c);
    const uint2 s = load8(p.plane[2] + block * 16 + 8 * half);
    raw.scales = __byte_perm(s.x, s.y, (c >> 1) != 0 ? 0x7531 : 0x6420);
    raw.d = load2(p.plane[3] + block * 2);
  }
  static __device__ float4 quad(const Raw& raw, int j, const std::uint64_t*) {
    const int quarter = j >> 1;
    const uint2 pair = (quarter & 1) != 0 ? raw.high : raw.low;
    const std::uint32_t nibbles = ((j & 1) != 0 ? pair.y : pair.x) >> (4 * (quarter >> 1));
    const std::uint32_t top = ((j & 1) != 0 ? raw.top.y : raw.top.x) >> (2 * quarter);
    return bytes_to_floats((nibbles & 0x0f0f0f0fu) | (top & 0x03030303u) << 4, 32.0f);
  }
  static __device__ float scale(const Raw& raw, int group) {
    return half_float(raw.d) *
           static_cast<float>(static_cast<std::int8_t>(raw.scales >> (8 * group) & 255u));
  }
};

}  // namespace ebb::cuda
