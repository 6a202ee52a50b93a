#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/numeric.h"
#include "kernels/ops/attention.h"
#include "kernels/rope.h"
#include "kernels/row_format.h"

// What a block of threads does to one vector in shared memory: norm, rope, rounding, storing. The
// element functions are those of the CPU; only sums and maxima run in another order. `memory` holds
// 32 floats. Every function ends with the vector complete for all threads. None is inlined: code
// that is run once per launch is fetched as slowly as it is long.

namespace ebb::cuda {

/// x = x * inverse RMS (* weight).
static __device__ __noinline__ void normalise_block(float* x, int d, const float* weight, float eps,
                                                    float* memory) {
  float sum = 0;
  for (int i = threadIdx.x; i < d; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  const float scale = 1.0f / sqrtf(block_sum(sum, memory) / static_cast<float>(d) + eps);
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float v = x[i] * scale;
    if (weight != nullptr) v *= weight[i];
    x[i] = v;
  }
  __syncthreads();
}

/// x = x * inverse RMS for a head's vector. The sum has the order of a warp whose lanes take four
/// values at a time, which is that of heads_warp and of an attend that norms its queries: whichever
/// of them does it, the bits are the same.
static __device__ __noinline__ void normalise_head(float* x, int d, float eps, float* memory) {
  if (threadIdx.x < kWarp) {
    float sum = 0;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < d; i += 4 * kWarp) {
      for (int j = i; j < min(i + 4, d); ++j) sum = fmaf(x[j], x[j], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) memory[0] = 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
  }
  __syncthreads();
  const float scale = memory[0];
  for (int i = threadIdx.x; i < d; i += blockDim.x) x[i] *= scale;
  __syncthreads();
}

__device__ __forceinline__ float rounded_to_bf16(float x) {
  return bf16_to_float(float_to_bf16(x));
}

static __device__ __noinline__ void rope_block(float* x, int d, const float* cos_sin, int n_pairs,
                                               bool to_bf16) {
  float* const rotating = x + d - 2 * n_pairs;
  if (to_bf16) {
    for (int i = threadIdx.x; i < d; i += blockDim.x) x[i] = rounded_to_bf16(x[i]);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < n_pairs; i += blockDim.x) {
    float* const pair = rotating + 2 * i;
    rotate_pair(pair, cos_sin + 2 * i);
    if (to_bf16) {
      pair[0] = rounded_to_bf16(pair[0]);
      pair[1] = rounded_to_bf16(pair[1]);
    }
  }
  __syncthreads();
}

/// Largest magnitude of x[begin, begin + n) by one warp; NaNs are passed over.
__device__ __forceinline__ float warp_magnitude(const float* x, int n) {
  float largest = 0;
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) largest = fmaxf(largest, fabsf(x[i]));
  return warp_max(largest);
}

/// Calls run(begin, n) by one warp for every group of `size` values.
template <class Run>
__device__ __forceinline__ void warps_over_groups(int d, int size, Run run) {
  const int n_warps = blockDim.x / kWarp;
  for (int begin = static_cast<int>(threadIdx.x) / kWarp * size; begin < d;
       begin += n_warps * size) {
    run(begin, min(size, d - begin));
  }
}

/// Sylvester's order, as the CPU does it: the same sums of the same pairs.
static __device__ __noinline__ void hadamard_block(float* x, int d) {
  for (int half = 1; half < d; half *= 2) {
    for (int i = threadIdx.x; i < d / 2; i += blockDim.x) {
      const int low = i / half * 2 * half + i % half;
      const float a = x[low], b = x[low + half];
      x[low] = a + b;
      x[low + half] = a - b;
    }
    __syncthreads();
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  for (int i = threadIdx.x; i < d; i += blockDim.x) x[i] *= scale;
  __syncthreads();
}

/// What comes after the rope.
static __device__ __noinline__ void round_block(float* x, int d, int n_pairs, Rounding rounding) {
  const int lane = threadIdx.x % kWarp;
  if (rounding == Rounding::fp8_nope) {
    warps_over_groups(d - 2 * n_pairs, kFp8Block, [&](int begin, int n) {
      const float scale = fp8_scale(warp_magnitude(x + begin, n));
      const float inverse = 1.0f / scale;
      for (int i = begin + lane; i < begin + n; i += kWarp) {
        x[i] = scale * e4m3_to_float(float_to_e4m3(x[i] * inverse));
      }
    });
    __syncthreads();
    return;
  }
  if (!transforms(rounding)) return;
  hadamard_block(x, d);
  if (rounding != Rounding::hadamard_fp4) return;
  warps_over_groups(d, kFp4Block, [&](int begin, int n) {
    const float scale = fp4_scale(warp_magnitude(x + begin, n));
    for (int i = begin + lane; i < begin + n; i += kWarp) {
      x[i] = scale * e2m1_to_float(float_to_e2m1(x[i] / scale));
    }
  });
  __syncthreads();
}

/// encode_row by a block.
static __device__ __noinline__ void encode_block(RowFormat format, int d, int n_rot, const float* x,
                                                 std::byte* row) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(row);
  const int lane = threadIdx.x % kWarp;
  if (format == RowFormat::f32) {
    for (int i = threadIdx.x; i < d; i += blockDim.x) reinterpret_cast<float*>(row)[i] = x[i];
  } else if (format == RowFormat::f16) {
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
      reinterpret_cast<std::uint16_t*>(row)[i] = float_to_f16(x[i]);
    }
  } else if (format == RowFormat::fp8 && n_rot == 0) {
    // Every warp finds the scale for itself.
    const float scale = fp8_scale(warp_magnitude(x, d));
    const float inverse = 1.0f / scale;
    for (int i = threadIdx.x; i < d; i += blockDim.x) bytes[i] = float_to_e4m3(x[i] * inverse);
    if (threadIdx.x == 0) memcpy(row + d, &scale, sizeof(scale));
  } else if (format == RowFormat::fp8) {
    const int n_still = d - n_rot;
    for (int i = threadIdx.x; i < n_rot; i += blockDim.x) {
      const std::uint16_t half = float_to_bf16(x[n_still + i]);
      memcpy(row + n_still + 2 * i, &half, sizeof(half));
    }
    std::uint8_t* const scales = bytes + n_still + 2 * n_rot;
    warps_over_groups(n_still, kFp8Block, [&](int begin, int n) {
      const float scale = fp8_scale(warp_magnitude(x + begin, n));
      const float inverse = 1.0f / scale;
      for (int i = begin + lane; i < begin + n; i += kWarp) {
        bytes[i] = float_to_e4m3(x[i] * inverse);
      }
      if (lane == 0) scales[begin / kFp8Block] = power_of_two_to_e8m0(scale);
    });
    const int used = n_still + 2 * n_rot + (n_still + kFp8Block - 1) / kFp8Block;
    for (int i = used + threadIdx.x; i < row_bytes(format, d, n_rot); i += blockDim.x) bytes[i] = 0;
  } else {
    warps_over_groups(d, kFp4Block, [&](int begin, int n) {
      const float scale = fp4_scale(warp_magnitude(x + begin, n));
      for (int i = begin + 2 * lane; i < begin + n; i += 2 * kWarp) {
        bytes[i / 2] = static_cast<std::uint8_t>(float_to_e2m1(x[i] / scale) |
                                                 (float_to_e2m1(x[i + 1] / scale) << 4));
      }
      if (lane == 0) bytes[d / 2 + begin / kFp4Block] = power_of_two_to_e8m0(scale);
    });
  }
}

}  // namespace ebb::cuda
