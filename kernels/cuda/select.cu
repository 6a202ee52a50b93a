// score  a thread holds one key and takes the heads in order: the sum of a score depends on the row
//        and the chunk alone. Scores are kept as integers whose order is that of the scores.
// pick   a block finds the top_k-th largest by counting digits from the top (radix select), then
//        writes what is larger, and of the equal ones those of lowest id, in ascending order.
//
// Rows that see no more than top_k chunks need no scores. Many rows go in waves, so that the
// memory for scores is bounded.

#include <algorithm>

#include "kernels/chunks.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/select.h"
#include "kernels/row_format.h"

namespace ebb::cuda {
namespace {

constexpr int kScoreThreads = 128;  // chunks of a block
constexpr int kBlockRows = 8;       // rows that share the keys of a block
constexpr int kWaveRows = 256;
constexpr int kPickThreads = 1024;

struct SelectPlan {
  SelectArgs args;
  std::uint32_t* order = nullptr;  // [wave rows, capacity]
  std::int64_t capacity = 0;       // chunks, a multiple of 4
  std::int32_t first_row = 0;
  std::int32_t n_rot = 0;
};

/// NaN counts as -inf, -0 as 0.
__device__ __forceinline__ std::uint32_t order_of(float score) {
  const float clean = score == score ? score + 0.0f : -INFINITY;
  const std::uint32_t bits = __float_as_uint(clean);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <int kWidth>
__global__ void __launch_bounds__(kScoreThreads) score_kernel(SelectPlan p, int block_rows) {
  extern __shared__ float q[];  // [n_heads, kWidth], zeros past d
  wait_for_inputs();
  const SelectArgs& a = p.args;
  const int first = p.first_row + blockIdx.y * block_rows;
  const int last = min(min(first + block_rows, p.first_row + kWaveRows), *a.step.n_rows);
  const int begin = blockIdx.x * kScoreThreads;
  const int chunk = begin + threadIdx.x;
  float key[kWidth];
  int loaded = -1;  // the sequence whose key is held
  for (int row = first; row < last; ++row) {
    const int visible = visible_chunks(a.step.pos[row], a.ratio);
    if (visible <= a.top_k || visible <= begin) continue;  // the same for the whole block
    __syncthreads();
    for (int i = threadIdx.x; i < a.n_heads * kWidth; i += kScoreThreads) {
      const int h = i / kWidth, at = i % kWidth;
      q[i] = at < a.d ? a.q[(static_cast<std::int64_t>(row) * a.n_heads + h) * a.d + at] : 0.0f;
    }
    __syncthreads();
    if (chunk >= visible) continue;
    const int seq = a.step.seq[row];
    if (loaded != seq) {
      loaded = seq;
      const std::byte* const stored = row_at(a.keys, seq, chunk);
      if (a.keys.format == RowFormat::f32 && a.d == kWidth) {
#pragma unroll
        for (int i = 0; i < kWidth / 4; ++i) {
          const float4 v = reinterpret_cast<const float4*>(stored)[i];
          key[4 * i] = v.x;
          key[4 * i + 1] = v.y;
          key[4 * i + 2] = v.z;
          key[4 * i + 3] = v.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          key[i] = i < a.d ? decode_value(a.keys.format, a.d, p.n_rot, stored, i) : 0.0f;
        }
      }
    }
    const float* const weight = a.weight + static_cast<std::int64_t>(row) * a.n_heads;
    float score = 0;
    for (int h = 0; h < a.n_heads; ++h) {
      const float4* const head = reinterpret_cast<const float4*>(q + h * kWidth);
      float dot[4] = {};
#pragma unroll
      for (int i = 0; i < kWidth / 4; ++i) {
        const float4 v = head[i];
        dot[0] = fmaf(v.x, key[4 * i], dot[0]);
        dot[1] = fmaf(v.y, key[4 * i + 1], dot[1]);
        dot[2] = fmaf(v.z, key[4 * i + 2], dot[2]);
        dot[3] = fmaf(v.w, key[4 * i + 3], dot[3]);
      }
      const float sum = (dot[0] + dot[1]) + (dot[2] + dot[3]);
      // Not a maximum with 0, which would drop a NaN.
      score = fmaf(weight[h] * a.weight_scale, sum < 0.0f ? 0.0f : sum, score);
    }
    p.order[static_cast<std::int64_t>(row - p.first_row) * p.capacity + chunk] = order_of(score);
  }
}

/// Sum over the threads before this one; `memory` holds 32 ints.
__device__ int block_prefix(int value, int* memory) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) memory[warp] = sum;
  __syncthreads();
  int before = 0;
  for (int i = 0; i < warp; ++i) before += memory[i];
  __syncthreads();
  return before + sum - value;
}

__global__ void __launch_bounds__(kPickThreads) pick_kernel(SelectPlan p) {
  __shared__ int counts[256];
  __shared__ int memory[kWarp];
  __shared__ std::uint32_t shared_digit;
  __shared__ int shared_left;
  wait_for_inputs();
  const SelectArgs& a = p.args;
  const int row = p.first_row + blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const int visible = visible_chunks(a.step.pos[row], a.ratio);
  std::int32_t* const ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
  if (visible <= a.top_k) {
    for (int i = threadIdx.x; i < visible; i += kPickThreads) ids[i] = i;
    if (threadIdx.x == 0) a.count[row] = visible;
    return;
  }
  const std::uint32_t* const order = p.order + static_cast<std::int64_t>(blockIdx.x) * p.capacity;
  std::uint32_t threshold = 0, known = 0;  // leading digits of the top_k-th largest
  int left = a.top_k;                      // to be chosen among those that share them
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kPickThreads) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < visible; i += kPickThreads) {
      const std::uint32_t value = order[i];
      if ((value & known) == threshold) atomicAdd(&counts[value >> shift & 255u], 1);
    }
    __syncthreads();
    // Thread t stands for digit 255 - t.
    const int own = threadIdx.x < 256 ? counts[255 - threadIdx.x] : 0;
    const int above = block_prefix(own, memory);
    if (threadIdx.x < 256 && above < left && above + own >= left) {
      shared_digit = 255 - threadIdx.x;
      shared_left = left - above;
    }
    __syncthreads();
    threshold |= shared_digit << shift;
    known |= 255u << shift;
    left = shared_left;
    __syncthreads();
  }
  const int share = ((visible + kPickThreads - 1) / kPickThreads + 3) / 4 * 4;
  const int begin = min(static_cast<int>(threadIdx.x) * share, visible);
  const int end = min(begin + share, visible);
  int larger = 0, equal = 0;
  for (int i = begin; i < end; ++i) {
    larger += order[i] > threshold ? 1 : 0;
    equal += order[i] == threshold ? 1 : 0;
  }
  const int larger_before = block_prefix(larger, memory);
  int equal_before = block_prefix(equal, memory);
  int at = larger_before + min(equal_before, left);
  for (int i = begin; i < end; ++i) {
    const bool is_equal = order[i] == threshold;
    if (order[i] > threshold || (is_equal && equal_before < left)) ids[at++] = i;
    equal_before += is_equal ? 1 : 0;
  }
  if (threadIdx.x == 0) a.count[row] = a.top_k;
}

