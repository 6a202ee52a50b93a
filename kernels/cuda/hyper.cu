// fn * RMS(flat) equals RMS's scalar times fn * flat. The product is cut by columns: a block takes
// kColumns columns of every stream of one row, so it can mix them first (hc_post of the sub-layer
// before) and then form its share of all mixing logits and of the sum of squares. A second kernel
// adds the shares in order and does what needs the whole row.

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/hyper.h"
#include "kernels/hyper.h"

namespace ebb::cuda {
namespace {

constexpr int kColumns = 64;
constexpr int kMixThreads = 256;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;

struct MixPlan {
  const std::int32_t* n_rows = nullptr;
  const std::int32_t* row_of = nullptr;  // nullptr: row i is i
  const float* streams = nullptr;
  Planes fn;
  float* shares = nullptr;  // [rows, n_parts, n_mix + 1]
  std::int32_t n_streams = 0;
  std::int32_t n_mix = 0;
  std::int32_t d = 0;
  // Of hc_post; o is nullptr without.
  const float* o = nullptr;
  const float* post = nullptr;
  const float* comb = nullptr;
  float* mixed = nullptr;  // the streams, written
};

template <class C>
__global__ void __launch_bounds__(kMixThreads) mix_kernel(MixPlan p, const std::uint64_t* grid) {
  __shared__ float x[kMaxStreams * kColumns];
  if (blockIdx.y == 0) {
    // The block's columns of every row of fn, on their way while the kernel before still runs.
    constexpr int kBytes = C::kQuads == 1 ? 4 : 2;
    const int segments = (p.n_mix * p.n_streams);
    for (int at = threadIdx.x; at < segments; at += kMixThreads) {
      const std::int64_t value = static_cast<std::int64_t>(at) * p.d + blockIdx.x * kColumns;
      prefetch(p.fn.plane[0] + value * kBytes);
    }
  }
  wait_for_inputs();
  const int i = blockIdx.y;
  if (i >= *p.n_rows) return;
  const std::int64_t row = p.row_of != nullptr ? p.row_of[i] : i;
  const int s_count = p.n_streams;
  const int first = blockIdx.x * kColumns;
  const float* const streams = p.streams + row * s_count * p.d;
  for (int at = threadIdx.x; at < s_count * kColumns; at += kMixThreads) {
    const int column = first + at % kColumns;
    x[at] = column < p.d ? streams[static_cast<std::int64_t>(at / kColumns) * p.d + column] : 0.0f;
  }
  __syncthreads();
  if (p.o != nullptr) {
    float mixed[kMaxStreams * kColumns / kMixThreads];
    int n = 0;
    for (int at = threadIdx.x; at < s_count * kColumns; at += kMixThreads) {
      const int k = at / kColumns, column = first + at % kColumns;
      float sum = 0;
      if (column < p.d) {
        sum = p.post[row * s_count + k] * p.o[row * p.d + column];
        for (int j = 0; j < s_count; ++j) {
          sum =
              fmaf(p.comb[(row * s_count + j) * s_count + k], x[j * kColumns + at % kColumns], sum);
        }
        p.mixed[(row * s_count + k) * p.d + column] = sum;
      }
      mixed[n++] = sum;
    }
    __syncthreads();
    n = 0;
    for (int at = threadIdx.x; at < s_count * kColumns; at += kMixThreads) x[at] = mixed[n++];
    __syncthreads();
  }
  // A warp forms the share of a logit; lanes run over the chunks of the block's columns.
  constexpr int kChunk = C::kQuads * 4;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int stream_chunks = (min(kColumns, p.d - first) + kChunk - 1) / kChunk;
  const int row_chunks = s_count * (p.d / kChunk);
  float* const shares =
      p.shares + (static_cast<std::int64_t>(i) * gridDim.x + blockIdx.x) * (p.n_mix + 1);
  // With one chunk a lane, the weights of all logits of the warp go out before the first is used.
  constexpr int kOwn = 4;
  const bool one_chunk = s_count * stream_chunks <= kWarp && p.n_mix <= kOwn * kMixThreads / kWarp;
  typename C::Raw held[kOwn];
  if (one_chunk) {
    const int s = lane / stream_chunks;
    const int chunk = s * (p.d / kChunk) + first / kChunk + lane % stream_chunks;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int m = warp + k * kMixThreads / kWarp;
      held[k] = typename C::Raw{};
      if (m < p.n_mix && lane < s_count * stream_chunks) {
        C::load(p.fn, static_cast<std::int64_t>(m) * row_chunks + chunk, held[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int m = warp + k * kMixThreads / kWarp;
      float sum = 0;
      if (m < p.n_mix && lane < s_count * stream_chunks) {
#pragma unroll
        for (int j = 0; j < C::kQuads; ++j) {
          const int column = C::position(chunk, j) - s * p.d - first;
          const float4 value = *reinterpret_cast<const float4*>(x + s * kColumns + column);
          sum = dot4(C::quad(held[k], j, grid), value, sum);
        }
      }
      sum = warp_sum(sum);
      if (m < p.n_mix && lane == 0) shares[m] = sum;
    }
  }
  for (int m = one_chunk ? p.n_mix + warp : warp; m <= p.n_mix; m += kMixThreads / kWarp) {
    float sum = 0;
    if (m == p.n_mix) {
      for (int at = lane; at < s_count * kColumns; at += kWarp) sum = fmaf(x[at], x[at], sum);
    } else {
      for (int c = lane; c < s_count * stream_chunks; c += kWarp) {
        const int s = c / stream_chunks;
        const int chunk = s * (p.d / kChunk) + first / kChunk + c % stream_chunks;
        typename C::Raw raw;
        C::load(p.fn, static_cast<std::int64_t>(m) * row_chunks + chunk, raw);
#pragma unroll
        for (int j = 0; j < C::kQuads; ++j) {
          const int column = C::position(chunk, j) - s * p.d - first;
          const float4 value = *reinterpret_cast<const float4*>(x + s * kColumns + column);
          sum = dot4(C::quad(raw, j, grid), value, sum);
        }
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) shares[m] = sum;
  }
}

/// Adds the shares of one quantity, in an order that depends on their number alone.
__device__ __forceinline__ float add_shares(const float* shares, int n_parts, int stride) {
  float sum = 0;
  for (int part = threadIdx.x % kWarp; part < n_parts; part += kWarp) {
    sum += shares[static_cast<std::int64_t>(part) * stride];
  }
  return warp_sum(sum);
}

constexpr int kFinishThreads = 512;

/// Values that a thread keeps in registers between the two passes over a row.
constexpr int kKept = 8;

/// y = RMS(sum_s pre[s] * streams[s]) * norm_weight by the whole block. kStreams is the number of
/// streams, or 0 for any: a known number lets all loads go out before the first is used.
template <int kStreams>
__device__ void weigh_streams(const float* __restrict__ streams, const float* pre, int n_streams,
                              int d, const float* __restrict__ norm_weight, float eps,
                              float* __restrict__ y, float* memory) {
  float kept[kKept] = {};
  float squares = 0;
  const auto weigh = [&](int i) {
    float sum = 0;
    for (int s = 0; s < n_streams; ++s) {
      sum = fmaf(pre[s], streams[static_cast<std::int64_t>(s) * d + i], sum);
    }
    return sum;
  };
  if constexpr (kStreams > 0) {
    float value[kKept][kStreams];
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = min(static_cast<int>(threadIdx.x) + k * kFinishThreads, d - 1);
#pragma unroll
      for (int s = 0; s < kStreams; ++s)
        value[k][s] = streams[static_cast<std::int64_t>(s) * d + i];
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) kept[k] = fmaf(pre[s], value[k][s], kept[k]);
      if (static_cast<int>(threadIdx.x) + k * kFinishThreads >= d) kept[k] = 0;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = threadIdx.x + k * kFinishThreads;
      if (i < d) kept[k] = weigh(i);
    }
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k) squares = fmaf(kept[k], kept[k], squares);
  for (int i = threadIdx.x + kKept * kFinishThreads; i < d; i += kFinishThreads) {
    const float sum = weigh(i);
    y[i] = sum;
    squares = fmaf(sum, sum, squares);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, memory) / static_cast<float>(d) + eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kFinishThreads;
    if (i < d) y[i] = kept[k] * scale * norm_weight[i];
  }
  for (int i = threadIdx.x + kKept * kFinishThreads; i < d; i += kFinishThreads) {
    y[i] = y[i] * scale * norm_weight[i];
  }
}

/// mix[m] * scale of every logit, from the shares; `mix` is shared memory.
__device__ void finish_mix(const float* shares, int n_parts, int n_mix, std::int64_t width,
                           float eps, float* mix) {
  for (int m = threadIdx.x / kWarp; m <= n_mix; m += blockDim.x / kWarp) {
    const float sum = add_shares(shares + m, n_parts, n_mix + 1);
    if (threadIdx.x % kWarp == 0) mix[m] = sum;
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(mix[n_mix] / static_cast<float>(width) + eps);
  __syncthreads();
  for (int m = threadIdx.x; m < n_mix; m += blockDim.x) mix[m] *= scale;
  __syncthreads();
}

__device__ void comb_of_row(const HcPreArgs& a, const float* mix, float* comb) {
  const HyperWeights& w = a.hyper;
  const int at = 2 * a.n_streams;
  hc_comb_of(a.n_streams, mix + at, w.scale[2], w.base + at, w.sinkhorn_iterations, w.hc_eps, comb);
}

/// Four streams: a lane to an element of the matrix. The arithmetic is that of sinkhorn<4>.
__device__ void comb_of_4(const HcPreArgs& a, const float* mix, float* comb) {
  const HyperWeights& w = a.hyper;
  const int lane = threadIdx.x % kWarp, element = lane % 16;
  float c = mix[8 + element] * w.scale[2] + w.base[8 + element];
  const int row = lane & ~3, column = (lane & ~15) | (lane & 3);
  const auto row_at = [&](float v, int k) { return __shfl_sync(kAllLanes, v, row | k); };
  const auto column_at = [&](float v, int j) { return __shfl_sync(kAllLanes, v, column + 4 * j); };
  float largest = row_at(c, 0);
  for (int k = 1; k < 4; ++k) {
    const float other = row_at(c, k);
    largest = other > largest ? other : largest;
  }
  c = expf(c - largest);
  float sum = 0;
  for (int k = 0; k < 4; ++k) sum += row_at(c, k);
  c = c / sum + w.hc_eps;
  for (int iteration = 0;; ++iteration) {
    sum = 0;
    for (int j = 0; j < 4; ++j) sum += column_at(c, j);
    c /= sum + w.hc_eps;
    if (iteration + 1 >= w.sinkhorn_iterations) break;
    sum = 0;
    for (int k = 0; k < 4; ++k) sum += row_at(c, k);
    c /= sum + w.hc_eps;
  }
  if (lane < 16) comb[lane] = c;
}

__global__ void __launch_bounds__(kFinishThreads)
    hc_pre_kernel(HcPreArgs a, const float* shares, int n_parts) {
  __shared__ float mix[kMaxMix + 1];
  __shared__ float memory[kWarp];
  __shared__ float pre[kMaxStreams];
  wait_for_inputs();
  const int row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  const int s = a.n_streams, n_mix = (2 + s) * s, d = static_cast<int>(a.d);
  const HyperWeights& w = a.hyper;
  finish_mix(shares + static_cast<std::int64_t>(row) * n_parts * (n_mix + 1), n_parts, n_mix,
             static_cast<std::int64_t>(s) * d, w.rms_eps, mix);
  // One block makes what goes back into the streams, the other what goes on: neither waits.
  if (blockIdx.x == 1) {
    if (threadIdx.x < s) {
      a.post[static_cast<std::int64_t>(row) * s + threadIdx.x] =
          hc_post_weight(mix[s + threadIdx.x], w.scale[1], w.base[s + threadIdx.x]);
    }
    float* const comb = a.comb + static_cast<std::int64_t>(row) * s * s;
    if (s == 4) {
      if (threadIdx.x < kWarp) comb_of_4(a, mix, comb);
    } else if (threadIdx.x == 0) {
      comb_of_row(a, mix, comb);
    }
    return;
  }
  if (threadIdx.x < s) {
    pre[threadIdx.x] = hc_pre_weight(mix[threadIdx.x], w.scale[0], w.base[threadIdx.x], w.hc_eps);
  }
  __syncthreads();
  const float* const streams = a.streams + static_cast<std::int64_t>(row) * s * d;
  float* const y = a.y + static_cast<std::int64_t>(row) * d;
  if (s == 4) {
    weigh_streams<4>(streams, pre, s, d, a.norm_weight, w.rms_eps, y, memory);
  } else {
    weigh_streams<0>(streams, pre, s, d, a.norm_weight, w.rms_eps, y, memory);
  }
}

__global__ void __launch_bounds__(kFinishThreads)
    hc_head_kernel(HcHeadArgs a, const float* shares, int n_parts) {
  __shared__ float mix[kMaxStreams + 1];
  __shared__ float memory[kWarp];
  __shared__ float pre[kMaxStreams];
  wait_for_inputs();
  const int i = blockIdx.x;
  if (i >= *a.step.n_out) return;
  const int s = a.n_streams, d = static_cast<int>(a.d);
  const HyperWeights& w = a.hyper;
  finish_mix(shares + static_cast<std::int64_t>(i) * n_parts * (s + 1), n_parts, s,
             static_cast<std::int64_t>(s) * d, w.rms_eps, mix);
  if (threadIdx.x < s) {
    pre[threadIdx.x] = hc_pre_weight(mix[threadIdx.x], w.scale[0], w.base[threadIdx.x], w.hc_eps);
  }
  __syncthreads();
  const float* const streams = a.streams + static_cast<std::int64_t>(a.step.out_row[i]) * s * d;
  float* const y = a.y + static_cast<std::int64_t>(i) * d;
  if (s == 4) {
    weigh_streams<4>(streams, pre, s, d, a.norm_weight, w.rms_eps, y, memory);
  } else {
    weigh_streams<0>(streams, pre, s, d, a.norm_weight, w.rms_eps, y, memory);
  }
}

__global__ void hc_post_kernel(HcPostArgs a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.d) return;
  const int s = a.n_streams;
  float* const streams = a.streams + row * s * a.d + i;
  float old[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) old[j] = j < s ? streams[j * a.d] : 0.0f;
  const float o = a.o[row * a.d + i];
  for (int k = 0; k < s; ++k) {
    float sum = a.post[row * s + k] * o;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j < s) sum = fmaf(a.comb[(row * s + j) * s + k], old[j], sum);
    }
    streams[k * a.d] = sum;
  }
}

