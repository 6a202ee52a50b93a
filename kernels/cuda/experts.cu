// group    sorts (row, slot) pairs by expert into pieces of up to kRows rows of one expert
// gate_up  per piece and tile of f: hidden = gated(gate x, up x)
// down     per piece and tile of d: partial = down hidden
// sum      y = sum over slots of weight * partial, in the order of ids, then the shared expert
//
// A step of few rows has no groups: a piece is one pair. An element is summed in the same order
// either way (dot.cuh), so its bits do not depend on that. The shared expert sees every row: its
// pieces are the rows in order.

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/experts.h"

namespace ebb::cuda {
namespace {

constexpr int kGroupRows = 8;     // rows of a piece
constexpr int kMaxUngrouped = 8;  // rows of a step that is not grouped

struct Piece {
  std::int32_t expert;
  std::int32_t first;  // entry
  std::int32_t n;
};

struct Groups {
  std::int32_t* n_pieces = nullptr;
  std::int32_t* entries = nullptr;  // [rows * n_used] row * n_used + slot, by expert
  Piece* pieces = nullptr;

  static std::int64_t max_pieces(std::int64_t rows, std::int64_t n_used, std::int64_t n_experts) {
    return rows * n_used / kGroupRows + n_experts;
  }
};

struct Product {
  const std::int32_t* n_rows = nullptr;
  const float* in = nullptr;
  float* out = nullptr;
  const std::int32_t* ids = nullptr;  // nullptr: the shared expert
  Groups groups;                      // entries nullptr: not grouped
  Planes a, b;                        // gate and up, or down
  const std::uint64_t* grid = nullptr;
  std::int32_t n_in = 0;
  std::int32_t n_out = 0;  // per expert
  std::int32_t n_experts = 0;
  std::int32_t n_used = 0;
  std::int32_t n_slices = 1;
  bool in_by_slot = false;  // in is [rows, n_used + 1, n_in]
  float clamp = 0;
};

/// One block; thread e collects the entries of expert e, so their order is that of rows.
__global__ void group_kernel(ExpertsArgs a, Groups groups, int n_experts) {
  extern __shared__ std::int32_t counts[];  // [2][n_experts]: entries and pieces before each expert
  wait_for_inputs();
  const int n_entries = *a.step.n_rows * a.n_used;
  for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n_entries; i += blockDim.x) {
    const int id = a.ids[i];
    if (id >= 0 && id < n_experts) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int entries = 0, pieces = 0;
    for (int e = 0; e < n_experts; ++e) {
      const int n = counts[e];
      counts[e] = entries;
      counts[n_experts + e] = pieces;
      entries += n;
      pieces += (n + kGroupRows - 1) / kGroupRows;
    }
    *groups.n_pieces = pieces;
  }
  __syncthreads();
  // A warp serves an expert: lanes look at 32 entries at a time and line up behind each other.
  const int lane = threadIdx.x % kWarp;
  for (int e = threadIdx.x / kWarp; e < n_experts; e += blockDim.x / kWarp) {
    const int begin = counts[e];
    int n = 0;
    for (int base = 0; base < n_entries; base += kWarp) {
      const bool mine = base + lane < n_entries && a.ids[base + lane] == e;
      const unsigned votes = __ballot_sync(kAllLanes, mine);
      if (mine) groups.entries[begin + n + __popc(votes & ((1u << lane) - 1))] = base + lane;
      n += __popc(votes);
    }
    for (int p = lane; p * kGroupRows < n; p += kWarp) {
      groups.pieces[counts[n_experts + e] + p] = {e, begin + p * kGroupRows,
                                                  min(kGroupRows, n - p * kGroupRows)};
    }
  }
}

__device__ __forceinline__ float gated(float gate, float up, float clamp) {
  gate = gate > clamp ? clamp : gate;
  up = up > clamp ? clamp : up;
  up = up < -clamp ? -clamp : up;
  float negative = -gate;
  negative = negative > 88.0f ? 88.0f : negative;
  return gate * (1.0f / (1.0f + expf(negative))) * up;
}

/// The rows of the block's piece: places in `in` and `out`, and the expert.
template <int kRows>
struct PieceRows {
  const float* in[kRows];
  float* out[kRows];
  std::int32_t expert = -1;

