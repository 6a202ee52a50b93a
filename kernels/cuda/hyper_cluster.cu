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

#include "kernels/cuda/hyper_cluster.cuh"

namespace ebb::cuda {
namespace {

constexpr int kFewRows = 6;   // each has a cluster at once, with one block a multiprocessor
constexpr int kManyRows = 4;  // of a cluster, if there are more

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
