#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/tensor_diagonal.cuh"
#include "kernels/cuda/tensor_stream_shape.cuh"

// Weights streamed past 8 or 16 columns. A warp has a ring of stages of its own: while one stage is
// multiplied, the next are on their way, so no warp waits for another. Where a matrix has too few
// rows for all warps, the warps of a block share row tiles, each with a part of the terms; the
// terms then meet in shared memory and are added in order.
//
// A block goes through many tiles of one piece. Its first stages are asked for before the kernel
// before has ended, if what they are does not depend on it.
//
// Columns: of one vector, a block splits them for itself (kOwn) and keeps them in shared memory.
// Else they come from global memory: 8 directly; 16 are copied to shared memory first (kHeld) or,
// where they do not fit, come as a part of the stages.

namespace ebb::cuda {

template <class C, int kTiles, int kSets, bool kOwn, bool kHeld = false>
__device__ void stream_block(const TensorProduct& p, const StreamShape& shape, int piece_index,
                             int block_index, std::uint8_t* memory) {
  using S = Stream<C, kTiles, kSets, kOwn, kHeld>;
  constexpr int kTermStages = kTermValues / C::kBlock;
  const int warp = known_alike(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int n_warps = blockDim.x / kWarp;
  const int n_slices = shape.n_slices, groups = n_warps / n_slices;
  const int slice = warp % n_slices, own = warp / n_slices;
  const int per_vector = p.columns.per_vector;
  const StreamMemory<C, kTiles, kSets, kOwn, kHeld> layout(n_warps, p.n_in, per_vector, shape);
  std::uint8_t* const ring = memory + layout.ring + warp * S::kDepth * S::kStage;
  auto* const entries = reinterpret_cast<Entry*>(memory + layout.entries);
  auto* const inverse = reinterpret_cast<float*>(memory + layout.inverse);

  const int n_terms = p.n_in / kTermValues, row_blocks = p.n_in / C::kBlock;
  const int begin = slice * n_terms / n_slices, end = (slice + 1) * n_terms / n_slices;
  const int n_tiles = p.parts[p.n_parts - 1].tiles_end;
  const int n_items = (n_tiles + groups - 1) / groups;

  // The tile of the warp in an item: its part, -1 for none, and first rows.
  struct Tile {
    int part;
    int row[kTiles];
  };
  const auto find = [&](int item) {
    Tile tile;
    int index = item * groups + own;
    tile.part = -1;
    if (item >= n_items || index >= n_tiles) return tile;
    tile.part = part_of(p, index);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      tile.row[k] = tile_row(p.gated ? index : index * kTiles + k, p.parts[tile.part].n_out);
    }
    return tile;
  };
  int matrix = p.pieces.ids == nullptr ? piece_index / p.pieces.n_ranges : 0;
  // What is asked for next.
  int next_item = block_index, next_block = begin * kTermStages, next_slot = 0;
  bool next_there = false;
  TileSource<C, kTiles> next;
  const auto open_next = [&] {
    const Tile tile = find(next_item);
    next_there = tile.part >= 0;
    if (!next_there) return;
    const TensorPart& part = p.parts[tile.part];
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      next.open(k, k == 1 && p.gated ? part.b : part.a,
                (static_cast<std::int64_t>(matrix) * part.n_out + tile.row[k]) * row_blocks,
                row_blocks, lane);
    }
  };
  int n_columns = 0;
  // The lane's pieces of staged columns.
  constexpr int kPieces = C::kBlock / 8;  // of a column in a stage, 16 bytes each
  constexpr int kLanePieces = S::kStagesColumns ? kSets * 8 * kPieces / kWarp : 1;
  const auto column_at = [&](int column) {
    return static_cast<std::int64_t>(entries[column / per_vector].vector) * per_vector +
           column % per_vector;
  };
  const auto issue_columns = [&](std::uint8_t* stage) {
    if constexpr (S::kStagesColumns) {
#pragma unroll
      for (int i = 0; i < kLanePieces; ++i) {
        const int at = lane + i * kWarp, column = at / kPieces, piece = at % kPieces;
        if (column >= n_columns) break;
        copy_async<16>(
            stage + (piece / 4 * kSets * 8 + column) * 64 + piece % 4 * 16,
            p.columns.values + column_at(column) * p.n_in + next_block * C::kBlock + piece * 8);
      }
      if constexpr (C::kMinus) {
        static_assert(C::kBlock == kTermValues);
        if (lane / 2 < n_columns) {
          copy_async<16>(stage + S::kColumnBytes + lane * 16,
                         p.columns.sums + column_at(lane / 2) * (p.n_in / kSumValues) +
                             next_block * 16 + lane % 2 * 8);
        }
      }
    }
  };
  const auto issue = [&] {
    if (next_there) {
      std::uint8_t* const stage = ring + next_slot * S::kStage;
      issue_stage(next, next_block, row_blocks, stage, lane);
      issue_columns(stage + kTiles * kStageBytes<C>);
    }
    commit_copies();
    if (++next_slot == S::kDepth) next_slot = 0;
    if (++next_block == end * kTermStages) {
      next_block = begin * kTermStages;
      next_item += shape.n_blocks;
      open_next();
    }
  };
  const bool ahead = p.pieces.ids == nullptr && !S::kStagesColumns;
  if (ahead) {
    open_next();
#pragma unroll 1
    for (int i = 0; i < S::kDepth - 1; ++i) issue();
  }
  // Of a norm, a thread has one quad.
  constexpr bool kCanNorm = kOwn && S::kThreads == kNormThreads;
  const bool has_quad = kCanNorm && 4 * static_cast<int>(threadIdx.x) < p.n_in;
  float4 weight = make_float4(0, 0, 0, 0);
  if (has_quad && p.norm.weight != nullptr) {
    weight = reinterpret_cast<const float4*>(p.norm.weight)[threadIdx.x];
  }
  if constexpr (C::kTables) fill_tables(p.grid_iq2, memory);
  if (p.pieces.ids != nullptr) wait_for_inputs();
  const OpenPiece piece(p.pieces, piece_index, entries);
  if (p.pieces.ids == nullptr) wait_for_inputs();
  if (piece.n == 0) {
    wait_for_copies<0>();
    return;
  }
  n_columns = piece.n * per_vector;
  if constexpr (S::kStagesColumns) __syncthreads();
  if (!ahead) {
    matrix = piece.matrix;
    open_next();
#pragma unroll 1
    for (int i = 0; i < S::kDepth - 1; ++i) issue();
  }
  auto* const values = reinterpret_cast<__half*>(memory + layout.values);
  auto* const sums = reinterpret_cast<__half*>(memory + layout.sums);
  if constexpr (kOwn) {
    __syncthreads();
    const float* const x = p.x + static_cast<std::int64_t>(entries[0].vector) * p.n_in;
    float* const scratch = inverse + kStreamColumns;
    const auto split = [&](auto quad) {
      const float factor = split_quads(quad, p.n_in, C::kOrder, per_vector, values,
                                       C::kMinus ? sums : nullptr, scratch);
      if (threadIdx.x == 0) inverse[0] = factor;
    };
    const auto quad_of = [](const float* v, int q) {
      return reinterpret_cast<const float4*>(v)[q];
    };
    if (!kCanNorm || p.norm.weight == nullptr) {
      split([&](int q) { return quad_of(x, q); });
    } else {
      const float scale = block_inverse_rms(x, p.n_in, p.norm.eps, scratch);
      float4 y = make_float4(0, 0, 0, 0);
      if (has_quad) {
        const float4 v = quad_of(x, threadIdx.x);
        y = make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
                        v.w * scale * weight.w);
        if (block_index == 0) reinterpret_cast<float4*>(p.norm.y)[threadIdx.x] = y;
      }
      split([&](int) { return y; });
    }
  } else if (static_cast<int>(threadIdx.x) < piece.n) {
    inverse[threadIdx.x] = p.columns.inverse[entries[threadIdx.x].vector];
  }
  if constexpr (kHeld) {
    __syncthreads();
    const int n_pieces = p.n_in / 8, n_sums = p.n_in / kSumValues / 8;
    for (int c = warp; c < kSets * 8; c += n_warps) {
      auto* const to = reinterpret_cast<uint4*>(values + c * layout.column_stride(p.n_in));
      auto* const sums_to = reinterpret_cast<uint4*>(sums + c * (p.n_in / kSumValues));
      if (c < n_columns) {
        const std::int64_t at = column_at(c);
        for (int i = lane; i < n_pieces; i += kWarp) {
          copy_async<16>(to + i, p.columns.values + at * p.n_in + i * 8);
        }
        for (int i = lane; C::kMinus && i < n_sums; i += kWarp) {
          copy_async<16>(sums_to + i, p.columns.sums + at * (p.n_in / kSumValues) + i * 8);
        }
      } else {
        for (int i = lane; i < n_pieces; i += kWarp) to[i] = make_uint4(0, 0, 0, 0);
        for (int i = lane; C::kMinus && i < n_sums; i += kWarp) sums_to[i] = make_uint4(0, 0, 0, 0);
      }
    }
    commit_copies();
    wait_for_copies<0>();
  }
  __syncthreads();

  Tables tables;
  if constexpr (C::kTables) tables = tables_at(memory);
  const float second = second_column(per_vector);
  // Where the lane's column is, if not in the stages.
  const bool there = g < n_columns;
  const uint4* x = reinterpret_cast<const uint4*>(values + (there ? g : 0) * p.n_in) + t;
  const uint2* x_sums =
      reinterpret_cast<const uint2*>(sums + (there ? g : 0) * (p.n_in / kSumValues)) + t;
  if constexpr (kHeld) {
    x = reinterpret_cast<const uint4*>(values + g * layout.column_stride(p.n_in)) + t;
    x_sums = reinterpret_cast<const uint2*>(sums + g * (p.n_in / kSumValues)) + t;
  } else if constexpr (!kOwn && !S::kStagesColumns) {
    const std::int64_t at = column_at(there ? g : 0);
    x = reinterpret_cast<const uint4*>(p.columns.values + at * p.n_in) + t;
    x_sums = reinterpret_cast<const uint2*>(p.columns.sums + at * (p.n_in / kSumValues)) + t;
  }
  auto* const exchange = reinterpret_cast<float4*>(memory + layout.exchange);
  const int lanes = shape.stored_lanes;
  const auto place_of = [&](int turn, int b, int k, int s) {
    return exchange +
           ((((turn * groups + own) * n_terms + b) * kTiles + k) * kSets + s) * 8 * lanes +
           g * lanes + t;
  };

  int slot = 0, turn = 0;
  const auto next_stage = [&] {
    wait_for_copies<S::kDepth - 2>();
    __syncwarp();
    issue();
    const std::uint8_t* const stage = ring + slot * S::kStage;
    if (++slot == S::kDepth) slot = 0;
    return stage;
  };
  // A tile's terms of one vector's columns.
  const auto add_diagonal = [&](const Tile& tile, int turn, float(&sum)[kTiles][kSets][4]) {
    if constexpr (C::kDiagonal) {
      static_assert(kTiles == 2 && kSets == 1 && kTermStages == 1 && kOwn);
      DiagonalSums own_sums;
      for (int b = begin; b < end; ++b) {
        const std::uint8_t* const stage = next_stage();
        if (tile.part < 0) continue;
        bool odd[kTiles];
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          odd[k] = is_odd(matrix, p.parts[tile.part].n_out, tile.row[k] + g, row_blocks, b);
        }
        const auto column = [&](int c) { return values + c * p.n_in + b * kTermValues; };
        const auto put = [&](int c, float term) {
          if (n_slices == 1) {
            own_sums.add(c, term);
          } else {
            auto* const place = place_of(turn, b, t / 2, 0) - t;
            reinterpret_cast<float*>(place)[t % 2 * 2 + c] = term;
          }
        };
        if (n_columns == 1) {
          diagonal_terms<C, ChunkPlaces, 1>(stage, odd, column, tables, second, put);
        } else {
          diagonal_terms<C, ChunkPlaces, 2>(stage, odd, column, tables, second, put);
        }
      }
      if (n_slices > 1) return;
      float spread[2][4] = {};
      own_sums.spread(n_columns, spread);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i / 4][0][i % 4] = spread[i / 4][i % 4];
    }
  };
  for (int item = block_index; item < n_items; item += shape.n_blocks) {
    const Tile tile = find(item);
    float sum[kTiles][kSets][4] = {};
    if constexpr (C::kDiagonal) {
      add_diagonal(tile, turn, sum);
    } else {
      for (int b = begin; b < end; ++b) {
        typename C::Row rows[kTiles][2];
        Term<C> terms[kTiles][kSets];
        const std::uint8_t* stage = nullptr;
#pragma unroll 1
        for (int q = 0; q < kTermStages; ++q) {
          stage = next_stage();
          if (tile.part < 0) continue;
#pragma unroll
          for (int k = 0; k < kTiles; ++k) {
            const bool odd =
                is_odd(matrix, p.parts[tile.part].n_out, tile.row[k] + g, row_blocks, b);
            rows[k][0] = C::open(stage + k * kStageBytes<C>, g, t, odd);
            rows[k][1] = C::open(stage + k * kStageBytes<C>, g + 8, t, odd);
          }
          const uint4* const at = x + b * (kTermValues / 8) + q * (C::kBlock / 8);
#pragma unroll
          for (int o = 0; o < C::kBlock / 32; ++o) {
            uint4 value[kSets];
#pragma unroll
            for (int s = 0; s < kSets; ++s) {
              if constexpr (S::kStagesColumns) {
                value[s] = staged<uint4>(stage + kTiles * kStageBytes<C> +
                                         (o * kSets * 8 + 8 * s + g) * 64 + t * 16);
              } else if constexpr (kHeld) {
                value[s] = at[s * layout.column_stride(p.n_in) + o * 4];
              } else {
                value[s] = make_uint4(0, 0, 0, 0);
                if (there) value[s] = at[o * 4];
              }
            }
#pragma unroll
            for (int k = 0; k < kTiles; ++k) {
              const Operands<C> weights(rows[k], o, tables);
#pragma unroll
              for (int s = 0; s < kSets; ++s) terms[k][s].add_octet(rows[k], o, weights, value[s]);
            }
          }
        }
        if (tile.part < 0) continue;
#pragma unroll
        for (int s = 0; s < kSets; ++s) {
          uint2 value = make_uint2(0, 0);
          if constexpr (C::kMinus && S::kStagesColumns) {
            value = staged<uint2>(stage + kTiles * kStageBytes<C> + S::kColumnBytes +
                                  (8 * s + g) * 32 + t * 8);
          } else if constexpr (C::kMinus && kHeld) {
            value = x_sums[s * 2 * (p.n_in / kSumValues) + b * 4];
          } else if constexpr (C::kMinus) {
            if (there) value = x_sums[b * 4];
          }
#pragma unroll
          for (int k = 0; k < kTiles; ++k) {
            float term[4];
            finish_term<C>(rows[k], value, second, terms[k][s], term);
            if (n_slices == 1) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[k][s][i] += term[i];
            } else if (t < lanes) {
              *place_of(turn, b, k, s) = make_float4(term[0], term[1], term[2], term[3]);
            }
          }
        }
      }
    }
    if (n_slices > 1) __syncthreads();
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if (tile.part < 0 || s % n_slices != slice) continue;
      if (n_slices > 1 && t < lanes) {
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
#pragma unroll 4
          for (int b = 0; b < n_terms; ++b) {
            const float4 v = *place_of(turn, b, k, s);
            sum[k][s][0] += v.x;
            sum[k][s][1] += v.y;
            sum[k][s][2] += v.z;
            sum[k][s][3] += v.w;
          }
        }
      }
      const TensorPart& part = p.parts[tile.part];
      if (kTiles == 2 && p.gated) {
        if constexpr (kTiles == 2) {
          const float both[2][4] = {{sum[0][s][0], sum[0][s][1], sum[0][s][2], sum[0][s][3]},
                                    {sum[1][s][0], sum[1][s][1], sum[1][s][2], sum[1][s][3]}};
          store_sums<2>(both, part, tile.row[0], 8 * s, piece.n, per_vector, p.clamp, entries,
                        inverse, lane);
        }
      } else {
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          const float one[1][4] = {{sum[k][s][0], sum[k][s][1], sum[k][s][2], sum[k][s][3]}};
          store_sums<1>(one, part, tile.row[k], 8 * s, piece.n, per_vector, p.clamp, entries,
                        inverse, lane);
        }
      }
    }
    if (++turn == shape.n_turns) turn = 0;
    if (n_slices > 1 && shape.n_turns == 1) __syncthreads();
  }
  wait_for_copies<0>();
}

