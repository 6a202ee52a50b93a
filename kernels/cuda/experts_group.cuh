#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/experts_pieces.cuh"

// The entries of a step, sorted by expert and cut into pieces, by one block. With few rows other
// blocks of the same kernel split x meanwhile.

namespace ebb::cuda {

/// Entries, pieces and the pieces' cost in one number: no carry goes from one to the next, since
/// there are less than 2^20 entries and 2^17 pieces (Recorder::experts).
struct Counts {
  unsigned long long all = 0;

  __device__ __forceinline__ Counts() = default;
  __device__ __forceinline__ explicit Counts(unsigned long long counts) : all(counts) {}
  __device__ __forceinline__ Counts(int entries, const Groups& groups) {
    const auto cost_of = [&](int n) { return piece_cost(n * groups.per_vector); };
    const int full = entries / groups.piece_rows, rest = entries % groups.piece_rows;
    const int cost = full * cost_of(groups.piece_rows) + (rest > 0 ? cost_of(rest) : 0);
    all = static_cast<unsigned long long>(cost) << 40 |
          static_cast<unsigned long long>(full + (rest > 0)) << 20 |
          static_cast<unsigned long long>(entries);
  }
  __device__ __forceinline__ int entries() const { return static_cast<int>(all & 0xfffff); }
  __device__ __forceinline__ int pieces() const { return static_cast<int>(all >> 20 & 0xfffff); }
  __device__ __forceinline__ int cost() const { return static_cast<int>(all >> 40); }
};

/// before[e], e < n: the sum of of(i), i < e. Returns the sum of all; by all threads of a block.
template <class Of>
__device__ __forceinline__ Counts counts_before(int n, Counts* before, Of of) {
  __shared__ unsigned long long memory[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  unsigned long long earlier = 0;
  for (int first = 0; first < n; first += static_cast<int>(blockDim.x)) {
    const int i = first + static_cast<int>(threadIdx.x);
    const unsigned long long own = i < n ? of(i).all : 0;
    unsigned long long sum = own;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const unsigned long long other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == kWarp - 1) memory[warp] = sum;
    __syncthreads();
    unsigned long long of_warps = 0, all = 0;
    for (int w = 0; w < n_warps; ++w) {
      if (w == warp) of_warps = all;
      all += memory[w];
    }
    if (i < n) before[i] = Counts(earlier + of_warps + sum - own);
    earlier += all;
  }
  return Counts(earlier);
}

/// Shared memory of group_entries, bytes.
inline std::size_t group_bytes(std::int64_t n_experts, std::int64_t n_held) {
  return static_cast<std::size_t>(n_experts) * (sizeof(Counts) + sizeof(std::int32_t)) +
         static_cast<std::size_t>(n_held) * sizeof(std::int32_t);
}

/// Sorts; by all threads of a block. An expert's entries are in the order of rows. With kHeld the
/// ids, of few rows, are held in memory, and an entry counts those like it before it; else a warp
/// collects the entries of an expert. Waits for the inputs.
template <bool kHeld>
__device__ __forceinline__ void group_entries(const ExpertsArgs& a, const Groups& groups,
                                              int n_experts, unsigned long long* memory) {
  auto* const before = reinterpret_cast<Counts*>(memory);
  auto* const n_of = reinterpret_cast<std::int32_t*>(before + n_experts);
  std::int32_t* const held = n_of + n_experts;
  for (int e = threadIdx.x; e < n_experts; e += blockDim.x) n_of[e] = 0;
  const int n_rows = of_step(a.step.n_rows);
  __syncthreads();
  wait_for_inputs();
  const int n_entries = n_rows * a.n_used;
  for (int i = threadIdx.x; i < n_entries; i += blockDim.x) {
    const int id = a.ids[i];
    if (kHeld) held[i] = id;
    if (id >= 0 && id < n_experts) atomicAdd(&n_of[id], 1);
  }
  __syncthreads();
  const Counts all =
      counts_before(n_experts, before, [&](int e) { return Counts(n_of[e], groups); });
  if (threadIdx.x == 0) {
    groups.n_pieces[0] = all.pieces();
    groups.n_pieces[1] = all.cost();
  }
  __syncthreads();
  const int rows = groups.piece_rows, of_full = piece_cost(rows * groups.per_vector);
  const auto put_piece = [&](int e, int p) {
    const int begin = before[e].entries() + p * rows;
    groups.pieces[before[e].pieces() + p] = {e, begin, min(rows, n_of[e] - p * rows),
                                             before[e].cost() + p * of_full};
  };
  if constexpr (kHeld) {
    for (int i = threadIdx.x; i < n_entries; i += blockDim.x) {
      const int id = held[i];
      if (id < 0 || id >= n_experts) continue;
      int earlier = 0;
#pragma unroll 8
      for (int k = 0; k < i; ++k) earlier += held[k] == id;
      groups.entries[before[id].entries() + earlier] = i;
    }
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) {
      for (int p = 0; p * rows < n_of[e]; ++p) put_piece(e, p);
    }
  } else {
    // Lanes look at 32 entries at a time and line up behind each other.
    const int lane = threadIdx.x % kWarp;
    for (int e = threadIdx.x / kWarp; e < n_experts; e += blockDim.x / kWarp) {
      int n = 0;
      for (int first = 0; n < n_of[e]; first += kWarp) {
        const bool mine = first + lane < n_entries && a.ids[first + lane] == e;
        const unsigned votes = __ballot_sync(kAllLanes, mine);
        if (mine) {
          groups.entries[before[e].entries() + n + __popc(votes & ((1u << lane) - 1))] =
              first + lane;
        }
        n += __popc(votes);
      }
      for (int p = lane; p * rows < n; p += kWarp) put_piece(e, p);
    }
  }
}

/// One block.
static __global__ void __launch_bounds__(1024)
    group_kernel(ExpertsArgs a, Groups groups, int n_experts) {
  extern __shared__ unsigned long long group_memory[];
  group_entries<false>(a, groups, n_experts, group_memory);
}

/// The first block sorts, the others split x.
static __global__ void __launch_bounds__(kSplitThreads)
    group_and_split_kernel(ExpertsArgs a, Groups groups, int n_experts, int n_in,
                           const __grid_constant__ Splits splits) {
  extern __shared__ unsigned long long group_memory[];
  if (blockIdx.x == 0) {
    group_entries<true>(a, groups, n_experts, group_memory);
  } else {
    split_share(a.x, n_in, a.step.n_rows, splits, static_cast<int>(blockIdx.x) - 1,
                static_cast<int>(gridDim.x) - 1);
  }
}

}  // namespace ebb::cuda
