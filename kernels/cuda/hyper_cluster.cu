// Hyper-connections by a cluster of blocks to a row. Every block keeps kColumns columns of all
// streams: it mixes them (hc_post of the sub-layer before), forms its share of the mixing logits
// and of the sum of squares, and hands it to all blocks of the cluster; each of them then has the
// whole row's logits, so it can weigh its own columns, and a second exchange gives the norm. The
// weights of the logits stay in registers for all rows of the block; they are loaded while the
// kernel before still runs.
//
// Four warps, one to a stream, eight columns to a lane; a fifth makes post and comb meanwhile. Of
// many rows a cluster takes kManyRows at a time, so that they share the two exchanges; post and
// comb are then left to a kernel of their own. Sums run in an order that depends on the shape
// alone.

#include <cooperative_groups.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hyper.h"
#include "kernels/hyper.h"

namespace ebb::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kMix = (2 + kStreams) * kStreams;
constexpr int kColumns = 256;  // at most, of a block
constexpr int kLaneColumns = 8;
constexpr int kWorkers = kStreams * kWarp;
constexpr int kClusterThreads = kWorkers + kWarp;
constexpr int kMaxCluster = 16;
constexpr int kFewRows = 6;   // each has a cluster at once, with one block a multiprocessor
constexpr int kManyRows = 4;  // of a cluster, if there are more

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

template <DType kType, int kRows>
__global__ void __launch_bounds__(kClusterThreads, kRows > 1 ? 2 : 1)
    hc_cluster_kernel(const __grid_constant__ ClusterPlan p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ RowMemory memory[kRows];
  const cg::cluster_group cluster = cg::this_cluster();
  const HcPreArgs& a = p.pre;
  const int n_blocks = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool worker = warp < kStreams;
  const std::int64_t d = a.d;
  const int own = lane * kLaneColumns;          // first column of the lane, in the block
  const std::int64_t first = rank * p.columns;  // of the block, in the row
  const bool active = worker && own < p.columns;
  const int pair = 2 * static_cast<int>(threadIdx.x);  // columns that the thread weighs
  const bool weighs = worker && pair < p.columns;

  uint4 weight[kMix];
  const auto* const fn = reinterpret_cast<const std::uint16_t*>(a.hyper.fn.data) + warp * d + first;
#pragma unroll
  for (int m = 0; m < kMix; ++m) {
    weight[m] = active ? *reinterpret_cast<const uint4*>(fn + m * kStreams * d + own)
                       : make_uint4(0, 0, 0, 0);
  }
  const float2 norm =
      weighs ? *reinterpret_cast<const float2*>(a.norm_weight + first + pair) : make_float2(0, 0);
  const int n_rows = of_step(a.step.n_rows);
  // No block may write to one that has not begun.
  cluster_arrive_relaxed();
  wait_for_inputs();
  cluster_wait();
  const int n_clusters = static_cast<int>(gridDim.x) / n_blocks;
  for (int begin = static_cast<int>(blockIdx.x) / n_blocks * kRows; begin < n_rows;
       begin += n_clusters * kRows) {
    const int n = min(kRows, n_rows - begin);
    float* const streams =
        const_cast<float*>(a.streams) + static_cast<std::int64_t>(begin) * kStreams * d + first;
    if (worker) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= n) break;
        RowMemory& s = memory[r];
        float x[kLaneColumns];
        if (active) load8(streams + (r * kStreams + warp) * d + own, x);
        if (p.post.streams != nullptr && weighs) {
          *reinterpret_cast<float2*>(s.o + pair) = sublayer_pair(p, begin + r, first + pair);
        }
        if (active) store8(&s.old[warp][own], x);
      }
      workers_barrier();
#pragma unroll 1
      for (int r = 0; r < n; ++r) {
        RowMemory& s = memory[r];
        const std::int64_t row = begin + r;
        float x[kLaneColumns] = {};
        if (active && p.post.streams == nullptr) load8(&s.old[warp][own], x);
        if (active && p.post.streams != nullptr) {
          float old[kLaneColumns];
          load8(s.o + own, x);
          const float post = p.post.post[row * kStreams + warp];
#pragma unroll
          for (int i = 0; i < kLaneColumns; ++i) x[i] *= post;
#pragma unroll
          for (int j = 0; j < kStreams; ++j) {
            const float comb = p.post.comb[(row * kStreams + j) * kStreams + warp];
            load8(&s.old[j][own], old);
#pragma unroll
            for (int i = 0; i < kLaneColumns; ++i) x[i] = fmaf(comb, old[i], x[i]);
          }
        }
        if (active) store8(&s.streams[warp][own], x);
        float sum[kWarp] = {};
#pragma unroll
        for (int m = 0; m < kMix; ++m) {
          const std::uint32_t packed[4] = {weight[m].x, weight[m].y, weight[m].z, weight[m].w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 w = widen<kType>(packed[i]);
            sum[m] = fmaf(w.x, x[2 * i], sum[m]);
            sum[m] = fmaf(w.y, x[2 * i + 1], sum[m]);
          }
        }
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sum[kMix] = fmaf(x[i], x[i], sum[kMix]);
        s.part[warp][lane] = scatter_sums(sum);
      }
      workers_barrier();
      // The block's share goes to every block; a warp serves a quarter of them.
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= n) break;
        RowMemory& s = memory[r];
        const float share =
            (s.part[0][lane] + s.part[1][lane]) + (s.part[2][lane] + s.part[3][lane]);
