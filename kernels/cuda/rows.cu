// A block makes one vector: a token's row, a chunk's row, a head's query (or, of width 128, a warp
// does). What a layer does to rows before it attends is one launch: blocks are dealt to jobs.

#include <algorithm>

#include "kernels/compress.h"
#include "kernels/cuda/row_block.cuh"
#include "kernels/cuda/rows.h"

namespace ebb::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kWarpWidth = 128;  // width of a head that a warp does

__global__ void rope_tables_kernel(const __grid_constant__ RopeTables t) {
  wait_for_inputs();
  const RopeTableArgs& a = t.tables[blockIdx.y];
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const std::int64_t position = static_cast<std::int64_t>(a.step.pos[row]) + a.offset;
  if (position < 0) return;
  float* const out = a.cos_sin + static_cast<std::int64_t>(row) * a.n_pairs * 2;
  for (int i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
    if (a.single) {
      rope_entry_single(position, a.frequency[i], out + 2 * i);
    } else {
      rope_entry(position, a.frequency[i], out + 2 * i);
    }
  }
}

static __device__ __noinline__ void heads_row(const HeadsArgs& a, std::int64_t row, int head,
                                              float* x, float* memory) {
  float* const out = a.x + (row * a.n_heads + head) * a.d;
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = out[i];
  __syncthreads();
  if (a.normalise) normalise_head(x, a.d, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + row * a.n_pairs * 2, a.n_pairs, rounds_to_bf16(a.rounding));
  round_block(x, a.d, a.n_pairs, a.rounding);
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) out[i] = x[i];
}

__device__ __forceinline__ float4 sums_and_differences(float4 v, int distance) {
  const bool upper = (threadIdx.x & distance) != 0;
  const auto one = [&](float own) {
    const float other = __shfl_xor_sync(kAllLanes, own, distance);
    return upper ? other - own : own + other;
  };
  return make_float4(one(v.x), one(v.y), one(v.z), one(v.w));
}

/// heads_row by a warp, for width 128 and no FP8: lane l holds values 4 l .. 4 l + 3.
__device__ __forceinline__ void heads_warp(const HeadsArgs& a, std::int64_t row, int head) {
  const int lane = threadIdx.x % kWarp;
  auto* const place = reinterpret_cast<float4*>(a.x + (row * a.n_heads + head) * a.d) + lane;
  float4 v = *place;
  if (a.normalise) {
    const float scale = 1.0f / sqrtf(warp_sum(dot4(v, v, 0.0f)) / static_cast<float>(a.d) + a.eps);
    v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
  }
  const int rotating = 4 * lane - (a.d - 2 * a.n_pairs);
  const float* const angles = a.cos_sin + row * a.n_pairs * 2;
  const bool to_bf16 = rounds_to_bf16(a.rounding);
  const auto stored = [to_bf16](float x) { return to_bf16 ? rounded_to_bf16(x) : x; };
  float pair[4] = {stored(v.x), stored(v.y), stored(v.z), stored(v.w)};
  if (rotating >= 0) rotate_pair(pair, angles + rotating);
  if (rotating + 2 >= 0) rotate_pair(pair + 2, angles + rotating + 2);
  v = make_float4(stored(pair[0]), stored(pair[1]), stored(pair[2]), stored(pair[3]));
  if (transforms(a.rounding)) {
    v = make_float4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    v = make_float4(v.x + v.z, v.y + v.w, v.x - v.z, v.y - v.w);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) v = sums_and_differences(v, distance);
    const float scale = 1.0f / sqrtf(static_cast<float>(a.d));
    v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
  }
  if (a.rounding == Rounding::hadamard_fp4) {
    static_assert(kFp4Block == 32);  // eight lanes
    float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    const float scale = fp4_scale(largest);
    const auto round = [&](float x) { return scale * e2m1_to_float(float_to_e2m1(x / scale)); };
    v = make_float4(round(v.x), round(v.y), round(v.z), round(v.w));
  }
  *place = v;
}

static __device__ __noinline__ void append_row(const AppendArgs& a, int n_rot, std::int64_t row,
                                               float* x, float* memory) {
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = a.kv[row * a.d + i];
  __syncthreads();
  normalise_block(x, a.d, a.norm_weight, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + row * a.n_pairs * 2, a.n_pairs, rounds_to_bf16(a.rounding));
  round_block(x, a.d, a.n_pairs, a.rounding);
  encode_block(a.ring.format, a.d, n_rot, x,
               row_at(a.ring, a.step.seq[row], ring_index(a.step.pos[row], a.ring.n_rows)));
}

/// Threads share the pooling of a chunk: each has four dims and every n-th slot.
struct PoolMemory {
  float4 largest[kRowThreads];
  float4 sum[kRowThreads], weighted[kRowThreads];
};

