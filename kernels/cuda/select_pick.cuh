#pragma once

#include "kernels/chunks.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/select.h"

// The choice among scores, which are kept as integers whose order is that of the scores. Keys come
// in segments of fixed size, so the memory for scores does not grow with the context: what was
// chosen so far stands, by ascending id, before the scores of the next segment, and of both the
// best are kept. Integers are compared exactly, so the cut into segments changes nothing. What is
// not allowed, and what is missing where a segment leaves less than top_k, is an integer below that
// of any score.

namespace ebb::cuda {

struct SelectPlan {
  SelectArgs args;
  std::uint32_t* order = nullptr;       // [wave rows, segment]
  std::uint32_t* kept_order = nullptr;  // [2][wave rows, top_k] of the segments before
  std::int32_t* kept_ids = nullptr;  // the same; read from half segment % 2, written to the other
  std::int32_t segment_size = 0;     // chunks, a multiple of 4
  std::int32_t segment = 0;
  std::int32_t first_row = 0;
  std::int32_t wave_rows = 0;
  std::int32_t n_rot = 0;
};

inline constexpr int kPickThreads = 1024;
/// For few rows and chunks: it finds room beside a product that fills half of a multiprocessor.
inline constexpr int kFewPickThreads = 512;

inline constexpr std::uint32_t kNotAllowed = 0;  // order_of(-inf) is more

/// Which chunks the row may choose, if the mask is there.
__device__ __forceinline__ const std::uint8_t* allowed_of(const SelectArgs& a, int row) {
  return a.allowed + a.step.seq[row] * a.keys.n_rows;
}

/// NaN counts as -inf, -0 as 0.
__device__ __forceinline__ std::uint32_t order_of(float score) {
  const float clean = score == score ? score + 0.0f : -INFINITY;
  const std::uint32_t bits = __float_as_uint(clean);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Sum over the threads before this one; `memory` holds 32 ints and is free again after the call.
static __device__ __noinline__ int block_prefix(int value, int* memory) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) memory[warp] = sum;
  __syncthreads();
  int warps = lane < static_cast<int>(blockDim.x) / kWarp ? memory[lane] : 0;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, warps, step);
    if (lane >= step) warps += other;
  }
  const int before = __shfl_sync(kAllLanes, warps, max(warp - 1, 0));
  __syncthreads();
  return (warp == 0 ? 0 : before) + sum - value;
}

/// What a row's block chooses from: candidates 0 .. n - 1 in ascending order of id.
struct Candidates {
  const std::uint32_t* kept_order;
  const std::int32_t* kept_ids;
  const std::uint32_t* order;
  int n_kept, n;
  std::int32_t first_id;  // of the segment

  __device__ std::uint32_t at(int i) const {
    return i < n_kept ? kept_order[i] : order[i - n_kept];
  }
  __device__ std::int32_t id(int i) const {
    return i < n_kept ? kept_ids[i] : first_id + i - n_kept;
  }
};

template <int kThreads>
struct PickMemory {
  int bins[2 * kThreads];
  int prefix[kWarp];
  std::uint32_t low[kWarp], high[kWarp];
  int allowed[kWarp];
  int bin, left;
  bool is_whole;
};