  __device__ explicit PieceRows(const Product& p) {
    const int n_rows = *p.n_rows;
    const int n_slots = p.n_used + 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) in[r] = nullptr;
    std::int32_t first = blockIdx.y * kRows, n = kRows;
    if (p.ids == nullptr) {
      if (first >= n_rows) return;
      n = min(kRows, n_rows - first);
      expert = 0;
    } else if (p.groups.entries != nullptr) {
      if (static_cast<std::int32_t>(blockIdx.y) >= *p.groups.n_pieces) return;
      const Piece piece = p.groups.pieces[blockIdx.y];
      first = piece.first;
      n = piece.n;
      expert = piece.expert;
    } else {
      if (first >= n_rows * p.n_used) return;  // kRows is 1
      const std::int32_t id = p.ids[first];
      if (id < 0 || id >= p.n_experts) return;
      expert = id;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      std::int64_t row = first + r;
      int slot = p.n_used;
      if (p.ids != nullptr) {
        const std::int32_t entry =
            p.groups.entries != nullptr ? p.groups.entries[first + r] : first + r;
        row = entry / p.n_used;
        slot = entry % p.n_used;
      }
      const std::int64_t place = row * n_slots + slot;
      in[r] = p.in + (p.in_by_slot ? place : row) * p.n_in;
      out[r] = p.out + place * p.n_out;
    }
  }
};

template <class C, int kRows, int kWeights>
__global__ void __launch_bounds__(kThreads) down_kernel(Product p) {
  extern __shared__ float4 staged[];
  __shared__ float sums[kWarps * kWeights * kRows];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  wait_for_inputs();
  const PieceRows<kRows> rows(p);
  if (rows.expert < 0) return;
  stage_grid<C>(p.grid, grid);
  const int warp = threadIdx.x / kWarp, slice = warp % p.n_slices;
  const int first = (blockIdx.x * (kWarps / p.n_slices) + warp / p.n_slices) * kWeights;
  Planes planes[kWeights];
  std::int64_t row[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    planes[w] = p.a;
    row[w] = static_cast<std::int64_t>(rows.expert) * p.n_out + min(first + w, p.n_out - 1);
  }
  float sum[kWeights][kRows];
  products<C, kRows, kWeights>(rows.in, p.n_in, planes, row, first < p.n_out, slice, p.n_slices,
                               staged, grid, sums, sum);
  if (slice != 0 || threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    if (first + w >= p.n_out) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows.in[r] != nullptr) rows.out[r][first + w] = sum[w][r];
    }
  }
}

/// kPairs rows of gate with the same rows of up.
template <class C, int kRows, int kPairs>
__global__ void __launch_bounds__(kThreads) gate_up_kernel(Product p) {
  extern __shared__ float4 staged[];
  constexpr int kWeights = 2 * kPairs;
  __shared__ float sums[kWarps * kWeights * kRows];
  __shared__ std::uint64_t grid[C::kGrid ? 256 : 1];
  wait_for_inputs();
  const PieceRows<kRows> rows(p);
  if (rows.expert < 0) return;
  stage_grid<C>(p.grid, grid);
  const int warp = threadIdx.x / kWarp, slice = warp % p.n_slices;
  const int first = (blockIdx.x * (kWarps / p.n_slices) + warp / p.n_slices) * kPairs;
  Planes planes[kWeights];
  std::int64_t row[kWeights];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    planes[w] = w % 2 == 0 ? p.a : p.b;
    row[w] = static_cast<std::int64_t>(rows.expert) * p.n_out + min(first + w / 2, p.n_out - 1);
  }
  float sum[kWeights][kRows];
  products<C, kRows, kWeights>(rows.in, p.n_in, planes, row, first < p.n_out, slice, p.n_slices,
                               staged, grid, sums, sum);
  if (slice != 0 || threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (first + i >= p.n_out) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows.in[r] != nullptr) {
        rows.out[r][first + i] = gated(sum[2 * i][r], sum[2 * i + 1][r], p.clamp);
      }
    }
  }
}

__global__ void sum_kernel(ExpertsArgs a, int d, int n_experts) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= *a.step.n_rows || i >= d) return;
  const float* const partial = a.partial + row * (a.n_used + 1) * d + i;
  float y = 0;
  for (int slot = 0; slot < a.n_used; ++slot) {
    const std::int32_t id = a.ids[row * a.n_used + slot];
    const bool known = id >= 0 && id < n_experts;
    const float p =
        known ? partial[static_cast<std::int64_t>(slot) * d] : __int_as_float(0x7fc00000);
    y += a.weights[row * a.n_used + slot] * p;
  }
  a.y[row * d + i] = y + partial[static_cast<std::int64_t>(a.n_used) * d];
}

std::int32_t slices_for(std::int64_t rows) {
  return rows <= 512 ? 8 : rows <= 1024 ? 4 : rows <= 2048 ? 2 : 1;
}

template <class C, int kRows, int kPairs>
cudaError_t launch_gate_up(const Launch& launch, const Product& p, std::int64_t pieces) {
  const std::size_t bytes = staged_bytes<C, kRows>(p.n_in);
  const auto kernel = gate_up_kernel<C, kRows, kPairs>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  const int tile = kWarps / p.n_slices * kPairs;
  return start(
      launch, kernel,
      dim3(static_cast<unsigned>((p.n_out + tile - 1) / tile), static_cast<unsigned>(pieces)),
      dim3(kThreads), bytes, p);
}

