// y = W x on the arithmetic units, by the dot products of dot.cuh. A block takes a tile of weight
// rows of one part and one group, and kRows activation rows. Matrices of few rows are cut along k
// too, over the warps of a block; the cut follows from the matrices alone, so it is the same for
// every batch.

#include <algorithm>

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/matmul_plain.h"
#include "kernels/cuda/matvec.cuh"

namespace ebb::cuda {
namespace {

struct Part {
  Planes planes;
  float* y = nullptr;
  std::int32_t n_out = 0;
  std::int32_t tiles_end = 0;  // of all parts so far
};

struct MatmulPlan {
  const std::int32_t* n_rows = nullptr;
  const float* x = nullptr;
  const std::uint64_t* grid = nullptr;
  std::int32_t n_in = 0;
  std::int32_t n_groups = 1;
  std::int32_t n_slices = 1;
  std::int32_t n_parts = 0;
  Part parts[6];
};

template <class C, int kRows, int kWeights>
__global__ void __launch_bounds__(kThreads) matmul_kernel(MatmulPlan plan) {
  extern __shared__ float4 staged[];
  __shared__ float sums[kWarps * kWeights * kRows];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  int tile = blockIdx.x, p = 0;
  while (tile >= plan.parts[p].tiles_end) ++p;
  if (p > 0) tile -= plan.parts[p - 1].tiles_end;
  const Part& part = plan.parts[p];
  const int tile_rows = kWarps / plan.n_slices * kWeights;
  const int group_rows = part.n_out / plan.n_groups;
  const int group_tiles = (group_rows + tile_rows - 1) / tile_rows;
  const int group = tile / group_tiles;
  const int warp = threadIdx.x / kWarp, slice = warp % plan.n_slices;
  const int in_group = (tile % group_tiles) * tile_rows + warp / plan.n_slices * kWeights;
  wait_for_inputs();
  const int first_row = blockIdx.y * kRows;
  const int n_rows = *plan.n_rows;
  if (first_row >= n_rows) return;
  stage_grid<C>(plan.grid, grid);

  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = first_row + r < n_rows
               ? plan.x +
                     (static_cast<std::int64_t>(first_row + r) * plan.n_groups + group) * plan.n_in
               : nullptr;
  }
  Planes planes[kWeights];
  std::int64_t row[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    planes[w] = part.planes;
    // A row past the end repeats the last one; it is not stored.
    row[w] = static_cast<std::int64_t>(group) * group_rows + min(in_group + w, group_rows - 1);
  }
  float sum[kWeights][kRows];
  products<C, kRows, kWeights>(x, plan.n_in, planes, row, in_group < group_rows, slice,
                               plan.n_slices, staged, grid, sums, sum);
  if (slice != 0 || threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    if (in_group + w >= group_rows) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (x[r] != nullptr) {
        part.y[static_cast<std::int64_t>(first_row + r) * part.n_out + row[w]] = sum[w][r];
      }
    }
  }
}

/// One activation row; blockIdx.y is the group.
template <class C, int kWeights>
__global__ void __launch_bounds__(kThreads, 2) matvec_kernel(MatmulPlan plan) {
  extern __shared__ float4 staged[];
  __shared__ float sums[kWarps * kWeights];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  const int tile_rows = kWarps / plan.n_slices * kWeights;
  const int own = threadIdx.x / kWarp / plan.n_slices * kWeights;
  const auto part_of = [&](int& tile) -> const Part& {
    int p = 0;
    while (tile >= plan.parts[p].tiles_end) ++p;
    if (p > 0) tile -= plan.parts[p - 1].tiles_end;
    return plan.parts[p];
  };
  matvec<C, kWeights>(
      plan.x + static_cast<std::int64_t>(blockIdx.y) * plan.n_in, plan.n_in,
      plan.parts[plan.n_parts - 1].tiles_end, plan.n_slices, staged, plan.grid, grid, sums,
      [&](int tile, Planes& planes, std::int64_t(&row)[kWeights]) {
        const Part& part = part_of(tile);
        const int group_rows = part.n_out / plan.n_groups;
        planes = part.planes;
#pragma unroll
        for (int w = 0; w < kWeights; ++w) {
          row[w] = static_cast<std::int64_t>(blockIdx.y) * group_rows +
                   min(tile * tile_rows + own + w, group_rows - 1);
        }
      },
      [&](int tile, const float(&sum)[kWeights]) {
        if (*plan.n_rows < 1) return;
        const Part& part = part_of(tile);
        const int group_rows = part.n_out / plan.n_groups;
        float* const y = part.y + static_cast<std::int64_t>(blockIdx.y) * group_rows;
#pragma unroll
        for (int w = 0; w < kWeights; ++w) {
          const int row = tile * tile_rows + own + w;
          if (row < group_rows) y[row] = sum[w];
        }
      });
}

