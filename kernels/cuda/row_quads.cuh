#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/row_format.h"

// Four neighbouring values of a stored row at a time; the values are those of decode_value.

namespace ebb::cuda {

/// How rows of a store are read.
struct RowReader {
  RowFormat format = RowFormat::f32;
  std::int32_t d = 0;
  std::int32_t n_rot = 0;
  bool by_quads = false;  ///< whole quads of values stand aligned; otherwise value by value
};

inline RowReader row_reader(const RowStore& store, std::int32_t d, std::int32_t n_rot) {
  const std::int32_t n_still = d - n_rot;
  bool by_quads = d % 4 == 0;
  // A fp8 row with rotating dims: 8 bytes of bf16 at a time behind the e4m3 bytes.
  if (store.format == RowFormat::fp8 && n_rot > 0) {
    by_quads = by_quads && n_still % 8 == 0 && n_rot % 4 == 0;
  }
  // Two values are a byte and a group shares a scale.
  if (store.format == RowFormat::fp4) by_quads = d % kFp4Block == 0;
  return {store.format, d, n_rot, by_quads};
}

/// Two e4m3 numbers, each in the upper byte of a half word, as f32: f16 has the same fields with
/// another bias.
__device__ __forceinline__ float2 e4m3_pair(std::uint32_t bytes) {
  const std::uint32_t halves = (bytes & 0x7f007f00u) >> 1 | (bytes & 0x80008000u);
  float2 v = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  v.x *= 256.0f;
  v.y *= 256.0f;
  const float nan = __int_as_float(0x7fc00000);
  if (fabsf(v.x) == 480.0f) v.x = nan;
  if (fabsf(v.y) == 480.0f) v.y = nan;
  return v;
}

__device__ __forceinline__ float4 scaled(float scale, float2 a, float2 b) {
  return make_float4(scale * a.x, scale * a.y, scale * b.x, scale * b.y);
}

/// Two e2m1 numbers in the lowest byte of `pair`, as f32: f16 again has the same fields.
__device__ __forceinline__ float2 e2m1_pair(std::uint32_t pair) {
  const std::uint32_t halves =
      (pair & 0x07u) << 9 | (pair & 0x08u) << 12 | (pair & 0x70u) << 21 | (pair & 0x80u) << 24;
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  return make_float2(v.x * 16384.0f, v.y * 16384.0f);
}

/// Values dim .. dim + 3 of a row that has no aligned quads; zeros past the end. Not inlined: code
/// that is run once is fetched as slowly as it is long.
static __device__ __noinline__ float4 odd_quad(const RowReader& r, const std::byte* row, int dim) {
  float v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = dim + i < r.d ? decode_value(r.format, r.d, r.n_rot, row, dim + i) : 0.0f;
  }
  return make_float4(v[0], v[1], v[2], v[3]);
}

/// Quads of a row: of[i] = values first + i * step .. + 3; zeros past the end. `first` and `step`
/// are multiples of 4.
template <int n>
__device__ __forceinline__ void load_quads(const RowReader& r, const std::byte* row, int first,
                                           int step, float4 (&of)[n]) {
  const auto for_all = [&](auto value) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int dim = first + i * step;
      of[i] = dim < r.d ? value(dim) : make_float4(0, 0, 0, 0);
    }
  };
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(row);
  if (!r.by_quads) {
    for_all([&](int dim) { return odd_quad(r, row, dim); });
  } else if (r.format == RowFormat::f32) {
    for_all([&](int dim) { return *reinterpret_cast<const float4*>(row + 4 * dim); });
  } else if (r.format == RowFormat::f16) {
    for_all([&](int dim) {
      const uint2 v = *reinterpret_cast<const uint2*>(row + 2 * dim);
      return scaled(1.0f, __half22float2(*reinterpret_cast<const __half2*>(&v.x)),
                    __half22float2(*reinterpret_cast<const __half2*>(&v.y)));
    });
  } else if (r.format == RowFormat::fp8) {
    const int n_still = r.d - r.n_rot;
    const bool is_key = r.n_rot == 0;
    const float key_scale = is_key ? *reinterpret_cast<const float*>(row + r.d) : 0.0f;
    for_all([&](int dim) {
      if (dim >= n_still) {
        const uint2 v = *reinterpret_cast<const uint2*>(row + n_still + 2 * (dim - n_still));
        return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                           __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
      }
      const std::uint32_t v = *reinterpret_cast<const std::uint32_t*>(row + dim);
      const float scale =
          is_key ? key_scale : e8m0_to_float(bytes[n_still + 2 * r.n_rot + dim / kFp8Block]);
      return scaled(scale, e4m3_pair(__byte_perm(v, 0, 0x1404)),
                    e4m3_pair(__byte_perm(v, 0, 0x3424)));
    });
  } else {
    for_all([&](int dim) {
      return scaled(e8m0_to_float(bytes[r.d / 2 + dim / kFp4Block]), e2m1_pair(bytes[dim / 2]),
                    e2m1_pair(bytes[dim / 2 + 1]));
    });
  }
}

}  // namespace ebb::cuda