template <class C, int kRows, int kWeights>
cudaError_t launch_down(const Launch& launch, const Product& p, std::int64_t pieces) {
  const std::size_t bytes = staged_bytes<C, kRows>(p.n_in);
  const auto kernel = down_kernel<C, kRows, kWeights>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  const int tile = kWarps / p.n_slices * kWeights;
  return start(
      launch, kernel,
      dim3(static_cast<unsigned>((p.n_out + tile - 1) / tile), static_cast<unsigned>(pieces)),
      dim3(kThreads), bytes, p);
}

struct Shape {
  std::int64_t max_rows;
  std::int32_t n_used;
  std::int32_t n_experts;
  bool grouped;
};

/// gate and up, then down, of the routed or of the shared expert.
cudaError_t run(const Launch& launch, const ExpertsArgs& a, const ExpertWeights& weights,
                const Groups& groups, const Shape& shape, bool shared) {
  Product p;
  p.n_rows = a.step.n_rows;
  p.in = a.x;
  p.out = a.hidden;
  p.ids = shared ? nullptr : a.ids;
  p.groups = groups;
  p.a = planes_of(weights.gate);
  p.b = planes_of(weights.up);
  p.grid = launch.grid_iq2;
  p.n_in = static_cast<std::int32_t>(weights.gate.n_in);
  p.n_out = static_cast<std::int32_t>(weights.gate.n_out);
  p.n_experts = shape.n_experts;
  p.n_used = shape.n_used;
  p.clamp = weights.clamp;
  p.n_slices = slices_for(shared ? p.n_out : std::int64_t{p.n_out} * shape.n_used);
  std::int64_t pieces = shared ? (shape.max_rows + kGroupRows - 1) / kGroupRows
                               : Groups::max_pieces(shape.max_rows, shape.n_used, shape.n_experts);
  if (!shape.grouped) pieces = shared ? shape.max_rows : shape.max_rows * shape.n_used;
  cudaError_t error = cudaErrorInvalidValue;
  with_codec(weights.gate.type, [&]<class C>(C) {
    error = shape.grouped ? launch_gate_up<C, kGroupRows, 1>(launch, p, pieces)
                          : launch_gate_up<C, 1, 1>(launch, p, pieces);
  });
  if (error != cudaSuccess) return error;
  p.in = a.hidden;
  p.out = a.partial;
  p.in_by_slot = true;
  p.a = planes_of(weights.down);
  p.n_in = static_cast<std::int32_t>(weights.down.n_in);
  p.n_out = static_cast<std::int32_t>(weights.down.n_out);
  p.n_slices = slices_for(shared ? p.n_out : std::int64_t{p.n_out} * shape.n_used);
  with_codec(weights.down.type, [&]<class C>(C) {
    error = shape.grouped ? launch_down<C, kGroupRows, 2>(launch, p, pieces)
                          : launch_down<C, 1, 2>(launch, p, pieces);
  });
  return error;
}

bool is_grouped(const ExpertsArgs& args) { return args.step.max_rows > kMaxUngrouped; }

}  // namespace

std::size_t experts_workspace(const ExpertsArgs& args) {
  if (!is_grouped(args)) return 0;
  const std::int64_t pieces =
      Groups::max_pieces(args.step.max_rows, args.n_used, args.routed.gate.n_mats);
  return 256 + static_cast<std::size_t>(args.step.max_rows) * args.n_used * sizeof(std::int32_t) +
         static_cast<std::size_t>(pieces) * sizeof(Piece);
}

cudaError_t experts(const Launch& launch, const ExpertsArgs& args) {
  const Shape shape{args.step.max_rows, args.n_used,
                    static_cast<std::int32_t>(args.routed.gate.n_mats), is_grouped(args)};
  Groups groups;
  if (shape.grouped) {
    groups.n_pieces = reinterpret_cast<std::int32_t*>(launch.workspace);
    groups.entries = groups.n_pieces + 64;
    groups.pieces = reinterpret_cast<Piece*>(groups.entries + shape.max_rows * shape.n_used);
    const std::size_t bytes = 2 * static_cast<std::size_t>(shape.n_experts) * sizeof(std::int32_t);
    if (const cudaError_t error = allow_shared(group_kernel, bytes)) return error;
    const cudaError_t error =
        start(launch, group_kernel, dim3(1), dim3(1024), bytes, args, groups, shape.n_experts);
    if (error != cudaSuccess) return error;
  }
  if (const cudaError_t error = run(launch, args, args.routed, groups, shape, false)) return error;
  if (const cudaError_t error = run(launch, args, args.shared, groups, shape, true)) return error;
  const auto d = static_cast<std::int32_t>(args.routed.gate.n_in);
  return start(
      launch, sum_kernel,
      dim3(static_cast<unsigned>((d + 127) / 128), static_cast<unsigned>(args.step.max_rows)),
      dim3(128), 0, args, d, shape.n_experts);
}

}  // namespace ebb::cuda
