#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/experts_pieces.cuh"

// The entries of a step, sorted by expert and cut into pieces.

namespace ebb::cuda {

/// counts[i], i < n: the sum of count(j), j < i. Returns the sum of all; by all threads of a block,
/// whose warps leave their sums in `memory`.
template <class Count>
__device__ __forceinline__ int sums_before(int n, std::int32_t* counts, std::int32_t* memory,
                                           Count count) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  int before = 0;
  for (int first = 0; first < n; first += static_cast<int>(blockDim.x)) {
    const int i = first + static_cast<int>(threadIdx.x);
    const int own = i < n ? count(i) : 0;
    int sum = own;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == kWarp - 1) memory[warp] = sum;
    __syncthreads();
    int of_warps = 0, all = 0;
    for (int w = 0; w < n_warps; ++w) {
      if (w == warp) of_warps = all;
      all += memory[w];
    }
    if (i < n) counts[i] = before + of_warps + sum - own;
    before += all;
  }
  return before;
}

/// One block; a warp collects the entries of an expert, so their order is that of rows.
static __global__ void group_kernel(ExpertsArgs a, Groups groups, int n_experts) {
  // [4][n_experts]: an expert's entries; entries, pieces and their cost before it.
  extern __shared__ std::int32_t counts[];
  __shared__ std::int32_t memory[kWarp];
  std::int32_t* const entries_before = counts + n_experts;
  std::int32_t* const pieces_before = entries_before + n_experts;
  std::int32_t* const cost_before = pieces_before + n_experts;
  for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[e] = 0;
  const int n_rows = of_step(a.step.n_rows);
  __syncthreads();
  wait_for_inputs();
  const int n_entries = n_rows * a.n_used;
  for (int i = threadIdx.x; i < n_entries; i += blockDim.x) {
    const int id = a.ids[i];
    if (id >= 0 && id < n_experts) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  const int rows = groups.piece_rows;
  sums_before(n_experts, entries_before, memory, [&](int e) { return counts[e]; });
  const int n_pieces = sums_before(n_experts, pieces_before, memory,
                                   [&](int e) { return (counts[e] + rows - 1) / rows; });
  const auto cost_of = [&](int n) { return piece_cost(n * groups.per_vector); };
  const int cost = sums_before(n_experts, cost_before, memory, [&](int e) {
    const int rest = counts[e] % rows;
    return counts[e] / rows * cost_of(rows) + (rest > 0 ? cost_of(rest) : 0);
  });
  if (threadIdx.x == 0) {
    groups.n_pieces[0] = n_pieces;
    groups.n_pieces[1] = cost;
  }
  __syncthreads();
  // Lanes look at 32 entries at a time and line up behind each other.
  const int lane = threadIdx.x % kWarp;
  for (int e = threadIdx.x / kWarp; e < n_experts; e += blockDim.x / kWarp) {
    const int all = counts[e], begin = entries_before[e];
    int n = 0;
    for (int base = 0; n < all; base += kWarp) {
      const bool mine = base + lane < n_entries && a.ids[base + lane] == e;
      const unsigned votes = __ballot_sync(kAllLanes, mine);
      if (mine) groups.entries[begin + n + __popc(votes & ((1u << lane) - 1))] = base + lane;
      n += __popc(votes);
    }
    for (int p = lane; p * rows < n; p += kWarp) {
      groups.pieces[pieces_before[e] + p] = {e, begin + p * rows, min(rows, n - p * rows),
                                             cost_before[e] + p * cost_of(rows)};
    }
  }
}

}  // namespace ebb::cuda
