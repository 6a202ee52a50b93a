#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/codec.cuh"

// Dot products on the matrix units, as exact as f32 products: weights become f16 integers without
// rounding, and an activation is split into two f16 numbers, x * 2^e = high + low, that go through
// the units as two columns; sums are f32. 2^e brings the row's largest magnitude near 2^14, so that
// low keeps what high drops.
//
// A warp takes 16 weight rows, one block of 256 values at a time: lane (g, t) holds chunk t of rows
// g and g + 8. Quad j of the four lanes is one product of k 16; which value has which k does not
// matter as long as both operands agree. What is common to a block (d, dmin) multiplies its f32
// sums; what is not is folded into the integers, which stay exact below 2048.
//
// Columns do not influence each other, so an element's bits depend on its weight row and its
// activation row alone.

namespace ebb::cuda {

inline constexpr int kTensorThreads = 256;
inline constexpr int kTensorWarps = kTensorThreads / kWarp;
inline constexpr int kTensorSlices = 4;  // warps that share rows, each with a quarter of the blocks
inline constexpr int kTensorRows = 16 * kTensorWarps / kTensorSlices;  // weight rows of a block
inline constexpr int kTensorTiles = 1;           // times kTensorRows, one after another
inline constexpr int kTensorTables = 256 + 128;  // words of the tables of IQ2_XXS
inline constexpr int kTensorQuads = 16;          // of a chunk
inline constexpr std::int64_t kMaxTensorInputs = 4096;

constexpr bool has_tensor_codec(DType type) {
  return type == DType::iq2_xxs || type == DType::q2_k;
}

/// d += a * b on the matrix units; a is 16 x 16, b 16 x 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
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

__device__ __forceinline__ __half2 as_half2(std::uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ std::uint32_t as_bits(__half2 value) {
  return *reinterpret_cast<std::uint32_t*>(&value);
}

/// factor * byte for the two bytes of `word` that `selector` names: 1024 + byte in f16, then one
/// exact fused step.
__device__ __forceinline__ std::uint32_t scaled_bytes(std::uint32_t word, std::uint32_t selector,
                                                      __half2 factor, __half2 offset) {
  return as_bits(__hfma2(as_half2(__byte_perm(word, 0x64646464u, selector)), factor, offset));
}

template <DType kType>
struct TensorCodec;

template <>
struct TensorCodec<DType::iq2_xxs> {
  static constexpr bool kMinus = false;
  static constexpr bool kGrid = true;
  struct Raw {
    uint4 q;
    std::uint32_t d;
  };
  struct Factors {
    __half2 factor[2], offset[2];  // by group of 32
  };
  static __device__ void load(const Planes& p, std::int64_t block, int t, Raw& raw) {
    raw.q = load16(p.plane[0] + block * 64 + t * 16);
    raw.d = load2(p.plane[1] + block * 2);
  }
  /// scale = d / 8 * (2 s + 1): the odd number goes into the integers.
  static __device__ void prepare(const Raw& raw, Factors& f) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const std::uint32_t packed = g == 0 ? raw.q.y : raw.q.w;
      const float odd = static_cast<float>(2 * (packed >> 28) + 1);
      f.factor[g] = __float2half2_rn(odd);
      f.offset[g] = __float2half2_rn(-(1024.0f + 128.0f) * odd);
    }
  }
  /// Values 8 o .. 8 o + 7 of the chunk, as four pairs. `tables` holds every codeword as eight
  /// 4-bit numbers of magnitudes, then every sign field as eight 4-bit numbers, 4 for minus:
  /// together they select from the six values, kept as bytes that are 128 too large.
  static __device__ void octet(const Raw& raw, const Factors& f, int o, const std::uint32_t* tables,
                               std::uint32_t (&pairs)[4]) {
    const int g = o / 4, i = o % 4;
    const std::uint32_t codes = g == 0 ? raw.q.x : raw.q.z;
    const std::uint32_t packed = g == 0 ? raw.q.y : raw.q.w;
    const std::uint32_t select =
        tables[codes >> (8 * i) & 255u] | tables[256 + (packed >> (7 * i) & 127u)];
    constexpr std::uint32_t kPlus = 136 | 153 << 8 | 171 << 16;
    constexpr std::uint32_t kMinusBytes = 120 | 103 << 8 | 85 << 16;
    const std::uint32_t low = __byte_perm(kPlus, kMinusBytes, select);
    const std::uint32_t high = __byte_perm(kPlus, kMinusBytes, select >> 16);
    pairs[0] = scaled_bytes(low, 0x4140, f.factor[g], f.offset[g]);
    pairs[1] = scaled_bytes(low, 0x4342, f.factor[g], f.offset[g]);
    pairs[2] = scaled_bytes(high, 0x4140, f.factor[g], f.offset[g]);
    pairs[3] = scaled_bytes(high, 0x4342, f.factor[g], f.offset[g]);
  }
  static __device__ float scale(const Raw& raw) { return half_float(raw.d) * 0.125f; }
};