#pragma unroll
        for (int i = 0; i < kMaxCluster / kStreams; ++i) {
          const int to = warp + i * kStreams;
          if (to < n_blocks) *cluster.map_shared_rank(&s.shares[rank][lane], to) = share;
        }
      }
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    // The second exchange does not wait for what only the next sub-layer's end needs.
    if (!worker) cluster_arrive_relaxed();
    float2 y[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      RowMemory& s = memory[r];
      float mix = over_blocks(n_blocks, [&](int b) { return s.shares[b][lane]; });
      const float mean = __shfl_sync(kAllLanes, mix, kMix) / static_cast<float>(kStreams * d);
      mix *= 1.0f / sqrtf(mean + a.hyper.rms_eps);
      if (!worker) {
        if (rank != (begin + r) % n_blocks) continue;
        if (kRows == 1) {
          write_mixing(a, begin + r, mix);
        } else if (lane < kMix) {
          a.mix[static_cast<std::int64_t>(begin + r) * kMix + lane] = mix;
        }
        continue;
      }
      const float own_pre =
          lane < kStreams ? hc_pre_weight(mix, a.hyper.scale[0], a.hyper.base[lane], a.hyper.hc_eps)
                          : 0.0f;
      y[r] = make_float2(0, 0);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const float pre = __shfl_sync(kAllLanes, own_pre, j);
        if (weighs) {
          const float2 x = *reinterpret_cast<const float2*>(&s.streams[j][pair]);
          y[r].x = fmaf(pre, x.x, y[r].x);
          y[r].y = fmaf(pre, x.y, y[r].y);
        }
      }
      const float squares = warp_sum(fmaf(y[r].y, y[r].y, y[r].x * y[r].x));
      if (lane == 0) s.warp_squares[warp] = squares;
    }
    if (!worker) {
      __syncwarp();
      cluster_wait();
      continue;
    }
    workers_barrier();
    if (warp == 0 && lane < n_blocks) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= n) break;
        RowMemory& s = memory[r];
        *cluster.map_shared_rank(&s.squares[rank], lane) =
            (s.warp_squares[0] + s.warp_squares[1]) + (s.warp_squares[2] + s.warp_squares[3]);
      }
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      const RowMemory& s = memory[r];
      const float total = over_blocks(n_blocks, [&](int b) { return s.squares[b]; });
      const float scale = 1.0f / sqrtf(total / static_cast<float>(d) + a.hyper.rms_eps);
      if (weighs) {
        *reinterpret_cast<float2*>(a.y + (begin + r) * d + first + pair) =
            make_float2(y[r].x * scale * norm.x, y[r].y * scale * norm.y);
      }
      // Only now: the release of an exchange waits for every write before it.
      if (p.post.streams != nullptr && active) {
        float x[kLaneColumns];
        load8(&s.streams[warp][own], x);
        store8(streams + (r * kStreams + warp) * d + own, x);
      }
    }
  }
#endif
}

/// post and comb of many rows, from their logits; a warp per row.
__global__ void hc_mixing_kernel(const __grid_constant__ HcPreArgs a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  wait_for_inputs();
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (row >= *a.step.n_rows) return;
  write_mixing(a, row, lane < kMix ? a.mix[static_cast<std::int64_t>(row) * kMix + lane] : 0.0f);
#endif
}

/// Blocks of a row: the fewest, a power of two.
int cluster_of(std::int64_t d) {
  int n = 1;
  while (n < kMaxCluster && d > std::int64_t{kColumns} * n) n *= 2;
  return n;
}

template <DType kType, int kRows>
cudaError_t run(const Launch& launch, const ClusterPlan& plan) {
  const auto kernel = hc_cluster_kernel<kType, kRows>;
  const int n_blocks = cluster_of(plan.pre.d);
  if (n_blocks > 8) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(n_blocks), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.blockDim = dim3(kClusterThreads);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(n_blocks));
  int most = 0;  // clusters that the device holds
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&most, kernel, &config);
  if (error != cudaSuccess) return error;
  const int groups = (plan.pre.step.max_rows + kRows - 1) / kRows;
  const int n_clusters = groups < most ? groups : most > 1 ? most : 1;
  config.numAttrs = launch.early_start ? 2 : 1;
  config.gridDim = dim3(static_cast<unsigned>(n_blocks * n_clusters));
  return cudaLaunchKernelEx(&config, kernel, plan);
}

template <DType kType>
cudaError_t run(const Launch& launch, const ClusterPlan& plan) {
  const std::int32_t rows = plan.pre.step.max_rows;
  if (rows <= kFewRows || plan.pre.mix == nullptr) return run<kType, 1>(launch, plan);
  const cudaError_t error = run<kType, kManyRows>(launch, plan);
  if (error != cudaSuccess) return error;
  constexpr int kRowsOfBlock = 8;
  return start(launch, hc_mixing_kernel,
               dim3(static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock)),
               dim3(kRowsOfBlock * kWarp), 0, plan.pre);
}

}  // namespace

bool hc_fits_clusters(const HcPreArgs& args) {
  const std::int64_t n = cluster_of(args.d);
  return args.n_streams == kStreams &&
         (args.hyper.fn.type == DType::f16 || args.hyper.fn.type == DType::bf16) &&
         args.d % (n * kLaneColumns) == 0 && args.d / n <= kColumns;
}

cudaError_t hc_pre_clusters(const Launch& launch, const HcPreArgs& args, const HcPostArgs* post,
                            const ExpertsArgs* experts) {
  ClusterPlan plan;
  plan.pre = args;
  plan.columns = static_cast<std::int32_t>(args.d / cluster_of(args.d));
  if (post != nullptr) plan.post = *post;
  if (post != nullptr && experts != nullptr) {
    plan.sum = {experts->partial, experts->ids, experts->weights, experts->n_used,
                static_cast<std::int32_t>(experts->routed.gate.n_mats)};
  }
  return args.hyper.fn.type == DType::f16 ? run<DType::f16>(launch, plan)
                                          : run<DType::bf16>(launch, plan);
}

}  // namespace ebb::cuda