template <class C, int kWeights>
cudaError_t launch_matvec(const Launch& launch, MatmulPlan plan) {
  const std::int32_t tile_rows = kWarps / plan.n_slices * kWeights;
  std::int32_t tiles = 0;
  for (std::int32_t p = 0; p < plan.n_parts; ++p) {
    tiles += (plan.parts[p].n_out / plan.n_groups + tile_rows - 1) / tile_rows;
    plan.parts[p].tiles_end = tiles;
  }
  const std::size_t bytes = staged_bytes<C, 1>(plan.n_in);
  const auto kernel = matvec_kernel<C, kWeights>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  int resident = 0;  // blocks that a multiprocessor holds
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, bytes);
  if (error != cudaSuccess) return error;
  const std::int32_t most = std::max(1, std::max(1, resident) * launch.n_sms / plan.n_groups);
  // Whole rounds of equal length leave no multiprocessor idle at the end.
  const std::int32_t rounds = (tiles + most - 1) / most;
  return start(launch, kernel,
               dim3(static_cast<unsigned>((tiles + rounds - 1) / rounds),
                    static_cast<unsigned>(plan.n_groups)),
               dim3(kThreads), bytes, plan);
}

template <class C, int kRows, int kWeights>
cudaError_t launch_matmul(const Launch& launch, MatmulPlan plan, std::int32_t max_rows) {
  const std::int32_t tile_rows = kWarps / plan.n_slices * kWeights;
  std::int32_t tiles = 0;
  for (std::int32_t p = 0; p < plan.n_parts; ++p) {
    const std::int32_t group_rows = plan.parts[p].n_out / plan.n_groups;
    tiles += (group_rows + tile_rows - 1) / tile_rows * plan.n_groups;
    plan.parts[p].tiles_end = tiles;
  }
  const std::size_t bytes = staged_bytes<C, kRows>(plan.n_in);
  const auto kernel = matmul_kernel<C, kRows, kWeights>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  return start(
      launch, kernel,
      dim3(static_cast<unsigned>(tiles), static_cast<unsigned>((max_rows + kRows - 1) / kRows)),
      dim3(kThreads), bytes, plan);
}

template <class C>
cudaError_t choose(const Launch& launch, const MatmulPlan& plan, std::int32_t max_rows,
                   std::int64_t total_rows) {
  if (max_rows == 1 && plan.n_in <= kStagedFloats) {
    return total_rows >= 2048 ? launch_matvec<C, 2>(launch, plan)
                              : launch_matvec<C, 1>(launch, plan);
  }
  if (max_rows == 1) {
    if (total_rows >= 16384) return launch_matmul<C, 1, 4>(launch, plan, 1);
    if (total_rows >= 6144) return launch_matmul<C, 1, 2>(launch, plan, 1);
    return launch_matmul<C, 1, 1>(launch, plan, 1);
  }
  if (max_rows == 2) return launch_matmul<C, 2, 2>(launch, plan, max_rows);
  if (max_rows <= 4) return launch_matmul<C, 4, 2>(launch, plan, max_rows);
  return launch_matmul<C, 8, 2>(launch, plan, max_rows);
}

}  // namespace

cudaError_t matmul_plain(const Launch& launch, const MatmulArgs& args) {
  MatmulPlan plan;
  plan.n_rows = args.n_rows;
  plan.x = args.x;
  plan.grid = launch.grid_iq2;
  plan.n_in = static_cast<std::int32_t>(args.parts[0].weight.n_in);
  plan.n_groups = args.n_groups;
  std::int64_t total_rows = 0;
  for (std::int32_t i = 0; i < args.n_parts; ++i) {
    const MatmulPart& part = args.parts[static_cast<std::size_t>(i)];
    plan.parts[plan.n_parts++] = {planes_of(part.weight), part.y,
                                  static_cast<std::int32_t>(part.weight.n_out), 0};
    total_rows += part.weight.n_out;
  }
  plan.n_slices = total_rows <= 512 ? 8 : total_rows <= 1024 ? 4 : total_rows <= 2048 ? 2 : 1;
  cudaError_t error = cudaErrorInvalidValue;
  with_codec(args.parts[0].weight.type,
             [&]<class C>(C) { error = choose<C>(launch, plan, args.max_rows, total_rows); });
  return error;
}

}  // namespace ebb::cuda
