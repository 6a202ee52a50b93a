#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/tensor_diagonal.cuh"

// What the two kernels of experts_row.cu share: their arguments, their places in shared memory, and
// how a warp's terms meet.

namespace ebb::cuda {

inline constexpr int kRowWarps = 16;
inline constexpr int kRowThreads = kRowWarps * kWarp;
inline constexpr int kMaxSlots = 8;  // experts of a row, the shared one included
inline constexpr int kSlotWarps = kRowWarps / kMaxSlots;

using Gates = TensorCodec<DType::iq2_xxs>;
using Downs = TensorCodec<DType::q2_k>;
using Dense = TensorCodec<DType::q8_0>;
static_assert(Gates::kBlock == kTermValues && Downs::kBlock == kTermValues);
inline constexpr int kDenseStages = kTermValues / Dense::kBlock;

struct RowExperts {
  const std::int32_t* n_rows = nullptr;
  const float* x = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  float* hidden = nullptr;
  float* y = nullptr;
  Planes gate, up, down, shared_gate, shared_up, shared_down;
  const std::uint64_t* grid_iq2 = nullptr;
  std::int32_t n_used = 0, n_experts = 0, d = 0, f = 0;
  std::int32_t per_vector = 1;
  float clamp = 0, shared_clamp = 0;
  bool x_settled = false;
};

/// Parts of the dynamic shared memory, bytes from its begin.
struct GateMemory {
  static constexpr int kSlot = 2 * kStageBytes<Gates>;  // of gate and of up
  static constexpr int kDepth = 3;
  static_assert(kSlot >= kStageBytes<Dense>);
  int ring = kTableBytes, values, dense_values, terms, largest, end;

  __host__ __device__ GateMemory(int n_slots, int d, int per_vector) {
    values = ring + kRowWarps * kDepth * kSlot;
    dense_values = values + per_vector * d * 2;
    terms = dense_values + per_vector * d * 2;
    largest = terms + n_slots * (d / kTermValues) * 2 * kTileRows * 8;
    end = largest + kRowWarps * 4;
  }
};

struct DownMemory {
  static constexpr int kSlot =
      kStageBytes<Downs> > kStageBytes<Dense> ? kStageBytes<Downs> : kStageBytes<Dense>;
  static constexpr int kDepth = 4;
  int ring = 0, values, sums, terms, products, largest, end;

  __host__ __device__ DownMemory(int n_slots, int f, int per_vector) {
    const int tiles = kRowWarps / (f / kTermValues);
    values = ring + kRowWarps * kDepth * kSlot;
    sums = values + n_slots * per_vector * f * 2;
    terms = sums + n_slots * per_vector * (f / kSumValues) * 2;
    products = terms + n_slots * tiles * (f / kTermValues) * kTileRows * 8;
    largest = products + n_slots * tiles * kTileRows * 4;
    end = largest + kRowWarps * 4;
  }
};

/// Puts the lane's sums of a term where they meet: rows g and g + 8, a pair of columns each.
__device__ __forceinline__ void put_term(float2* to, const float (&term)[4]) {
  const int lane = threadIdx.x % kWarp;
  if (lane % 4 != 0) return;  // columns 2 and on
  to[lane / 4] = make_float2(term[0], term[1]);
  to[lane / 4 + 8] = make_float2(term[2], term[3]);
}

/// The terms, `stride` apart, added in order; columns of one vector added up.
__device__ __forceinline__ float add_terms(const float2* terms, int n, int stride, int per_vector) {
  float2 sum = make_float2(0, 0);
#pragma unroll 4
  for (int b = 0; b < n; ++b) {
    const float2 term = terms[b * stride];
    sum.x += term.x;
    sum.y += term.y;
  }
  return per_vector == 2 ? sum.x + sum.y : sum.x;
}

__device__ __forceinline__ const uint4* lane_column(const __half* values, int n_in, bool there) {
  const int lane = threadIdx.x % kWarp;
  return reinterpret_cast<const uint4*>(values + (there ? lane / 4 : 0) * n_in) + lane % 4;
}

}  // namespace ebb::cuda
