// The experts of one row in two kernels. All experts see the same row, so a thread block takes the
// same rows of every matrix, the shared expert's among them, and all blocks have the same work. A
// warp takes one term of them all (256 columns); the terms meet once, at the end, and are added in
// order. The loops are few and short: their code has to be fetched anew for every layer.
//
// What does not depend on the kernel before is done before it has ended: the shared expert's part
// of the gates, the first weights on their way.

#include <algorithm>

#include "kernels/cuda/experts_row.cuh"
#include "kernels/cuda/experts_row.h"

namespace ebb::cuda {
namespace {

__global__ void __launch_bounds__(kRowThreads, 1)
    gates_kernel(const __grid_constant__ RowExperts p) {
  extern __shared__ uint4 row_memory[];
  auto* const memory = reinterpret_cast<std::uint8_t*>(row_memory);
  const GateMemory layout(p.n_used + 1, p.d, p.per_vector);
  const int warp = known_alike(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = threadIdx.x % kWarp;
  const int n_terms = p.d / kTermValues, term_of_warp = warp;
  const bool works = term_of_warp < n_terms;
  const int first_row = tile_row(static_cast<int>(blockIdx.x), p.f);
  std::uint8_t* const ring = memory + layout.ring + warp * GateMemory::kDepth * GateMemory::kSlot;
  auto* const terms = reinterpret_cast<float2*>(memory + layout.terms);
  const auto place = [&](int slot, int matrix) {
    return terms + ((slot * n_terms + term_of_warp) * 2 + matrix) * kTileRows;
  };
  const auto slot_at = [&](int i) { return ring + i % GateMemory::kDepth * GateMemory::kSlot; };

  // Stages of the shared expert: of gate, then of up.
  const auto issue_dense = [&](int i) {
    if (works && i < 2 * kDenseStages) {
      const int blocks = p.d / Dense::kBlock;
      TileSource<Dense> source;
      source.open(0, i < kDenseStages ? p.shared_gate : p.shared_up,
                  static_cast<std::int64_t>(first_row) * blocks, blocks, lane);
      issue_stage(source, term_of_warp * kDenseStages + i % kDenseStages, blocks, slot_at(i), lane);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < GateMemory::kDepth; ++i) issue_dense(i);
  fill_tables(p.grid_iq2, memory);
  const bool has_row = of_step(p.n_rows) > 0;
  if (!p.x_settled) wait_for_inputs();

  // x, split in both orders.
  auto* const values = reinterpret_cast<__half*>(memory + layout.values);
  auto* const dense_values = reinterpret_cast<__half*>(memory + layout.dense_values);
  auto* const largest_of_warp = reinterpret_cast<float*>(memory + layout.largest);
  constexpr int kQuads = kRowWarps * kTermValues / 4 / kRowThreads;
  float4 x[kQuads];
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    const int q = threadIdx.x + k * kRowThreads;
    // Past the L1 cache, which may hold what was there before.
    x[k] = q < p.d / 4 ? __ldcg(reinterpret_cast<const float4*>(p.x) + q) : make_float4(0, 0, 0, 0);
    largest = larger(largest, largest_magnitude(x[k]));
  }
  largest = warp_larger(largest);
  if (lane == 0) largest_of_warp[warp] = largest;
  __syncthreads();
  const ColumnScale scale(warp_larger(largest_of_warp[lane % kRowWarps]), Gates::kOrder);
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    const int q = threadIdx.x + k * kRowThreads;
    if (q >= p.d / 4) continue;
    split_quad(x[k], scale.factor, 4 * q, p.d, Gates::kOrder, p.per_vector, values);
    split_quad(x[k], scale.factor, 4 * q, p.d, Dense::kOrder, p.per_vector, dense_values);
  }
  __syncthreads();

  const bool there = lane / 4 < p.per_vector;
  {
    const uint4* const column =
        lane_column(dense_values, p.d, there) + term_of_warp * (kTermValues / 8);
    Term<Dense> term[1];
    LaneValues<Dense> lane_values;
#pragma unroll 1
    for (int i = 0; i < 2 * kDenseStages; ++i) {
      wait_for_copies<GateMemory::kDepth - 1>();
      __syncwarp();
      const int stage = i % kDenseStages;
      typename Dense::Row rows[1][2];
      if (works) {
        add_stage<Dense, 1>(slot_at(i), {false}, OctetPlaces{column + stage * (Dense::kBlock / 8)},
                            there, {}, lane_values, rows, term);
      }
      if (stage == kDenseStages - 1) {
        if (works) put_term(place(p.n_used, i / kDenseStages), term[0].sum);
        term[0] = {};
      }
      __syncwarp();
      issue_dense(i + GateMemory::kDepth);
    }
  }

  if (p.x_settled) wait_for_inputs();
  if (!has_row) {
    wait_for_copies<0>();
    return;
  }
  const int id_of_lane = lane < p.n_used ? p.ids[lane] : 0;
  const auto is_known = [&](int id) { return id >= 0 && id < p.n_experts; };
  TileSource<Gates, 2> first_expert;
  first_expert.open(0, p.gate, static_cast<std::int64_t>(first_row) * n_terms, n_terms, lane);
  first_expert.open(1, p.up, static_cast<std::int64_t>(first_row) * n_terms, n_terms, lane);
  const auto issue = [&](int slot) {
    if (works && slot < p.n_used) {
      const int id = __shfl_sync(kAllLanes, id_of_lane, slot);
      const int rows = (is_known(id) ? id : 0) * p.f;
      issue_stage(first_expert.rows_on(rows, n_terms), term_of_warp, n_terms, slot_at(slot), lane);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < GateMemory::kDepth; ++i) issue(i);
  const Tables tables = tables_at(memory);
  const int t = lane % 4, own_row = lane / 4 + 8 * (t % 2);
  const float second = second_column(p.per_vector);
#pragma unroll 1
  for (int slot = 0; slot < p.n_used; ++slot) {
    wait_for_copies<GateMemory::kDepth - 1>();
    __syncwarp();
    if (works) {
      const int id = __shfl_sync(kAllLanes, id_of_lane, slot);
      const bool odd =
          is_odd(is_known(id) ? id : 0, p.f, first_row + lane / 4, n_terms, term_of_warp);
      auto* const to = reinterpret_cast<float*>(place(slot, t / 2) + own_row);
      const auto add = [&]<int kColumns>() {
        diagonal_terms<Gates, ChunkPlaces, kColumns>(
            slot_at(slot), {odd, odd},
            [&](int c) { return values + c * p.d + term_of_warp * kTermValues; }, tables, second,
            [&](int c, float term) { to[c] = term; });
      };
      if (p.per_vector == 1) {
        add.template operator()<1>();
      } else {
        add.template operator()<2>();
      }
    }
    __syncwarp();
    issue(slot + GateMemory::kDepth);
  }
  wait_for_copies<0>();
  __syncthreads();
  const int slot = static_cast<int>(threadIdx.x) / kTileRows;
  if (slot > p.n_used) return;
  if (slot < p.n_used && !is_known(p.ids[slot])) return;
  const int row = static_cast<int>(threadIdx.x) % kTileRows;
  const float2* const own = terms + slot * n_terms * 2 * kTileRows + row;
  const float gate = add_terms(own, n_terms, 2 * kTileRows, p.per_vector) * scale.inverse;
  const float up = add_terms(own + kTileRows, n_terms, 2 * kTileRows, p.per_vector) * scale.inverse;
  p.hidden[static_cast<std::int64_t>(slot) * p.f + first_row + row] =
      gated(gate, up, slot < p.n_used ? p.clamp : p.shared_clamp);
}

/// Of the vector of a slot, the last of which is the shared expert's.
__device__ __forceinline__ ColumnScale slot_scale(const float* largest_of_warp, int slot,
                                                  int n_used) {
  float largest = largest_of_warp[slot * kSlotWarps];
#pragma unroll
  for (int i = 1; i < kSlotWarps; ++i) {
    largest = larger(largest, largest_of_warp[slot * kSlotWarps + i]);
  }
  return {largest, slot == n_used ? Dense::kOrder : Downs::kOrder};
}

/// Also adds the experts up, in order.
__global__ void __launch_bounds__(kRowThreads, 1)
    downs_kernel(const __grid_constant__ RowExperts p) {
  extern __shared__ uint4 row_memory[];
  auto* const memory = reinterpret_cast<std::uint8_t*>(row_memory);
  const int n_slots = p.n_used + 1;
  const DownMemory layout(n_slots, p.f, p.per_vector);
  const int warp = known_alike(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = threadIdx.x % kWarp;
  const int n_terms = p.f / kTermValues, n_tiles = kRowWarps / n_terms;
  const int term_of_warp = warp % n_terms, tile = warp / n_terms;
  const bool works = tile < n_tiles;
  const int first_row = tile_row(static_cast<int>(blockIdx.x) * n_tiles + tile, p.d);
  std::uint8_t* const ring = memory + layout.ring + warp * DownMemory::kDepth * DownMemory::kSlot;
  const auto slot_at = [&](int i) { return ring + i % DownMemory::kDepth * DownMemory::kSlot; };
  const auto is_known = [&](int id) { return id >= 0 && id < p.n_experts; };
  // The kernel of the gates has waited for the ids before this one could begin.
  const int id_of_lane = lane < p.n_used ? __ldcg(p.ids + lane) : 0;

  TileSource<Downs> first_down;  // of expert 0
  first_down.open(0, p.down, static_cast<std::int64_t>(first_row) * n_terms, n_terms, lane);
  // The shared expert's stages, then one of each routed expert.
  const auto issue = [&](int i) {
    if (works && i < kDenseStages) {
      const int blocks = p.f / Dense::kBlock;
      TileSource<Dense> source;
      source.open(0, p.shared_down, static_cast<std::int64_t>(first_row) * blocks, blocks, lane);
      issue_stage(source, term_of_warp * kDenseStages + i, blocks, slot_at(i), lane);
    } else if (works && i < kDenseStages + p.n_used) {
      const int id = __shfl_sync(kAllLanes, id_of_lane, i - kDenseStages);
      issue_stage(first_down.rows_on((is_known(id) ? id : 0) * p.d, n_terms), term_of_warp, n_terms,
                  slot_at(i), lane);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < DownMemory::kDepth; ++i) issue(i);
  const bool has_row = of_step(p.n_rows) > 0;
  wait_for_inputs();
  if (!has_row) {
    wait_for_copies<0>();
    return;
  }

  // Two warps split an expert's vector, which they read twice, the second time from the L1 cache.
  auto* const values = reinterpret_cast<__half*>(memory + layout.values);
  auto* const sums = reinterpret_cast<__half*>(memory + layout.sums);
  auto* const largest_of_warp = reinterpret_cast<float*>(memory + layout.largest);
  const int vector_values = p.per_vector * p.f, vector_sums = vector_values / kSumValues;
  {
    const int slot = warp / kSlotWarps, first = warp % kSlotWarps * kWarp + lane;
    const auto* const x =
        reinterpret_cast<const float4*>(p.hidden + static_cast<std::int64_t>(slot) * p.f);
    float largest = 0;
    if (slot < n_slots) {
#pragma unroll 8
      for (int q = first; q < p.f / 4; q += kSlotWarps * kWarp) {
        largest = larger(largest, largest_magnitude(x[q]));
      }
    }
    largest = warp_larger(largest);
    if (lane == 0) largest_of_warp[warp] = largest;
    __syncthreads();
    if (slot < n_slots) {
      const ColumnScale scale = slot_scale(largest_of_warp, slot, p.n_used);
      __half* const to = values + slot * vector_values;
      if (slot == p.n_used) {
#pragma unroll 2
        for (int q = first; q < p.f / 4; q += kSlotWarps * kWarp) {
          split_quad(x[q], scale.factor, 4 * q, p.f, Dense::kOrder, p.per_vector, to);
        }
      } else {
#pragma unroll 4
        for (int q = first; q < p.f / 4; q += kSlotWarps * kWarp) {  // whole warps have a q
          const float4 v = x[q];
          split_quad(v, scale.factor, 4 * q, p.f, Downs::kOrder, p.per_vector, to);
          split_sum(v, scale.factor, 4 * q, p.f, Downs::kOrder, p.per_vector,
                    sums + slot * vector_sums);
        }
      }
    }
  }
  __syncthreads();

  auto* const terms = reinterpret_cast<float2*>(memory + layout.terms);
  const auto place = [&](int slot) {
    return terms + ((slot * n_tiles + tile) * n_terms + term_of_warp) * kTileRows;
  };
  const bool there = lane / 4 < p.per_vector;
  const int column_at = term_of_warp * (kTermValues / 8);
  Term<Dense> dense_term[1];
  LaneValues<Dense> dense_values;
#pragma unroll 1
  for (int i = 0; i < kDenseStages; ++i) {
    wait_for_copies<DownMemory::kDepth - 1>();
    __syncwarp();
    typename Dense::Row rows[1][2];
    if (works) {
      add_stage<Dense, 1>(slot_at(i), {false},
                          OctetPlaces{lane_column(values + p.n_used * vector_values, p.f, there) +
                                      column_at + i * (Dense::kBlock / 8)},
                          there, {}, dense_values, rows, dense_term);
    }
    __syncwarp();
    issue(i + DownMemory::kDepth);
  }
  if (works) put_term(place(p.n_used), dense_term[0].sum);
  LaneValues<Downs> lane_values;
#pragma unroll 1
  for (int slot = 0; slot < p.n_used; ++slot) {
    wait_for_copies<DownMemory::kDepth - 1>();
    __syncwarp();
    if (works) {
      typename Downs::Row rows[1][2];
      Term<Downs> term_of_slot[1];
      uint2 sum = make_uint2(0, 0);
      if (there) {
        const __half* const column = sums + slot * vector_sums + lane / 4 * (p.f / kSumValues);
        sum = reinterpret_cast<const uint2*>(column)[term_of_warp * 4 + lane % 4];
      }
      add_stage<Downs, 1>(
          slot_at(slot + kDenseStages), {false},
          OctetPlaces{lane_column(values + slot * vector_values, p.f, there) + column_at}, there,
          {}, lane_values, rows, term_of_slot);
      float term[4];
      finish_term<Downs>(rows[0], sum, second_column(p.per_vector), term_of_slot[0], term);
      put_term(place(slot), term);
    }
    __syncwarp();
    issue(slot + kDenseStages + DownMemory::kDepth);
  }
  wait_for_copies<0>();
  __syncthreads();

  auto* const products = reinterpret_cast<float*>(memory + layout.products);
  const int block_rows = n_tiles * kTileRows;
  for (int at = threadIdx.x; at < n_slots * block_rows; at += kRowThreads) {
    const int slot = at / block_rows, row = at % block_rows;
    products[at] = add_terms(terms + (slot * n_tiles + row / kTileRows) * n_terms * kTileRows +
                                 row % kTileRows,
                             n_terms, kTileRows, p.per_vector) *
                   slot_scale(largest_of_warp, slot, p.n_used).inverse;
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row >= block_rows) return;
  float y = 0;
  for (int slot = 0; slot < p.n_used; ++slot) {
    const float product =
        is_known(p.ids[slot]) ? products[slot * block_rows + row] : __int_as_float(0x7fc00000);
    y += p.weights[slot] * product;
  }
  const int tile_of_row = static_cast<int>(blockIdx.x) * n_tiles + row / kTileRows;
  p.y[tile_row(tile_of_row, p.d) + row % kTileRows] = y + products[p.n_used * block_rows + row];
}

}  // namespace

bool experts_row_suits(const ExpertsArgs& args, std::size_t largest_shared) {
  const ExpertWeights& routed = args.routed;
  const ExpertWeights& shared = args.shared;
  const std::int64_t d = routed.gate.n_in, f = routed.gate.n_out;
  return args.step.max_rows == 1 && args.n_used < kMaxSlots && routed.gate.type == DType::iq2_xxs &&
         routed.up.type == DType::iq2_xxs && routed.down.type == DType::q2_k &&
         shared.gate.type == DType::q8_0 && shared.up.type == DType::q8_0 &&
         shared.down.type == DType::q8_0 && d % kTermValues == 0 && d <= kRowWarps * kTermValues &&
         f % kTermValues == 0 && f <= 4 * kRowThreads &&
         static_cast<std::size_t>(
             std::max(GateMemory(args.n_used + 1, static_cast<int>(d), 2).end,
                      DownMemory(args.n_used + 1, static_cast<int>(f), 2).end)) <= largest_shared;
}

cudaError_t experts_row(const Launch& launch, const ExpertsArgs& args, Precision precision,
                        bool x_settled) {
  RowExperts p;
  p.n_rows = args.step.n_rows;
  p.x = args.x;
  p.ids = args.ids;
  p.weights = args.weights;
  p.hidden = args.hidden;
  p.y = args.y;
  p.gate = planes_of(args.routed.gate);
  p.up = planes_of(args.routed.up);
  p.down = planes_of(args.routed.down);
  p.shared_gate = planes_of(args.shared.gate);
  p.shared_up = planes_of(args.shared.up);
  p.shared_down = planes_of(args.shared.down);
  p.grid_iq2 = launch.grid_iq2;
  p.n_used = args.n_used;
  p.n_experts = static_cast<std::int32_t>(args.routed.gate.n_mats);
  p.d = static_cast<std::int32_t>(args.routed.gate.n_in);
  p.f = static_cast<std::int32_t>(args.routed.gate.n_out);
  p.per_vector = columns_per_vector(precision);
  p.clamp = args.routed.clamp;
  p.shared_clamp = args.shared.clamp;
  p.x_settled = x_settled && launch.early_start;
  const auto blocks = [](int rows, int of_block) {
    return dim3(static_cast<unsigned>((rows + of_block - 1) / of_block));
  };
  const GateMemory gates(p.n_used + 1, p.d, p.per_vector);
  const DownMemory downs(p.n_used + 1, p.f, p.per_vector);
  const int down_rows = kRowWarps / (p.f / kTermValues) * kTileRows;
  cudaError_t error = allow_shared(gates_kernel, static_cast<std::size_t>(gates.end));
  if (error != cudaSuccess) return error;
  error = start(launch, gates_kernel, blocks(p.f, kTileRows), dim3(kRowThreads),
                static_cast<std::size_t>(gates.end), p);
  if (error != cudaSuccess) return error;
  error = allow_shared(downs_kernel, static_cast<std::size_t>(downs.end));
  if (error != cudaSuccess) return error;
  return start(launch, downs_kernel, blocks(p.d, down_rows), dim3(kRowThreads),
               static_cast<std::size_t>(downs.end), p);
}

}  // namespace ebb::cuda
