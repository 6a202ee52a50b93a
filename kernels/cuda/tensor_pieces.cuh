#pragma once

#include "kernels/cuda/tensor_diagonal.cuh"
#include "kernels/cuda/tensor_stream.cuh"

// Many pieces of a few columns each, as the experts of a step of several sequences make them.
// Thread blocks stay and go through all tiles of all pieces, so that they fill their tables once
// and none of them ends early. A warp has a tile to itself, with all its terms, and a ring of
// stages that runs on into its next tile: warps never wait for each other.
//
// A block has a range of tiles, which mostly are those of one or two pieces. The columns of these
// are copied to shared memory, if they fit: loads from global memory would return only after the
// copies of weights that were asked for before them.

namespace ebb::cuda {

template <class C, int kTiles>
struct PieceStream {
  using S = Stream<C, kTiles, 1, false>;
  // Fewer threads have more registers each. Numbers of threads and of stages are the fastest that
  // were measured (docs/performance.md).
  static constexpr int kThreads = C::kDigits ? 320 : C::kDiagonal ? 384 : S::kThreads;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kDepth = C::kTables ? 3 : C::kDigits ? 2 : S::kDepth;
  static constexpr int kMaxEntries = kFewColumns;  // of a piece, if a row is one column
  static constexpr int kHeldPieces = 2;
  static constexpr int kPlaces = kHeldPieces + kWarps;  // of pieces that are in work
  static constexpr int ring = C::kTables ? kTableBytes : 0;
  static constexpr int entries = ring + kWarps * kDepth * S::kStage;
  static constexpr int inverse = entries + kPlaces * kMaxEntries * static_cast<int>(sizeof(Entry));
  static constexpr int pieces = inverse + kPlaces * kMaxEntries * 4;
  static constexpr int range = pieces + kHeldPieces * static_cast<int>(sizeof(uint4));
  static constexpr int columns = range + static_cast<int>(sizeof(uint4));

  /// From one held column to the next, bytes: of its values, padded so that those that lanes read
  /// at a time stand in different banks, and of its sums.
  static __host__ __device__ constexpr int value_stride(int n_in) { return n_in * 2 + 64; }
  static __host__ __device__ constexpr int sum_stride(int n_in) {
    return C::kMinus ? n_in / kSumValues * 2 : 0;
  }
};

/// Copies a piece's entries, and what undoes the scales of its vectors; by one warp.
__device__ __forceinline__ void copy_entries(const TensorProduct& p, const Piece& piece, int lane,
                                             Entry* entries, float* inverse) {
  if (lane >= piece.n) return;
  const int entry = p.pieces.entries[piece.first + lane];
  const int row = entry / p.pieces.n_used, used = entry % p.pieces.n_used;
  const int vector = row * p.pieces.vector_stride + used * p.pieces.vector_slot;
  entries[lane] = {vector, row * p.pieces.place_stride + used};
  inverse[lane] = p.columns.inverse[vector];
}

/// Where a block's share of something begins.
__device__ __forceinline__ int block_share(std::int64_t all, unsigned block) {
  return static_cast<int>(all * block / gridDim.x);
}

/// range[0] and range[1]: first tile of the block, and of the next one, where pieces cost what
/// their columns do; a tile's number is that of its piece times n_tiles and its own. For all
/// threads.
__device__ __forceinline__ void find_range(const Pieces& pieces, int n_pieces, int n_tiles,
                                           int per_vector, int* range) {
  const std::int64_t cost = static_cast<std::int64_t>(pieces.n_pieces[1]) * n_tiles;
#pragma unroll 1
  for (int i = threadIdx.x; i < n_pieces; i += static_cast<int>(blockDim.x)) {
    const Piece piece = pieces.pieces[i];
    const int of_tile = piece_cost(piece.n * per_vector);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int from = block_share(cost, blockIdx.x + k) - piece.cost_before * n_tiles;
      if (from < 0 || (from >= of_tile * n_tiles && i + 1 < n_pieces)) continue;
      range[k] = i * n_tiles + min((from + of_tile - 1) / of_tile, n_tiles);
    }
  }
  __syncthreads();
}