std::int32_t parts_of(std::int64_t d) {
  return static_cast<std::int32_t>((d + kColumns - 1) / kColumns);
}

cudaError_t mix(const Launch& launch, const MixPlan& plan, const HyperWeights& hyper,
                std::int32_t max_rows) {
  const dim3 blocks(static_cast<unsigned>(parts_of(plan.d)), static_cast<unsigned>(max_rows));
  switch (hyper.fn.type) {
    case DType::f32:
      return start(launch, mix_kernel<Codec<DType::f32>>, blocks, dim3(kMixThreads), 0, plan,
                   launch.grid_iq2);
    case DType::f16:
      return start(launch, mix_kernel<Codec<DType::f16>>, blocks, dim3(kMixThreads), 0, plan,
                   launch.grid_iq2);
    case DType::bf16:
      return start(launch, mix_kernel<Codec<DType::bf16>>, blocks, dim3(kMixThreads), 0, plan,
                   launch.grid_iq2);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

std::size_t hyper_workspace(std::int32_t max_rows, std::int32_t n_streams, std::int64_t d) {
  return static_cast<std::size_t>(max_rows) * parts_of(d) * ((2 + n_streams) * n_streams + 1) *
         sizeof(float);
}

cudaError_t hc_pre(const Launch& launch, const HcPreArgs& args, const HcPostArgs* post) {
  auto* const shares = reinterpret_cast<float*>(launch.workspace);
  MixPlan plan;
  plan.n_rows = args.step.n_rows;
  plan.streams = args.streams;
  plan.fn = planes_of(args.hyper.fn);
  plan.shares = shares;
  plan.n_streams = args.n_streams;
  plan.n_mix = (2 + args.n_streams) * args.n_streams;
  plan.d = static_cast<std::int32_t>(args.d);
  if (post != nullptr) {
    plan.o = post->o;
    plan.post = post->post;
    plan.comb = post->comb;
    plan.mixed = post->streams;
  }
  if (const cudaError_t error = mix(launch, plan, args.hyper, args.step.max_rows)) return error;
  return start(launch, hc_pre_kernel, dim3(2, static_cast<unsigned>(args.step.max_rows)),
               dim3(kFinishThreads), 0, args, static_cast<const float*>(shares), parts_of(args.d));
}

cudaError_t hc_post(const Launch& launch, const HcPostArgs& args) {
  return start(
      launch, hc_post_kernel,
      dim3(static_cast<unsigned>((args.d + 127) / 128), static_cast<unsigned>(args.step.max_rows)),
      dim3(128), 0, args);
}

cudaError_t hc_head(const Launch& launch, const HcHeadArgs& args) {
  auto* const shares = reinterpret_cast<float*>(launch.workspace);
  MixPlan plan;
  plan.n_rows = args.step.n_out;
  plan.row_of = args.step.out_row;
  plan.streams = args.streams;
  plan.fn = planes_of(args.hyper.fn);
  plan.shares = shares;
  plan.n_streams = args.n_streams;
  plan.n_mix = args.n_streams;
  plan.d = static_cast<std::int32_t>(args.d);
  if (const cudaError_t error = mix(launch, plan, args.hyper, args.step.max_out)) return error;
  return start(launch, hc_head_kernel, dim3(static_cast<unsigned>(args.step.max_out)),
               dim3(kFinishThreads), 0, args, static_cast<const float*>(shares), parts_of(args.d));
}

}  // namespace ebb::cuda