template <class C, int kTiles, int kSets, bool kOwn, bool kHeld = false>
__global__ void __launch_bounds__(Stream<C, kTiles, kSets, kOwn, kHeld>::kThreads,
                                  C::kTables || (kSets > 1 && !(kHeld && kTiles == 1)) ? 1 : 2)
    stream_kernel(const __grid_constant__ TensorProduct p, StreamShape shape) {
  extern __shared__ uint4 stream_memory[];
  stream_block<C, kTiles, kSets, kOwn, kHeld>(p, shape, blockIdx.y, blockIdx.x,
                                              reinterpret_cast<std::uint8_t*>(stream_memory));
}

/// The blocks of the first product, then those of the second; a piece each.
template <class First, class Second>
__global__ void __launch_bounds__(Stream<First, 1, 1, true>::kThreads, 2)
    two_streams_kernel(const __grid_constant__ TensorProduct first, StreamShape first_shape,
                       const __grid_constant__ TensorProduct second, StreamShape second_shape) {
  static_assert(Stream<First, 1, 1, true>::kThreads == Stream<Second, 1, 1, true>::kThreads);
  extern __shared__ uint4 stream_memory[];
  auto* const memory = reinterpret_cast<std::uint8_t*>(stream_memory);
  const int index = static_cast<int>(blockIdx.x) - first_shape.n_blocks;
  if (index < 0) {
    stream_block<First, 1, 1, true>(first, first_shape, 0, blockIdx.x, memory);
  } else {
    stream_block<Second, 1, 1, true>(second, second_shape, 0, index, memory);
  }
}

}  // namespace ebb::cuda