/// Up to `max_held` columns are held.
template <class C, int kTiles>
__global__ void __launch_bounds__(PieceStream<C, kTiles>::kThreads, C::kTables ? 1 : 2)
    pieces_kernel(const __grid_constant__ TensorProduct p, int max_held) {
  using P = PieceStream<C, kTiles>;
  using Many = typename ManyColumns<C>::Codec;
  constexpr int kStage = P::S::kStage;
  constexpr int kTermStages = kTermValues / C::kBlock;
  extern __shared__ uint4 pieces_memory[];
  auto* const memory = reinterpret_cast<std::uint8_t*>(pieces_memory);
  const int warp = known_alike(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  std::uint8_t* const ring = memory + P::ring + warp * P::kDepth * kStage;
  auto* const all_entries = reinterpret_cast<Entry*>(memory + P::entries);
  auto* const all_inverse = reinterpret_cast<float*>(memory + P::inverse);
  auto* const held_pieces = reinterpret_cast<Piece*>(memory + P::pieces);
  if constexpr (C::kTables) fill_tables(p.grid_iq2, memory);
  wait_for_inputs();
  const Pieces& pieces = p.pieces;
  const TensorPart& part = p.parts[0];
  const int n_tiles = part.tiles_end;
  const int n_blocks = p.n_in / C::kBlock, per_vector = p.columns.per_vector;
  // The block's units: tiles of pieces, one piece after another.
  const int n_units = known_alike(*pieces.n_pieces) * n_tiles;
  if (n_units == 0) return;
  int begin = 0, end = 0;
  if constexpr (C::kDiagonal) {
    auto* const range = reinterpret_cast<int*>(memory + P::range);
    find_range(pieces, n_units / n_tiles, n_tiles, per_vector, range);
    begin = known_alike(range[0]);
    end = known_alike(range[1]);
  } else {
    begin = block_share(n_units, blockIdx.x);
    end = block_share(n_units, blockIdx.x + 1);
  }
  if (begin == end) return;
  const int first_piece = begin / n_tiles;

  // The first pieces: a warp copies a column, or the entries of a piece.
  const int value_stride = P::value_stride(p.n_in), sum_stride = P::sum_stride(p.n_in);
  std::uint8_t* const held_values = memory + P::columns;
  std::uint8_t* const held_sums = held_values + max_held * value_stride;
  int held_end[P::kHeldPieces] = {};  // of held columns, as far as this piece
#pragma unroll
  for (int i = 0; i < P::kHeldPieces; ++i) {
    if (i > 0) held_end[i] = held_end[i - 1];
    if ((first_piece + i) * n_tiles >= end) continue;
    const Piece piece = pieces.pieces[first_piece + i];
    const int n_columns = known_alike(piece.n) * per_vector, held = held_end[i];
    if (warp == i) {
      copy_entries(p, piece, lane, all_entries + i * P::kMaxEntries,
                   all_inverse + i * P::kMaxEntries);
      if (lane == 0) held_pieces[i] = piece;
    }
    if (held + n_columns > max_held) continue;
    held_end[i] += n_columns;
    for (int c = (warp + P::kWarps - 1) % P::kWarps; c < n_columns; c += P::kWarps) {
      const int entry = pieces.entries[piece.first + c / per_vector];
      const int vector =
          entry / pieces.n_used * pieces.vector_stride + entry % pieces.n_used * pieces.vector_slot;
      const std::int64_t column = static_cast<std::int64_t>(vector) * per_vector + c % per_vector;
      const auto* const values = reinterpret_cast<const uint4*>(p.columns.values + column * p.n_in);
      auto* const to = reinterpret_cast<uint4*>(held_values + (held + c) * value_stride);
      for (int at = lane; at < p.n_in / 8; at += kWarp) {
        copy_async<16>(to + (C::kDiagonal ? held_place(at) : at), values + at);
      }
      if constexpr (C::kMinus) {
        const auto* const sums =
            reinterpret_cast<const uint4*>(p.columns.sums + column * (p.n_in / kSumValues));
        auto* const sums_to = reinterpret_cast<uint4*>(held_sums + (held + c) * sum_stride);
        for (int at = lane; at < p.n_in / kSumValues / 8; at += kWarp) {
          copy_async<16>(sums_to + at, sums + at);
        }
      }
    }
  }
  commit_copies();

  // What is asked for next.
  int next_unit = begin + warp, next_block = 0, next_slot = 0;
  TileSource<C, kTiles> next;
  const auto row_of = [&](int tile, int k) {
    return tile_row(p.gated ? tile : tile * kTiles + k, part.n_out);
  };
  const auto open_next = [&](const auto& piece_at) {
    if (next_unit >= end) return;
    const int matrix = piece_at(next_unit / n_tiles).expert;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      next.open(k, k == 1 && p.gated ? part.b : part.a,
                (static_cast<std::int64_t>(matrix) * part.n_out + row_of(next_unit % n_tiles, k)) *
                    n_blocks,
                n_blocks, lane);
    }
  };
  const auto stored_piece = [&](int index) { return pieces.pieces[index]; };
  const auto piece_at = [&](int index) {
    return index - first_piece < P::kHeldPieces ? held_pieces[index - first_piece]
                                                : pieces.pieces[index];
  };
  const auto issue = [&](const auto& piece_at) {
    if (next_unit < end) {
      issue_stage(next, next_block, n_blocks, ring + next_slot * kStage, lane);
    }
    commit_copies();
    if (++next_slot == P::kDepth) next_slot = 0;
    if (++next_block == n_blocks) {
      next_block = 0;
      next_unit += P::kWarps;
      open_next(piece_at);
    }
  };
  open_next(stored_piece);
#pragma unroll 1
  for (int i = 0; i < P::kDepth - 1; ++i) issue(stored_piece);
  wait_for_copies<P::kDepth - 1>();
  __syncthreads();

  Tables tables;
  if constexpr (C::kTables) tables = tables_at(memory);
  const float second = second_column(per_vector);
  int slot = 0;
  for (int unit = begin + warp; unit < end; unit += P::kWarps) {
    const int index = unit / n_tiles - first_piece, tile = unit % n_tiles;
    const Piece piece = piece_at(first_piece + index);
    const int place = index < P::kHeldPieces ? index : P::kHeldPieces + warp;
    const Entry* const entries = all_entries + place * P::kMaxEntries;
    const float* const inverse = all_inverse + place * P::kMaxEntries;
    if (index >= P::kHeldPieces) {
      __syncwarp();
      copy_entries(p, piece, lane, all_entries + place * P::kMaxEntries,
                   all_inverse + place * P::kMaxEntries);
      __syncwarp();
    }
    const int n_columns = piece.n * per_vector;
    bool first_odd[kTiles];
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      first_odd[k] = is_odd(piece.expert, part.n_out, row_of(tile, k) + g, n_blocks, 0);
    }
    float sum[kTiles][4] = {};
    const auto next_stage = [&] {
      wait_for_copies<P::kDepth - 2>();
      __syncwarp();
      issue(piece_at);
      const std::uint8_t* const stage = ring + slot * kStage;
      if (++slot == P::kDepth) slot = 0;
      return stage;
    };
    int held = -1;  // the piece's first held column
    if (index == 0 && held_end[0] > 0) held = 0;
    if (index == 1 && held_end[1] > held_end[0]) held = held_end[0];
    // place(octet) is where octet 0 <= o < n_in / 32 of the lane's column is.
    const auto add_tile = [&](auto place, const uint2* x_sums) {
      const bool there = g < n_columns;
      LaneValues<Many> values;
      for (int b = 0; b < p.n_in / kTermValues; ++b) {
        typename Many::Row rows[kTiles][2];
        Term<Many> terms[kTiles];
        uint2 value = make_uint2(0, 0);
        if constexpr (C::kMinus) {
          if (there) value = x_sums[b * 4];
        }
#pragma unroll 1
        for (int q = 0; q < kTermStages; ++q) {
          const std::uint8_t* const stage = next_stage();
          bool odd[kTiles];
#pragma unroll
          for (int k = 0; k < kTiles; ++k) odd[k] = first_odd[k] != (b % 2 != 0);
          const int first = (b * kTermStages + q) * (C::kBlock / 32);
          add_stage<Many, kTiles>(
              stage, odd, [&](int o) { return place(first + o); }, there, tables, values, rows,
              terms);
        }
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          float term[4];
          finish_term<Many>(rows[k], value, second, terms[k], term);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[k][i] += term[i];
        }
      }
    };
    const int own = g < n_columns ? g : 0;  // the lane's column
    if (held < 0) {
      const std::int64_t column =
          static_cast<std::int64_t>(entries[own / per_vector].vector) * per_vector +
          own % per_vector;
      add_tile(OctetPlaces{reinterpret_cast<const uint4*>(p.columns.values + column * p.n_in) + t},
               reinterpret_cast<const uint2*>(p.columns.sums + column * (p.n_in / kSumValues)) + t);
    } else if (!C::kDiagonal) {
      const std::uint8_t* const values = held_values + (held + own) * value_stride;
      add_tile(OctetPlaces{reinterpret_cast<const uint4*>(values) + t},
               reinterpret_cast<const uint2*>(held_sums + (held + own) * sum_stride) + t);
    } else if (n_columns > kDiagonalColumns) {
      const auto* const values =
          reinterpret_cast<const uint4*>(held_values + (held + own) * value_stride);
      add_tile([&](int octet) { return values + held_place(octet * 4 + t); }, nullptr);
    } else if constexpr (C::kDiagonal) {
      static_assert(kTiles == 2 && kTermStages == 1);
      DiagonalSums sums;
      const auto add_terms_of = [&]<int kColumns>() {
        const std::uint8_t* const values = held_values + held * value_stride;
        for (int b = 0; b < p.n_in / kTermValues; ++b) {
          const std::uint8_t* const stage = next_stage();
          const bool odd[2] = {first_odd[0] != (b % 2 != 0), first_odd[1] != (b % 2 != 0)};
          diagonal_terms<C, HeldPlaces, kColumns>(
              stage, odd, [&](int c) { return values + c * value_stride + b * (kTermValues * 2); },
              tables, second, [&](int c, float term) { sums.add(c, term); });
        }
      };
      if (n_columns == 1) {
        add_terms_of.template operator()<1>();
      } else {
        add_terms_of.template operator()<2>();
      }
      sums.spread(n_columns, sum);
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
