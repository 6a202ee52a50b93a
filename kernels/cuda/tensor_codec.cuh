#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/tensor_product.h"
#include "kernels/cuda/tensor_stage.cuh"
#include "kernels/cuda/tensor_units.cuh"

// How stored weights become operands of the matrix units: exact f16 numbers, and scales that
// multiply f32 sums; or, with kDigits, integers that hold the scales of groups, whose products are
// integers up to the end of a term. IQ2_XXS has a way of its own (tensor_iq2.cuh).
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

template <class T>
__device__ __forceinline__ T staged(const std::uint8_t* at) {
  return *reinterpret_cast<const T*>(at);
}

/// Half of the word at `at` that is an odd or an even 2-byte field.
__device__ __forceinline__ float staged_half(const std::uint8_t* at, bool odd) {
  const auto word = staged<std::uint32_t>(at);
  return half_float(odd ? word >> 16 : word & 0xffffu);
}

struct Tables;  // of IQ2_XXS (tensor_iq2.cuh)

template <DType kType>
struct TensorCodec;

struct TensorDefaults {
  static constexpr bool kMinus = false;  // has minus() and minima()
  static constexpr bool kTables = false;
  static constexpr bool kScaled = true;  // with kGroup 0: has scale()
  static constexpr int kGroup = 0;
  static constexpr bool kDigits = false;     // products are of integers
  static constexpr bool kOwnScales = false;  // with kDigits: has odd(), by which groups of 32 count
  static constexpr bool kDiagonal = false;   // products are those of tensor_diagonal.cuh
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
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&pairs)[4]) {
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
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&pairs)[4]) {
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
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&pairs)[4]) {
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
struct TensorCodec<DType::q2_k> : TensorDefaults {
  static constexpr bool kMinus = true, kDigits = true;
  static constexpr int kBlock = 256, kFields = 3;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 64 : f == 1 ? 16 : 4; }
  static constexpr Order kOrder = Order::quarters;
  static __device__ int swizzle(int, int, int piece) { return piece; }
  // What is wanted once a term stays in the stage until then.
  struct Row {
    const std::uint8_t* at;
    const std::uint8_t* meta;  // scales and minima, four bits each, of the lane's groups of 16
    const std::uint8_t* dm;
    std::uint32_t select;  // their bytes
    std::uint32_t scales;
    __device__ std::uint32_t groups() const {
      const auto s = staged<uint2>(meta);
      return __byte_perm(s.x, s.y, select);
    }
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool) {
    Row r;
    r.at = stage + row * 64 + t * 16;
    r.meta = stage + field_offset<TensorCodec>(1) + row * 16 + 8 * (t >> 1);
    r.dm = stage + field_offset<TensorCodec>(2) + row * 4;
    r.select = (t & 1) != 0 ? 0x7531 : 0x6420;
    r.scales = r.groups() & 0x0f0f0f0fu;
    return r;
  }
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&bytes)[2]) {
    const int g = o >> 1;
    const std::uint32_t scale = pick_bytes(row.scales, 0, 0x4440u | static_cast<std::uint32_t>(g));
    const auto q = staged<uint2>(row.at + (o & 1) * 8);
    bytes[0] = (q.x >> (2 * g) & 0x03030303u) * scale;  // up to 45
    bytes[1] = (q.y >> (2 * g) & 0x03030303u) * scale;
  }
  static __device__ float scale(const Row& row, int, int) {
    return half_float(staged<std::uint16_t>(row.dm));
  }
  static __device__ float minus(const Row& row) {
    return half_float(staged<std::uint16_t>(row.dm + 2));
  }
  static __device__ void minima(const Row& row, std::uint32_t (&pairs)[2]) {
    const std::uint32_t groups = row.groups() & 0xf0f0f0f0u;  // 16 times the minima
    const __half2 factor = __float2half2_rn(1.0f / 16), offset = __float2half2_rn(-64.0f);
    unpack_bytes(groups, factor, offset, pairs[0], pairs[1]);
  }
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
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&pairs)[4]) {
    const int i = o & 3, shift = o < 4 ? 0 : 4;
    const __half2 s = half_integer(row.pairs >> (o < 4 ? 0 : 16) & 255u);
    const __half2 offset = __hmul2(s, __float2half2_rn(-1024.0f));
    const auto q = staged<uint2>(row.at + (row.odd ^ i * 8));
    unpack_bytes(q.x >> shift & 0x0f0f0f0fu, s, offset, pairs[0], pairs[1]);
    unpack_bytes(q.y >> shift & 0x0f0f0f0fu, s, offset, pairs[2], pairs[3]);
  }
  static __device__ float scale(const Row& row, int, int) { return half_float(row.dm & 0xffffu); }
  static __device__ float minus(const Row& row) { return half_float(row.dm >> 16); }
  static __device__ void minima(const Row& row, std::uint32_t (&pairs)[2]) {
    pairs[0] = row.minimum[0];
    pairs[1] = row.minimum[1];
  }
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
  static __device__ void octet(const Row& row, int o, const Tables&, std::uint32_t (&pairs)[4]) {
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