__device__ __forceinline__ float4 largest_of(float4 a, float4 b) {
  return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// x[i] = compress_pool of dim i, d a multiple of 4 and at most four times the threads. The order
/// of a sum depends on d and the number of slots alone.
static __device__ __noinline__ void pool_block(const CompressArgs& a, int row, float* x,
                                               PoolMemory& m) {
  constexpr int kAtOnce = 4;
  const int n_slots = compress_slots(a), first = compress_first_slot(a, a.step.pos[row]);
  const int quads = a.d / 4, n_groups = kRowThreads / quads;
  const int group = static_cast<int>(threadIdx.x) / quads;
  const int quad = static_cast<int>(threadIdx.x) % quads;
  const bool active = group < n_groups;
  float4 score[kAtOnce], value[kAtOnce];
  // Slots base, base + n_groups, ...; those that are not there have score -inf.
  const auto fill = [&](int base) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int s = base + k * n_groups;
      score[k] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      value[k] = make_float4(0, 0, 0, 0);
      if (s < first || s >= n_slots) continue;
      const CompressSlot slot = compress_slot(a, row, s);
      score[k] = reinterpret_cast<const float4*>(slot.gate)[quad];
      if (slot.ape != nullptr) {
        score[k] = plus(score[k], reinterpret_cast<const float4*>(slot.ape)[quad]);
      }
      value[k] = reinterpret_cast<const float4*>(slot.kv)[quad];
    }
  };
  const int stride = kAtOnce * n_groups;
  const bool once = n_slots <= stride;
  if (active) {
    float4 largest = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll 1
    for (int base = group; base < n_slots; base += stride) {
      fill(base);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) largest = largest_of(largest, score[k]);
    }
    m.largest[threadIdx.x] = largest;
  }
  __syncthreads();
  if (active) {
    float4 largest = m.largest[quad];
    for (int g = 1; g < n_groups; ++g) largest = largest_of(largest, m.largest[g * quads + quad]);
    float4 sum = make_float4(0, 0, 0, 0), weighted = sum;
    const auto add = [](float score, float top, float value, float& s, float& w) {
      const float weight = expf(score - top);
      s += weight;
      w += weight * value;
    };
#pragma unroll 1
    for (int base = group; base < n_slots; base += stride) {
      if (!once) fill(base);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        add(score[k].x, largest.x, value[k].x, sum.x, weighted.x);
        add(score[k].y, largest.y, value[k].y, sum.y, weighted.y);
        add(score[k].z, largest.z, value[k].z, sum.z, weighted.z);
        add(score[k].w, largest.w, value[k].w, sum.w, weighted.w);
      }
    }
    m.sum[threadIdx.x] = sum;
    m.weighted[threadIdx.x] = weighted;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < quads) {
    float4 sum = m.sum[quad], weighted = m.weighted[quad];
    for (int g = 1; g < n_groups; ++g) {
      sum = plus(sum, m.sum[g * quads + quad]);
      weighted = plus(weighted, m.weighted[g * quads + quad]);
    }
    reinterpret_cast<float4*>(x)[quad] =
        make_float4(weighted.x / sum.x, weighted.y / sum.y, weighted.z / sum.z, weighted.w / sum.w);
  }
}

static __device__ __noinline__ float pool_one(const CompressArgs& a, int row, int i) {
  return compress_pool(a, row, i);
}

/// The row of the chunk that ends in `row`.
static __device__ __noinline__ void emit_chunk(const CompressArgs& a, int n_rot, int row, float* x,
                                               float* memory, PoolMemory& pool) {
  if (a.d % 4 == 0 && a.d <= 4 * kRowThreads) {
    pool_block(a, row, x, pool);
  } else {
    for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = pool_one(a, row, i);
  }
  __syncthreads();
  normalise_block(x, a.d, a.norm_weight, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + static_cast<std::int64_t>(row) * a.n_pairs * 2, a.n_pairs,
             rounds_to_bf16(a.rounding));
  round_block(x, a.d, a.n_pairs, a.rounding);
  const std::int32_t seq = a.step.seq[row];
  const std::int64_t chunk = a.step.pos[row] / a.ratio;
  encode_block(a.rows.format, a.d, n_rot, x, row_at(a.rows, seq, chunk));
  if (a.slots.slot_of == nullptr) return;
  const std::int32_t slot = a.slots.slot_of[seq * a.rows.n_rows + chunk];
  if (slot < 0) return;
  encode_block(a.rows.format, a.d, n_rot, x,
               a.slots.slots + seq * a.slots.sequence_bytes + slot * a.rows.row_bytes);
}