std::int64_t capacity_of(const SelectArgs& args) { return (args.keys.n_rows + 3) / 4 * 4; }

template <int kWidth>
cudaError_t score(const Launch& launch, const SelectPlan& plan, std::int32_t rows) {
  const SelectArgs& a = plan.args;
  const std::size_t bytes = static_cast<std::size_t>(a.n_heads) * kWidth * sizeof(float);
  if (const cudaError_t error = allow_shared(score_kernel<kWidth>, bytes)) return error;
  const int block_rows = rows > 8 ? kBlockRows : 1;
  return start(launch, score_kernel<kWidth>,
               dim3(static_cast<unsigned>((a.keys.n_rows + kScoreThreads - 1) / kScoreThreads),
                    static_cast<unsigned>((rows + block_rows - 1) / block_rows)),
               dim3(kScoreThreads), bytes, plan, block_rows);
}

}  // namespace

std::size_t select_workspace(const SelectArgs& args) {
  return static_cast<std::size_t>(std::min(args.step.max_rows, kWaveRows)) *
         static_cast<std::size_t>(capacity_of(args)) * sizeof(std::uint32_t);
}

cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot) {
  SelectPlan plan;
  plan.args = args;
  plan.order = reinterpret_cast<std::uint32_t*>(launch.workspace);
  plan.capacity = capacity_of(args);
  plan.n_rot = n_rot;
  for (std::int32_t first = 0; first < args.step.max_rows; first += kWaveRows) {
    const std::int32_t rows = std::min(kWaveRows, args.step.max_rows - first);
    plan.first_row = first;
    if (args.keys.n_rows > args.top_k) {
      const cudaError_t error = args.d <= 32    ? score<32>(launch, plan, rows)
                                : args.d <= 64  ? score<64>(launch, plan, rows)
                                : args.d <= 128 ? score<128>(launch, plan, rows)
                                                : score<256>(launch, plan, rows);
      if (error != cudaSuccess) return error;
    }
    const cudaError_t error =
        start(launch, pick_kernel, dim3(static_cast<unsigned>(rows)), dim3(kPickThreads), 0, plan);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace ebb::cuda