template <>
struct TensorCodec<DType::q2_k> {
  static constexpr bool kMinus = true;
  static constexpr bool kGrid = false;
  struct Raw {
    uint4 q;
    std::uint32_t scales;
    std::uint32_t dm;
  };
  struct Factors {
    __half2 factor[4], offset[4];  // by group of 16
    std::uint32_t minimum[4];
  };
  static __device__ void load(const Planes& p, std::int64_t block, int t, Raw& raw) {
    Codec<DType::q2_k>::Raw plain;
    Codec<DType::q2_k>::load(p, block * 4 + t, plain);
    raw.q = plain.q;
    raw.scales = plain.scales;
    raw.dm = plain.dm;
  }
  static __device__ void prepare(const Raw& raw, Factors& f) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const float s = static_cast<float>(raw.scales >> (8 * g) & 15u);
      f.factor[g] = __float2half2_rn(s);
      f.offset[g] = __float2half2_rn(-1024.0f * s);
      f.minimum[g] = as_bits(__float2half2_rn(static_cast<float>(raw.scales >> (8 * g + 4) & 15u)));
    }
  }
  static __device__ void octet(const Raw& raw, const Factors& f, int o, const std::uint32_t*,
                               std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int j = 2 * o + k;
      const std::uint32_t word = word_of(raw.q, j & 3) >> (2 * (j >> 2)) & 0x03030303u;
      pairs[2 * k] = scaled_bytes(word, 0x4140, f.factor[j >> 2], f.offset[j >> 2]);
      pairs[2 * k + 1] = scaled_bytes(word, 0x4342, f.factor[j >> 2], f.offset[j >> 2]);
    }
  }
  static __device__ float scale(const Raw& raw) { return half_float(raw.dm & 0xffffu); }
  static __device__ float minus(const Raw& raw) { return half_float(raw.dm >> 16); }
};

/// Columns of the activations in shared memory: high and low of every row.
template <int kRows>
inline constexpr int kTensorColumns = 2 * kRows;

template <int kRows>
constexpr std::size_t tensor_staged_bytes(std::int64_t n_in) {
  return static_cast<std::size_t>(kTensorColumns<kRows> * n_in) * sizeof(__half);
}

/// Stages all of the rows; x[r] is nullptr for a row that is not there. inverse[r] undoes the row's
/// scale; it and `memory` (kTensorWarps floats) are shared memory.
template <DType kType, int kRows>
__device__ void tensor_stage(const float* const (&x)[kRows], int n_in, uint2* staged,
                             float* inverse, float* memory) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  // A thread keeps its quads between the two uses, in the order in which they are stored.
  constexpr int kOwn = kMaxTensorInputs / 4 / kTensorThreads;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float4 own[kOwn];
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int i = threadIdx.x + k * kTensorThreads;
      const int t = i % 4, j = i / 4 % kTensorQuads, block = i / 4 / kTensorQuads;
      own[k] = make_float4(0, 0, 0, 0);
      if (x[r] != nullptr && i < n_in / 4) {
        own[k] = *reinterpret_cast<const float4*>(x[r] + Codec<kType>::position(block * 4 + t, j));
      }
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const float4 v = own[k];
      largest = fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), largest);
    }
    largest = warp_max(largest);
    if (r > 0) __syncthreads();
    if (lane == 0) memory[warp] = largest;
    __syncthreads();
    for (int i = 0; i < kTensorWarps; ++i) largest = fmaxf(largest, memory[i]);
    // 2^e with 2^13 <= largest * 2^e < 2^14, kept where both it and its inverse are normal.
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int e = min(max(13 - exponent, -126), 126);
    const float scale = __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
    if (threadIdx.x == 0) {
      inverse[r] = __uint_as_float(static_cast<std::uint32_t>(127 - e) << 23);
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int i = threadIdx.x + k * kTensorThreads;
      if (i >= n_in / 4) break;
      float4 v = own[k];
      v.x *= scale;
      v.y *= scale;
      v.z *= scale;
      v.w *= scale;
      const __half2 a = __floats2half2_rn(v.x, v.y), b = __floats2half2_rn(v.z, v.w);
      const float2 fa = __half22float2(a), fb = __half22float2(b);
      const __half2 c = __floats2half2_rn(v.x - fa.x, v.y - fa.y);
      const __half2 d = __floats2half2_rn(v.z - fb.x, v.w - fb.y);
      uint2* const place = staged + i * kTensorColumns<kRows> + 2 * r;
      place[0] = make_uint2(as_bits(a), as_bits(b));
      place[1] = make_uint2(as_bits(c), as_bits(d));
    }
  }
  __syncthreads();
}

