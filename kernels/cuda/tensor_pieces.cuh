#pragma once

#include "kernels/cuda/tensor_stream.cuh"

// Many pieces of a few columns each, as the experts of a step of several sequences make them.
// Thread blocks stay and go through all tiles of all pieces in turn, so that they fill their tables
// once and none of them ends early. A warp has a tile to itself, with all its terms, and a ring of
// stages that runs on into its next tile: warps never wait for each other.

namespace ebb::cuda {

template <class C, int kTiles>
struct PieceStream {
  using S = Stream<C, kTiles, 1, false>;
  static constexpr int kThreads = S::kThreads, kWarps = kThreads / kWarp, kDepth = S::kDepth;
  static constexpr int kMaxEntries = 8;
  static constexpr int ring = C::kTables ? kTableBytes : 0;
  static constexpr int entries = ring + kWarps * kDepth * S::kStage;
  static constexpr int inverse = entries + kWarps * kMaxEntries * static_cast<int>(sizeof(Entry));
  static constexpr int end = inverse + kWarps * kMaxEntries * 4;
};

template <class C, int kTiles>
__global__ void __launch_bounds__(PieceStream<C, kTiles>::kThreads, C::kTables ? 1 : 2)
    pieces_kernel(const __grid_constant__ TensorProduct p) {
  using P = PieceStream<C, kTiles>;
  constexpr int kStage = P::S::kStage;
  constexpr int kTermStages = kTermValues / C::kBlock;
  extern __shared__ uint4 pieces_memory[];
  auto* const memory = reinterpret_cast<std::uint8_t*>(pieces_memory);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  std::uint8_t* const ring = memory + P::ring + warp * P::kDepth * kStage;
  auto* const entries = reinterpret_cast<Entry*>(memory + P::entries) + warp * P::kMaxEntries;
  auto* const inverse = reinterpret_cast<float*>(memory + P::inverse) + warp * P::kMaxEntries;
  if constexpr (C::kTables) fill_tables(p.grid_iq2, reinterpret_cast<std::uint64_t*>(memory));
  wait_for_inputs();
  const Pieces& pieces = p.pieces;
  const TensorPart& part = p.parts[0];
  const int n_tiles = part.tiles_end;
  const int n_units = *pieces.n_pieces * n_tiles;
  const int n_blocks = p.n_in / C::kBlock, per_vector = p.columns.per_vector;
  const int step = static_cast<int>(gridDim.x) * P::kWarps;
  if constexpr (C::kTables) __syncthreads();

  int next_unit = static_cast<int>(blockIdx.x) * P::kWarps + warp, next_block = 0, next_slot = 0;
  const int first_unit = next_unit;
  TileSource<C> next[kTiles];
  const auto row_of = [&](int tile, int k) {
    return tile_row(p.gated ? tile : tile * kTiles + k, part.n_out);
  };
  const auto open_next = [&] {
    if (next_unit >= n_units) return;
    const int matrix = pieces.pieces[next_unit / n_tiles].expert;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      next[k].open(
          k == 1 && p.gated ? part.b : part.a,
          (static_cast<std::int64_t>(matrix) * part.n_out + row_of(next_unit % n_tiles, k)) *
              n_blocks,
          n_blocks, lane);
    }
  };
  const auto issue = [&] {
    if (next_unit < n_units) {
      std::uint8_t* const stage = ring + next_slot * kStage;
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        issue_stage<C>(next[k], next_block, n_blocks, stage + k * kStageBytes<C>, lane);
      }
    }
    commit_copies();
    if (++next_slot == P::kDepth) next_slot = 0;
    if (++next_block == n_blocks) {
      next_block = 0;
      next_unit += step;
      open_next();
    }
  };
  open_next();
#pragma unroll 1
  for (int i = 0; i < P::kDepth - 1; ++i) issue();

  const std::uint32_t tables = tables_of_lane(memory);
  int slot = 0;
  for (int unit = first_unit; unit < n_units; unit += step) {
    const Piece piece = pieces.pieces[unit / n_tiles];
    const int tile = unit % n_tiles;
    __syncwarp();
    if (lane < piece.n) {
      const int entry = pieces.entries[piece.first + lane];
      const int row = entry / pieces.n_used, used = entry % pieces.n_used;
      const int vector = row * pieces.vector_stride + used * pieces.vector_slot;
      entries[lane] = {vector, row * pieces.place_stride + used};
      inverse[lane] = p.columns.inverse[vector];
    }
    __syncwarp();
    const bool there = g < piece.n * per_vector;
    const std::int64_t column =
        there ? static_cast<std::int64_t>(entries[g / per_vector].vector) * per_vector +
                    g % per_vector
              : 0;
    const uint4* const x = reinterpret_cast<const uint4*>(p.columns.values + column * p.n_in) + t;
    const uint2* const x_sums =
        reinterpret_cast<const uint2*>(p.columns.sums + column * (p.n_in / kSumValues)) + t;
    float sum[kTiles][4] = {};
    for (int b = 0; b < p.n_in / kTermValues; ++b) {
      typename C::Row rows[kTiles][2];
      float term[kTiles][4] = {};
#pragma unroll 1
      for (int q = 0; q < kTermStages; ++q) {
        wait_for_copies<P::kDepth - 2>();
        __syncwarp();
        issue();
        const std::uint8_t* const stage = ring + slot * kStage;
        if (++slot == P::kDepth) slot = 0;
        bool odd[kTiles];
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          odd[k] = is_odd(piece.expert, part.n_out, row_of(tile, k) + g, n_blocks, b);
        }
        add_stage<C, kTiles, C::kTables ? 4 : 8>(
            stage, odd, x + b * (kTermValues / 8) + q * (C::kBlock / 8), there, tables, rows, term);
      }
      uint2 value = make_uint2(0, 0);
      if constexpr (C::kMinus) {
        if (there) value = x_sums[b * 4];
      }
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        finish_term<C>(rows[k], value, term[k]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[k][i] += term[k][i];
      }
    }
    if (kTiles == 2 && p.gated) {
      store_sums<kTiles>(sum, part, row_of(tile, 0), 0, piece.n, per_vector, p.clamp, entries,
                         inverse, lane);
    } else {
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        const float one[1][4] = {{sum[k][0], sum[k][1], sum[k][2], sum[k][3]}};
        store_sums<1>(one, part, row_of(tile, k), 0, piece.n, per_vector, p.clamp, entries, inverse,
                      lane);
      }
    }
  }
  wait_for_copies<0>();
}

}  // namespace ebb::cuda