/// Threads take turns of kPickHeld neighbours; with kInRegisters there is one turn, read once.
/// Returns how many are chosen: top_k, or with kMasked all that are allowed if those are fewer;
/// out_order is filled up to top_k.
template <int kThreads, int kPickHeld, bool kInRegisters, bool kMasked>
__device__ __forceinline__ int pick(const Candidates& c, int top_k, PickMemory<kThreads>& m,
                                    std::int32_t* out_ids, std::uint32_t* out_order) {
  constexpr int kTurn = kThreads * kPickHeld;
  constexpr int kPickBins = 2 * kThreads, kBinBits = kThreads == 512 ? 10 : 11;
  static_assert(kPickBins == 1 << kBinBits);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  std::uint32_t held[kPickHeld];
  const auto fill = [&](int base) {
#pragma unroll
    for (int k = 0; k < kPickHeld; k += 4) {
      const int i = base + static_cast<int>(threadIdx.x) * kPickHeld + k;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (c.n_kept == 0 && i + 4 <= c.n) {
        v = *reinterpret_cast<const uint4*>(c.order + i);
      } else {
        if (i < c.n) v.x = c.at(i);
        if (i + 1 < c.n) v.y = c.at(i + 1);
        if (i + 2 < c.n) v.z = c.at(i + 2);
        if (i + 3 < c.n) v.w = c.at(i + 3);
      }
      held[k] = v.x;
      held[k + 1] = v.y;
      held[k + 2] = v.z;
      held[k + 3] = v.w;
    }
  };
  const auto for_all = [&](auto use) {
    for (int base = 0; base < c.n; base += kTurn) {
      if (!kInRegisters) fill(base);
#pragma unroll
      for (int k = 0; k < kPickHeld; ++k) {
        const int i = base + static_cast<int>(threadIdx.x) * kPickHeld + k;
        if (i < c.n) use(held[k], i);
      }
    }
  };
  if (kInRegisters) fill(0);
  // Range of the values, so that bins spread over what there is.
  std::uint32_t low = 0xffffffffu, high = 0;
  int n_allowed = 0;
  for_all([&](std::uint32_t v, int) {
    if (kMasked && v == kNotAllowed) return;
    low = min(low, v);
    high = max(high, v);
    ++n_allowed;
  });
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    low = min(low, __shfl_xor_sync(kAllLanes, low, step));
    high = max(high, __shfl_xor_sync(kAllLanes, high, step));
    if (kMasked) n_allowed += __shfl_xor_sync(kAllLanes, n_allowed, step);
  }
  if (lane == 0) {
    m.low[warp] = low;
    m.high[warp] = high;
    if (kMasked) m.allowed[warp] = n_allowed;
  }
  __syncthreads();
  const bool is_warp = lane < kThreads / kWarp;
  low = is_warp ? m.low[lane] : 0xffffffffu;
  high = is_warp ? m.high[lane] : 0;
  if (kMasked) n_allowed = is_warp ? m.allowed[lane] : 0;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    low = min(low, __shfl_xor_sync(kAllLanes, low, step));
    high = max(high, __shfl_xor_sync(kAllLanes, high, step));
    if (kMasked) n_allowed += __shfl_xor_sync(kAllLanes, n_allowed, step);
  }
  // The top_k-th largest lies in [low, high]; `left` are to be chosen among the values there.
  int left = top_k;
  if (kMasked && n_allowed <= top_k) {
    left = 0;
    low = high = kNotAllowed;
  }
  while (low < high) {
    const std::uint32_t span = high - low;
    const int shift = max(0, 32 - __clz(static_cast<int>(span)) - kBinBits);
    for (int i = threadIdx.x; i < kPickBins; i += kThreads) m.bins[i] = 0;
    __syncthreads();
    for_all([&](std::uint32_t v, int) {
      if (v >= low && v <= high) atomicAdd(&m.bins[(v - low) >> shift], 1);
    });
    __syncthreads();
    // Thread t stands for the two bins from the top.
    const int bin = kPickBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const int upper = m.bins[bin], lower = m.bins[bin - 1];
    const int above = block_prefix(upper + lower, m.prefix);
    if (above < left && above + upper + lower >= left) {
      const bool in_upper = above + upper >= left;
      m.bin = in_upper ? bin : bin - 1;
      m.left = left - above - (in_upper ? 0 : upper);
      m.is_whole = m.left == (in_upper ? upper : lower);
    }
    __syncthreads();
    left = m.left;
    const std::uint32_t begin = low + (static_cast<std::uint32_t>(m.bin) << shift);
    // All of the bin: they and those above it are what is larger than its lower end.
    if (m.is_whole && begin > 0) {
      low = begin - 1;
      left = 0;
      break;
    }
    high = min(high, begin + ((1u << shift) - 1));
    low = begin;
    __syncthreads();
  }
  // What is larger, and of the equal ones those of lowest id, in ascending order.
  int taken = 0, equals = 0;  // of the turns before
  for (int base = 0; base < c.n; base += kTurn) {
    if (!kInRegisters) fill(base);
    int larger = 0, equal = 0;
#pragma unroll
    for (int k = 0; k < kPickHeld; ++k) {
      const int i = base + static_cast<int>(threadIdx.x) * kPickHeld + k;
      larger += i < c.n && held[k] > low ? 1 : 0;
      equal += i < c.n && held[k] == low ? 1 : 0;
    }
    // Both counts in one sum: no turn has 2^15 values.
    const int packed = block_prefix(larger | equal << 16, m.prefix);
    int equal_before = equals + (packed >> 16);
    int at = taken + (packed & 0xffff) + min(equal_before, left);
#pragma unroll
    for (int k = 0; k < kPickHeld; ++k) {
      const int i = base + static_cast<int>(threadIdx.x) * kPickHeld + k;
      if (i >= c.n) break;
      const bool is_equal = held[k] == low;
      if (held[k] > low || (is_equal && equal_before < left)) {
        out_ids[at] = c.id(i);
        if (out_order != nullptr) out_order[at] = held[k];
        ++at;
      }
      equal_before += is_equal ? 1 : 0;
    }
    if (base + kTurn < c.n) {
      // The last thread knows how far the turn came.
      if (threadIdx.x == kThreads - 1) {
        m.bin = (packed & 0xffff) + larger;
        m.left = (packed >> 16) + equal;
      }
      __syncthreads();
      taken += m.bin;
      equals += m.left;
      __syncthreads();
    }
  }
  if constexpr (kMasked) {
    const int missing = n_allowed + static_cast<int>(threadIdx.x);
    for (int i = missing; out_order != nullptr && i < top_k; i += kThreads) {
      out_order[i] = kNotAllowed;
    }
    return min(n_allowed, top_k);
  }
  return top_k;
}

/// Chooses every allowed one of the chunks 0 .. visible - 1; returns how many those are.
template <int kThreads>
static __device__ __noinline__ int pick_allowed(const std::uint8_t* allowed, int visible,
                                                PickMemory<kThreads>& m, std::int32_t* out_ids) {
  int taken = 0;
  for (int base = 0; base < visible; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const bool take = i < visible && allowed[i] != 0;
    const int before = block_prefix(take ? 1 : 0, m.prefix);
    if (take) out_ids[taken + before] = i;
    taken += __syncthreads_count(take);
  }
  return taken;
}

}  // namespace ebb::cuda