/// Columns that go through the units at a time.
template <int kRows>
inline constexpr int kTensorSets = (kTensorColumns<kRows> + 7) / 8;

/// Sums of 16 rows of kMats matrices over the blocks of one slice: fragments in `sum`.
template <DType kType, int kRows, int kMats>
__device__ __forceinline__ void tensor_sums(const Planes (&planes)[kMats], std::int64_t low_row,
                                            std::int64_t high_row, int n_blocks, int slice,
                                            const uint2* staged, const std::uint32_t* grid,
                                            float (&sum)[kMats][kTensorSets<kRows>][4]) {
  using C = TensorCodec<kType>;
  constexpr int kSets = kTensorSets<kRows>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kMats; ++m) {
#pragma unroll
    for (int s = 0; s < kSets; ++s) sum[m][s][0] = sum[m][s][1] = sum[m][s][2] = sum[m][s][3] = 0;
  }
  // The weights of the next block are on their way while this one is multiplied.
  typename C::Raw raw[kMats][2], next[kMats][2];
  const auto load = [&](int block, typename C::Raw(&to)[kMats][2]) {
    if (block >= n_blocks) return;
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      C::load(planes[m], low_row * n_blocks + block, t, to[m][0]);
      C::load(planes[m], high_row * n_blocks + block, t, to[m][1]);
    }
  };
  load(slice, raw);
  for (int block = slice; block < n_blocks; block += kTensorSlices) {
    load(block + kTensorSlices, next);
    const uint2* const x = staged + (block * kTensorQuads * 4 + t) * kTensorColumns<kRows> + g;
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      typename C::Factors factors[2];
      C::prepare(raw[m][0], factors[0]);
      C::prepare(raw[m][1], factors[1]);
      float part[kSets][4] = {}, minimum[kSets][4] = {};
#pragma unroll
      for (int o = 0; o < kTensorQuads / 2; ++o) {
        std::uint32_t low[4], high[4];
        C::octet(raw[m][0], factors[0], o, grid, low);
        C::octet(raw[m][1], factors[1], o, grid, high);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int j = 2 * o + k;
          const std::uint32_t a[4] = {low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]};
#pragma unroll
          for (int s = 0; s < kSets; ++s) {
            uint2 value = make_uint2(0, 0);
            if (8 * s + g < kTensorColumns<kRows>) {
              value = x[j * 4 * kTensorColumns<kRows> + 8 * s];
            }
            multiply_add(part[s], a, value.x, value.y);
            if constexpr (C::kMinus) {
              const std::uint32_t l = factors[0].minimum[j >> 2], h = factors[1].minimum[j >> 2];
              multiply_add(minimum[s], {l, h, l, h}, value.x, value.y);
            }
          }
        }
      }
      const float scale[2] = {C::scale(raw[m][0]), C::scale(raw[m][1])};
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[m][s][i] = fmaf(scale[i / 2], part[s][i], sum[m][s][i]);
          if constexpr (C::kMinus) {
            sum[m][s][i] = fmaf(-C::minus(raw[m][i / 2]), minimum[s][i], sum[m][s][i]);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      raw[m][0] = next[m][0];
      raw[m][1] = next[m][1];
    }
  }
}

/// Adds the slices in order and calls store(weight row of the tile, activation row, values of the
/// kMats matrices). `memory` holds kTensorThreads * kMats * kTensorSets * 4 floats.
template <int kRows, int kMats, class Store>
__device__ __forceinline__ void tensor_finish(float (&sum)[kMats][kTensorSets<kRows>][4],
                                              float* memory, const float* inverse, Store store) {
  constexpr int kSets = kTensorSets<kRows>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, slice = warp % kTensorSlices;
  constexpr int kValues = kMats * kSets * 4;
  if (slice != 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      memory[(warp * kValues + i) * kWarp + lane] = sum[i / (4 * kSets)][i / 4 % kSets][i % 4];
    }
  }
  __syncthreads();
  if (slice != 0) return;
  for (int other = 1; other < kTensorSlices; ++other) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i / (4 * kSets)][i / 4 % kSets][i % 4] +=
          memory[((warp + other) * kValues + i) * kWarp + lane];
    }
  }
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const int r = 4 * s + t;
    if (r >= kRows) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[kMats];
#pragma unroll
      for (int m = 0; m < kMats; ++m) {
        values[m] = (sum[m][s][2 * half] + sum[m][s][2 * half + 1]) * inverse[r];
      }
      store(g + 8 * half, r, values);
    }
  }
}

}  // namespace ebb::cuda