static __device__ __noinline__ void keep_state(const CompressArgs& a, std::int64_t row) {
  const std::int64_t width = compress_width(a);
  const int state_rows = compress_state_rows(a.ratio, a.overlap);
  const std::int32_t pos = a.step.pos[row];
  const std::int64_t at =
      (static_cast<std::int64_t>(a.step.seq[row]) * state_rows + pos % state_rows) * width;
  const float* const ape = a.ape + pos % a.ratio * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    a.state_kv[at + i] = a.kv[row * width + i];
    a.state_gate[at + i] = a.gate[row * width + i] + ape[i];
  }
}

/// Blocks of each job, in this order; compressions first, since they take longest.
struct Deal {
  std::int32_t rows = 0;
  std::int32_t compress_blocks = 0, append_blocks = 0, heads_blocks = 0;
  std::int32_t row_blocks = 1;  // of heads
  bool by_warps = false;
};

/// Emission reads the state and the batch; only the next kernel overwrites the state, so that an
/// emitting row never meets state of its own step. A step of one row needs no next kernel: the
/// block is alone with the state, so a barrier stands for the kernel's end.
__global__ void __launch_bounds__(kRowThreads)
    row_group_kernel(const __grid_constant__ RowGroup group, const __grid_constant__ Deal deal) {
  extern __shared__ float4 vector[];
  float* const x = reinterpret_cast<float*>(vector);
  __shared__ float memory[kWarp];
  __shared__ PoolMemory pool;
  int block = blockIdx.x;
  if (block < deal.compress_blocks) {
    const CompressArgs& a = group.compress[block / deal.rows];
    const int row = block % deal.rows;
    const int n_rows = of_step(a.step.n_rows);
    const std::int32_t pos = of_step(a.step.pos + row);
    wait_for_inputs();
    if (row >= n_rows) return;
    if (ends_chunk(pos, a.ratio)) {
      emit_chunk(a, group.compress_rot[block / deal.rows], row, x, memory, pool);
    }
    if (deal.rows > 1) return;
    __syncthreads();
    keep_state(a, row);
    return;
  }
  block -= deal.compress_blocks;
  if (block < deal.append_blocks) {
    const int n_rows = of_step(group.append.step.n_rows);
    wait_for_inputs();
    if (block < n_rows) {
      append_row(group.append, group.append_rot, block, x, memory);
    }
    return;
  }
  block -= deal.append_blocks;
  const HeadsArgs& a = group.heads;
  const int row = block / deal.row_blocks, part = block % deal.row_blocks;
  const int n_rows = of_step(a.step.n_rows);
  wait_for_inputs();
  if (row >= n_rows) return;
  if (!deal.by_warps) return heads_row(a, row, part, x, memory);
  const int head = part * kRowWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (head < a.n_heads) heads_warp(a, row, head);
}

__global__ void __launch_bounds__(kRowThreads)
    compress_state_kernel(const __grid_constant__ RowGroup group) {
  wait_for_inputs();
  const CompressArgs& a = group.compress[blockIdx.y];
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows || !compress_keeps(a, row)) return;
  keep_state(a, row);
}

}  // namespace

cudaError_t rope_tables(const Launch& launch, const RopeTables& args) {
  return start(
      launch, rope_tables_kernel,
      dim3(static_cast<unsigned>(args.tables[0].step.max_rows), static_cast<unsigned>(args.n)),
      dim3(32), 0, args);
}

cudaError_t row_group(const Launch& launch, const RowGroup& group) {
  Deal deal;
  std::int32_t width = 0;
  if (group.n_compressions > 0) {
    deal.rows = group.compress[0].step.max_rows;
    deal.compress_blocks = deal.rows * group.n_compressions;
    for (std::int32_t i = 0; i < group.n_compressions; ++i) {
      width = std::max(width, group.compress[static_cast<std::size_t>(i)].d);
    }
  }
  if (group.has_append) {
    deal.append_blocks = group.append.step.max_rows;
    width = std::max(width, group.append.d);
  }
  if (group.has_heads) {
    const HeadsArgs& heads = group.heads;
    deal.by_warps = heads.d == kWarpWidth && heads.rounding != Rounding::fp8_nope;
    deal.row_blocks = deal.by_warps ? (heads.n_heads + kRowWarps - 1) / kRowWarps : heads.n_heads;
    deal.heads_blocks = heads.step.max_rows * deal.row_blocks;
    if (!deal.by_warps) width = std::max(width, heads.d);
  }
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  if (const cudaError_t error = allow_shared(row_group_kernel, bytes)) return error;
  const cudaError_t error = start(
      launch, row_group_kernel,
      dim3(static_cast<unsigned>(deal.compress_blocks + deal.append_blocks + deal.heads_blocks)),
      dim3(kRowThreads), bytes, group, deal);
  if (error != cudaSuccess || group.n_compressions == 0 || deal.rows == 1) return error;
  return start(launch, compress_state_kernel,
               dim3(static_cast<unsigned>(deal.rows), static_cast<unsigned>(group.n_compressions)),
               dim3(kRowThreads), 0, group);
}

}  // namespace ebb::cuda
