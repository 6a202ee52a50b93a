// group    sorts (row, slot) pairs by expert into pieces of up to kRows rows of one expert
// gate_up  per piece and tile of f: hidden = gated(gate x, up x)
// down     per piece and tile of d: partial = down hidden
// sum      y = sum over slots of weight * partial, in the order of ids, then the shared expert
//
// A step of few rows has no groups: a piece is one pair. An element is summed in the same order
// either way (dot.cuh), so its bits do not depend on that. The shared expert sees every row: its
// pieces are the rows in order.

#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_pieces.cuh"
#include "kernels/cuda/tensor_dot.cuh"

namespace ebb::cuda {
namespace {

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

/// out = gated(out, in) in the slots of one kind of expert, for gates and ups of different types.
__global__ void gated_kernel(Product p) {
  wait_for_inputs();
  const int first = p.ids == nullptr ? p.n_used : 0, slots = p.ids == nullptr ? 1 : p.n_used;
  const std::int64_t n = static_cast<std::int64_t>(*p.n_rows) * slots * p.n_out;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t entry = i / p.n_out, row = entry / slots;
    const std::int64_t at = (row * (p.n_used + 1) + first + entry % slots) * p.n_out + i % p.n_out;
    p.out[at] = gated(p.out[at], p.in[at], p.clamp);
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

struct Shape {
  std::int64_t max_rows;
  std::int32_t n_used;
  std::int32_t n_experts;
  bool grouped;
  float* up;  // [rows, n_used + 1, f] if gates and ups differ in type

  PieceGrid grid(bool shared) const {
    if (!grouped) return {shared ? max_rows : max_rows * n_used, false};
    return {shared ? (max_rows + kGroupRows - 1) / kGroupRows
                   : Groups::max_pieces(max_rows, n_used, n_experts),
            true};
  }
};

/// Which way a product goes depends on the weight alone, never on the number of rows.
bool on_tensor_units(const Weight& weight) {
  return has_tensor_codec(weight.type) && weight.n_in <= kMaxTensorInputs;
}

Product gate_up_product(const Launch& launch, const ExpertsArgs& a, const Groups& groups,
                        const Shape& shape, bool shared) {
  const ExpertWeights& weights = shared ? a.shared : a.routed;
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
  return p;
}

Product down_product(const Launch& launch, const ExpertsArgs& a, const Groups& groups,
                     const Shape& shape, bool shared) {
  const ExpertWeights& weights = shared ? a.shared : a.routed;
  Product p = gate_up_product(launch, a, groups, shape, shared);
  p.in = a.hidden;
  p.out = a.partial;
  p.in_by_slot = true;
  p.a = planes_of(weights.down);
  p.n_in = static_cast<std::int32_t>(weights.down.n_in);
  p.n_out = static_cast<std::int32_t>(weights.down.n_out);
  p.n_slices = slices_for(shared ? p.n_out : std::int64_t{p.n_out} * shape.n_used);
  return p;
}

cudaError_t product(const Launch& launch, const Weight& weight, const Product& p,
                    const PieceGrid& grid, bool gate_up) {
  return on_tensor_units(weight) ? tensor_product(launch, weight.type, p, grid, gate_up)
                                 : plain_product(launch, weight.type, p, grid, gate_up);
}

/// hidden of one kind of expert.
cudaError_t gate_up(const Launch& launch, const ExpertsArgs& a, const Groups& groups,
                    const Shape& shape, bool shared) {
  const ExpertWeights& weights = shared ? a.shared : a.routed;
  const Product p = gate_up_product(launch, a, groups, shape, shared);
  const PieceGrid grid = shape.grid(shared);
  if (weights.gate.type == weights.up.type) return product(launch, weights.gate, p, grid, true);
  cudaError_t error = product(launch, weights.gate, p, grid, false);
  if (error != cudaSuccess) return error;
  Product up = p;
  up.a = p.b;
  up.out = shape.up;
  error = product(launch, weights.up, up, grid, false);
  if (error != cudaSuccess) return error;
  up.in = shape.up;
  up.out = p.out;
  return start(launch, gated_kernel, dim3(static_cast<unsigned>(launch.n_sms * 4)), dim3(256), 0,
               up);
}

bool can_join(const Weight& routed, const Weight& shared, const Shape& shape) {
  return !shape.grouped && on_tensor_units(routed) && shared.type == DType::q8_0;
}

/// hidden, then partial, of all experts.
cudaError_t run(const Launch& launch, const ExpertsArgs& a, const Groups& groups,
                const Shape& shape) {
  const bool same_types =
      a.routed.gate.type == a.routed.up.type && a.shared.gate.type == a.shared.up.type;
  cudaError_t error = cudaSuccess;
  if (same_types && can_join(a.routed.gate, a.shared.gate, shape)) {
    error =
        both_products(launch, a.routed.gate.type, gate_up_product(launch, a, groups, shape, false),
                      shape.grid(false).n, gate_up_product(launch, a, groups, shape, true),
                      shape.grid(true).n, true);
  } else {
    error = gate_up(launch, a, groups, shape, false);
    if (error == cudaSuccess) error = gate_up(launch, a, groups, shape, true);
  }
  if (error != cudaSuccess) return error;
  const Product routed = down_product(launch, a, groups, shape, false);
  const Product shared = down_product(launch, a, groups, shape, true);
  if (can_join(a.routed.down, a.shared.down, shape)) {
    return both_products(launch, a.routed.down.type, routed, shape.grid(false).n, shared,
                         shape.grid(true).n, false);
  }
  error = product(launch, a.routed.down, routed, shape.grid(false), false);
  if (error != cudaSuccess) return error;
  return product(launch, a.shared.down, shared, shape.grid(true), false);
}

bool is_grouped(const ExpertsArgs& args) { return args.step.max_rows > kMaxUngrouped; }

bool mixes_types(const ExpertsArgs& args) {
  return args.routed.gate.type != args.routed.up.type ||
         args.shared.gate.type != args.shared.up.type;
}

/// Where the parts of the workspace begin, bytes.
struct Layout {
  explicit Layout(const ExpertsArgs& args) {
    const std::int64_t rows = args.step.max_rows;
    const auto take = [this](std::int64_t bytes) {
      const std::size_t place = end;
      end += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
      return place;
    };
    if (is_grouped(args)) {
      n_pieces = take(sizeof(std::int32_t));
      entries = take(rows * args.n_used * static_cast<std::int64_t>(sizeof(std::int32_t)));
      pieces = take(Groups::max_pieces(rows, args.n_used, args.routed.gate.n_mats) *
                    static_cast<std::int64_t>(sizeof(Piece)));
    }
    if (mixes_types(args)) {
      up = take(rows * (args.n_used + 1) * args.routed.gate.n_out *
                static_cast<std::int64_t>(sizeof(float)));
    }
  }
  std::size_t n_pieces = 0, entries = 0, pieces = 0, up = 0, end = 0;
};

}  // namespace

std::size_t experts_workspace(const ExpertsArgs& args) { return Layout(args).end; }

cudaError_t experts(const Launch& launch, const ExpertsArgs& args, bool with_sum) {
  const Layout layout(args);
  const Shape shape{args.step.max_rows, args.n_used,
                    static_cast<std::int32_t>(args.routed.gate.n_mats), is_grouped(args),
                    reinterpret_cast<float*>(launch.workspace + layout.up)};
  Groups groups;
  if (shape.grouped) {
    groups.n_pieces = reinterpret_cast<std::int32_t*>(launch.workspace + layout.n_pieces);
    groups.entries = reinterpret_cast<std::int32_t*>(launch.workspace + layout.entries);
    groups.pieces = reinterpret_cast<Piece*>(launch.workspace + layout.pieces);
    const std::size_t bytes = 2 * static_cast<std::size_t>(shape.n_experts) * sizeof(std::int32_t);
    if (const cudaError_t error = allow_shared(group_kernel, bytes)) return error;
    const cudaError_t error =
        start(launch, group_kernel, dim3(1), dim3(1024), bytes, args, groups, shape.n_experts);
    if (error != cudaSuccess) return error;
  }
  const cudaError_t error = run(launch, args, groups, shape);
  if (error != cudaSuccess || !with_sum) return error;
  const auto d = static_cast<std::int32_t>(args.routed.gate.n_in);
  return start(
      launch, sum_kernel,
      dim3(static_cast<unsigned>((d + 127) / 128), static_cast<unsigned>(args.step.max_rows)),
      dim3(128), 0, args, d, shape.n_experts);
}

}  // namespace ebb::cuda
