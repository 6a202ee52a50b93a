// All threads of a row's block form affinities; then one warp chooses. A lane offers the best of
// its experts that is not chosen yet, and n_used times the warp takes the best offer: the larger
// score, then the lower id.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/route.h"
#include "kernels/route.h"

namespace ebb::cuda {
namespace {

/// Larger is better; -inf (a NaN score) still comes before "taken", which is 0.
__device__ __forceinline__ unsigned long long offer(float score, int expert) {
  const std::uint32_t bits = __float_as_uint(score + 0.0f);
  const std::uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | ~static_cast<std::uint32_t>(expert);
}

constexpr int kRouteThreads = 256;

__global__ void route_kernel(RouteArgs a) {
  extern __shared__ float affinity[];  // [n_experts]
  const int row = blockIdx.x, lane = threadIdx.x % kWarp, n_rows = of_step(a.step.n_rows);
  // The experts have much to do that does not depend on the choice, nor on the router.
  begin_next();
  wait_for_inputs();
  if (row >= n_rows) return;
  const float* const logits = a.logits + static_cast<std::int64_t>(row) * a.n_experts;
  std::int32_t* const ids = a.ids + static_cast<std::int64_t>(row) * a.n_used;
  float* const weights = a.weights + static_cast<std::int64_t>(row) * a.n_used;
  auto* const offers = reinterpret_cast<unsigned long long*>(affinity + (a.n_experts + 1) / 2 * 2);
  for (int e = threadIdx.x; e < a.n_experts; e += kRouteThreads) {
    affinity[e] = route_affinity(logits[e]);
    if (a.table == nullptr) {
      offers[e] = offer(route_score(affinity[e], a.bias != nullptr ? a.bias[e] : 0.0f), e);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  // Up to kHeld offers of a lane stay in registers.
  constexpr int kHeld = 8;
  const bool held = a.n_experts <= kHeld * kWarp;
  unsigned long long own[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int e = lane + k * kWarp;
    own[k] = held && a.table == nullptr && e < a.n_experts ? offers[e] : 0;
  }
  int mine[kMaxRouteUsed / kWarp] = {};  // lane l keeps the choices l and l + 32
  for (int i = 0; i < a.n_used; ++i) {
    int chosen;
    if (a.table != nullptr) {
      chosen = a.table[static_cast<std::int64_t>(a.step.token[row]) * a.n_used + i];
    } else {
      unsigned long long best = 0;
      if (held) {
#pragma unroll
        for (int k = 0; k < kHeld; ++k) best = own[k] > best ? own[k] : best;
      } else {
        for (int e = lane; e < a.n_experts; e += kWarp) best = offers[e] > best ? offers[e] : best;
      }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(kAllLanes, best, step);
        best = other > best ? other : best;
      }
      chosen = static_cast<int>(~static_cast<std::uint32_t>(best));
      if (held) {
#pragma unroll
        for (int k = 0; k < kHeld; ++k) own[k] = own[k] == best ? 0 : own[k];
      } else {
        __syncwarp();
        if (lane == 0) offers[chosen] = 0;
        __syncwarp();
      }
    }
    if (i % kWarp == lane) mine[i / kWarp] = chosen;
  }
  float factor = a.scale;
  if (a.normalise) {
    float sum = 0;
    for (int i = 0; i < a.n_used; ++i) {
      const int chosen = __shfl_sync(kAllLanes, i < kWarp ? mine[0] : mine[1], i % kWarp);
      sum += affinity[chosen];
    }
    // A NaN sum stays NaN and is seen.
    factor = a.scale / (sum < kRouteSumFloor ? kRouteSumFloor : sum);
  }
  for (int i = lane; i < a.n_used; i += kWarp) {
    const int chosen = i < kWarp ? mine[0] : mine[1];
    ids[i] = chosen;
    weights[i] = affinity[chosen] * factor;
  }
}

}  // namespace

cudaError_t route(const Launch& launch, const RouteArgs& args) {
  const std::size_t bytes = static_cast<std::size_t>((args.n_experts + 1) / 2 * 2) * sizeof(float) +
                            static_cast<std::size_t>(args.n_experts) * sizeof(unsigned long long);
  if (const cudaError_t error = allow_shared(route_kernel, bytes)) return error;
  return start(launch, route_kernel, dim3(static_cast<unsigned>(args.step.max_rows)),
               dim3(kRouteThreads), bytes, args);
}

}  // namespace ebb::cuda
