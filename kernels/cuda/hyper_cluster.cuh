#pragma once

#include <cooperative_groups.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hyper.h"
#include "kernels/hyper.h"

// What a block of hyper_cluster.cu does by itself: its arguments and memory, sums over a warp and
// over the cluster, the mixing of one row.

namespace ebb::cuda {

inline constexpr int kStreams = 4;
inline constexpr int kMix = (2 + kStreams) * kStreams;
inline constexpr int kColumns = 256;  // at most, of a block
inline constexpr int kLaneColumns = 8;
inline constexpr int kWorkers = kStreams * kWarp;
inline constexpr int kClusterThreads = kWorkers + kWarp;
inline constexpr int kMaxCluster = 16;

static_assert(kColumns == kLaneColumns * kWarp && kColumns == 2 * kWorkers);

/// What hc_post's o is made of if the experts' sum is still to be done.
struct ExpertSum {
  const float* partial = nullptr;  // [rows, n_used + 1, d]; nullptr: o is there
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::int32_t n_used = 0;
  std::int32_t n_experts = 0;
};

struct ClusterPlan {
  HcPreArgs pre;
  HcPostArgs post;  // streams is nullptr for none
  ExpertSum sum;
  std::int32_t columns = 0;  // of a block
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

namespace cg = cooperative_groups;

struct RowMemory {
  float old[kStreams][kColumns];
  float streams[kStreams][kColumns];
  float o[kColumns];
  float part[kStreams][kWarp];
  float shares[kMaxCluster][kWarp];  // written by the blocks of the cluster
  float squares[kMaxCluster];        // likewise
  float warp_squares[kStreams];
};

__device__ __forceinline__ void workers_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// Orders nothing: for a barrier that only says that blocks have begun.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <DType kType>
__device__ __forceinline__ float2 widen(std::uint32_t pair) {
  if constexpr (kType == DType::f16) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

/// One step of scatter_sums: of 2 n sums a lane goes on with half.
template <int n>
__device__ __forceinline__ void halve_sums(float (&value)[kWarp]) {
  const bool upper = (threadIdx.x & n) != 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float kept = upper ? value[i + n] : value[i];
    const float sent = upper ? value[i] : value[i + n];
    value[i] = kept + __shfl_xor_sync(kAllLanes, sent, n);
  }
}

/// value[m] of all lanes summed; lane m gets sum m.
__device__ __forceinline__ float scatter_sums(float (&value)[kWarp]) {
  halve_sums<16>(value);
  halve_sums<8>(value);
  halve_sums<4>(value);
  halve_sums<2>(value);
  halve_sums<1>(value);
  return value[0];
}

__device__ __forceinline__ float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// sinkhorn<4> with one reciprocal per sum instead of a division per element.
__device__ __forceinline__ void sinkhorn_4(float (&c)[4][4], int iterations, float eps) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float largest = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) c[j][k] = __expf(c[j][k] - largest);
    const float by = inverse((c[j][0] + c[j][1]) + (c[j][2] + c[j][3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) c[j][k] = fmaf(c[j][k], by, eps);
  }
  for (int iteration = 0;; ++iteration) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float by = inverse(((c[0][k] + c[1][k]) + (c[2][k] + c[3][k])) + eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[j][k] *= by;
    }
    if (iteration + 1 >= iterations) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float by = inverse(((c[j][0] + c[j][1]) + (c[j][2] + c[j][3])) + eps);
#pragma unroll
      for (int k = 0; k < 4; ++k) c[j][k] *= by;
    }
  }
}

/// post and comb of a row; lane m has logit m.
__device__ __forceinline__ void write_mixing(const HcPreArgs& a, int row, float mix) {
  const HyperWeights& w = a.hyper;
  const int lane = threadIdx.x % kWarp;
  if (lane >= kStreams && lane < 2 * kStreams) {
    a.post[static_cast<std::int64_t>(row) * kStreams + lane - kStreams] =
        hc_post_weight(mix, w.scale[1], w.base[lane]);
  }
  const float logit = lane < kMix ? mix * w.scale[2] + w.base[lane] : 0.0f;
  float c[4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      c[j][k] = __shfl_sync(kAllLanes, logit, 2 * kStreams + 4 * j + k);
    }
  }
  sinkhorn_4(c, w.sinkhorn_iterations, w.hc_eps);
  if (lane == 0) {
    auto* const comb = reinterpret_cast<float4*>(a.comb + static_cast<std::int64_t>(row) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) comb[j] = make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
  }
}

/// Columns column and column + 1 of what the sub-layer before gave.
__device__ __forceinline__ float2 sublayer_pair(const ClusterPlan& p, std::int64_t row,
                                                std::int64_t column) {
  const std::int64_t d = p.pre.d;
  const ExpertSum& e = p.sum;
  if (e.partial == nullptr) {
    return *reinterpret_cast<const float2*>(p.post.o + row * d + column);
  }
  const float* const partial = e.partial + row * (e.n_used + 1) * d + column;
  constexpr int kAtOnce = 8;
  float2 y = make_float2(0, 0);
  for (int base = 0; base < e.n_used; base += kAtOnce) {
    float2 value[kAtOnce];
    float weight[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int slot = min(base + k, e.n_used - 1);
      value[k] = *reinterpret_cast<const float2*>(partial + slot * d);
      weight[k] = e.weights[row * e.n_used + slot];
      const std::int32_t id = e.ids[row * e.n_used + slot];
      if (id < 0 || id >= e.n_experts) value[k].x = value[k].y = __int_as_float(0x7fc00000);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (base + k >= e.n_used) break;
      y.x += weight[k] * value[k].x;
      y.y += weight[k] * value[k].y;
    }
  }
  const float2 shared = *reinterpret_cast<const float2*>(partial + e.n_used * d);
  return make_float2(y.x + shared.x, y.y + shared.y);
}

__device__ __forceinline__ void store8(float* to, const float (&v)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void load8(const float* from, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

#endif

/// Sum over the blocks of a cluster, in order.
template <class At>
__device__ __forceinline__ float over_blocks(int n_blocks, At at) {
  float value[kMaxCluster];
#pragma unroll
  for (int r = 0; r < kMaxCluster; ++r) value[r] = r < n_blocks ? at(r) : 0.0f;
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kMaxCluster; ++r) sum += value[r];
  return sum;
}

}  // namespace ebb::cuda
