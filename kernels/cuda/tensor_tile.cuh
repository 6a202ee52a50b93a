#pragma once

#include "kernels/cuda/tensor_piece.cuh"

// Tiles of up to kTileColumns columns and 8 warps of 32 rows (or of 16 rows of gate and 16 of up).
// A warp unpacks its own weights, so no weight is unpacked twice in a block; the columns are
// shared. Both come through shared memory, kLookAhead steps of 64 values ahead.

namespace ebb::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kTileWarps = kTileThreads / kWarp;
inline constexpr int kStepValues = 64;
inline constexpr int kLookAhead = 3;
inline constexpr int kStepBytes = kTileColumns * kStepValues * 2;

/// Steps of a stage of weights, and stages that are under way or in use.
template <class C>
inline constexpr int kStageSteps = C::kBlock / kStepValues;
template <class C>
inline constexpr int kTileStages = (kLookAhead + kStageSteps<C> - 1) / kStageSteps<C> + 1;

template <class C>
struct TileMemory {
  static constexpr int ring = C::kTables ? kTableBytes : 0;
  static constexpr int steps = ring + kTileWarps * kTileStages<C> * 2 * kStageBytes<C>;
  static constexpr int sums = steps + (kLookAhead + 1) * kStepBytes;
  static constexpr int sums_bytes = kTileColumns * 32;  // of a block of 256 values
  static constexpr int entries = sums + (C::kMinus ? kTileStages<C> * sums_bytes : 0);
  static constexpr int inverse = entries + kTileColumns * static_cast<int>(sizeof(Entry));
  static constexpr int end = inverse + kTileColumns * 4;
};

/// Rows that a block forms of a product.
__host__ __device__ constexpr int tile_rows(bool gated) {
  return kTileWarps * kTileRows * (gated ? 1 : 2);
}

/// The thread block's share of a product.
struct TileJob {
  const TensorPart* part;
  int matrix;
  int row[2];
  int n_columns, n_entries;
  bool active;  // of the warp: it has rows
};

/// The tile, kSets sets of eight columns wide.
template <class C, int kSets>
__device__ __forceinline__ void tile_block(const TensorProduct& p, const TileJob& job,
                                           std::uint8_t* memory) {
  using Layout = TileMemory<C>;
  constexpr int kStages = kTileStages<C>, kSteps = kStageSteps<C>;
  constexpr int kTermSteps = kTermValues / kStepValues;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const auto* const entries = reinterpret_cast<const Entry*>(memory + Layout::entries);
  const auto* const inverse = reinterpret_cast<const float*>(memory + Layout::inverse);
  std::uint8_t* const ring = memory + Layout::ring + warp * kStages * 2 * kStageBytes<C>;
  const int per_vector = p.columns.per_vector;
  const int row_blocks = p.n_in / C::kBlock, n_steps = p.n_in / kStepValues;
  const TensorPart& part = *job.part;
  TileSource<C, 2> source;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    source.open(k, k == 1 && p.gated ? part.b : part.a,
                (static_cast<std::int64_t>(job.matrix) * part.n_out + job.row[k]) * row_blocks,
                row_blocks, lane);
  }
  // The thread's pieces of columns: 16 bytes of two columns. What lies past the last column repeats
  // it and is not stored.
  const auto column_at = [&](int column) {
    const int c = min(column, job.n_columns - 1);
    return static_cast<std::int64_t>(entries[c / per_vector].vector) * per_vector + c % per_vector;
  };
  const __half* from[2] = {nullptr, nullptr};
  const int piece = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = threadIdx.x / 8 + i * (kTileThreads / 8);
    if (column < 8 * kSets) from[i] = p.columns.values + column_at(column) * p.n_in + piece * 8;
  }
  const __half* sums_from = nullptr;
  if (C::kMinus && threadIdx.x / 2 < 8 * kSets) {
    sums_from =
        p.columns.sums + column_at(threadIdx.x / 2) * (p.n_in / kSumValues) + threadIdx.x % 2 * 8;
  }
  const auto issue = [&](int step) {
    if (step < n_steps) {
      std::uint8_t* const to = memory + Layout::steps + step % (kLookAhead + 1) * kStepBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (from[i] == nullptr) continue;
        const int column = threadIdx.x / 8 + i * (kTileThreads / 8);
        copy_async<16>(to + (piece / 4 * kTileColumns + column) * 64 + piece % 4 * 16,
                       from[i] + step * kStepValues);
      }
      const int b = step / kSteps;
      if (step % kSteps == 0) {
        if (job.active) {
          issue_stage(source, b, row_blocks, ring + b % kStages * 2 * kStageBytes<C>, lane);
        }
        if constexpr (C::kMinus) {
          if (sums_from != nullptr) {
            copy_async<16>(
                memory + Layout::sums + b % kStages * Layout::sums_bytes + threadIdx.x * 16,
                sums_from + b * 16);
          }
        }
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kLookAhead; ++i) issue(i);

  Tables tables;
  if constexpr (C::kTables) tables = tables_at(memory);
  const float second = second_column(per_vector);
  float sum[2][kSets][4] = {};
  for (int b = 0; b < p.n_in / kTermValues; ++b) {
    typename C::Row rows[2][2];
    Term<C> terms[2][kSets];
    // Unrolled as far as a stage goes: then its octets have numbers that the compiler knows.
#pragma unroll(kSteps)
    for (int q = 0; q < kTermSteps; ++q) {
      const int step = b * kTermSteps + q;
      wait_for_copies<kLookAhead - 1>();
      __syncthreads();
      issue(step + kLookAhead);
      if (!job.active) continue;
      if (q % kSteps == 0) {
        const std::uint8_t* const stage = ring + step / kSteps % kStages * 2 * kStageBytes<C>;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const bool odd = is_odd(job.matrix, part.n_out, job.row[k] + g, row_blocks, b);
          rows[k][0] = C::open(stage + k * kStageBytes<C>, g, t, odd);
          rows[k][1] = C::open(stage + k * kStageBytes<C>, g + 8, t, odd);
        }
      }
      const std::uint8_t* const x =
          memory + Layout::steps + step % (kLookAhead + 1) * kStepBytes + g * 64 + t * 16;
      const int first = 2 * (q % kSteps);
      const auto add_octet = [&](int half, int s, const Operands<C>(&weights)[2]) {
        const auto value = staged<uint4>(x + (half * kTileColumns + 8 * s) * 64);
#pragma unroll
        for (int k = 0; k < 2; ++k) terms[k][s].add_octet(rows[k], first + half, weights[k], value);
      };
      if constexpr (C::kOwnScales) {
        // A chunk's sums are over with its two octets: those of one set at a time.
        const Operands<C> weights[2][2] = {
            {{rows[0], first, tables}, {rows[1], first, tables}},
            {{rows[0], first + 1, tables}, {rows[1], first + 1, tables}}};
#pragma unroll
        for (int s = 0; s < kSets; ++s) {
          add_octet(0, s, weights[0]);
          add_octet(1, s, weights[1]);
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Operands<C> weights[2] = {{rows[0], first + half, tables},
                                          {rows[1], first + half, tables}};
#pragma unroll
          for (int s = 0; s < kSets; ++s) add_octet(half, s, weights);
        }
      }
    }
    if (!job.active) continue;
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      uint2 value = make_uint2(0, 0);
      if constexpr (C::kMinus) {
        value = staged<uint2>(memory + Layout::sums + b % kStages * Layout::sums_bytes +
                              (8 * s + g) * 32 + t * 8);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float term[4];
        finish_term<C>(rows[k], value, second, terms[k][s], term);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[k][s][i] += term[i];
      }
    }
  }
  wait_for_copies<0>();
  if (!job.active) return;
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    if (p.gated) {
      const float both[2][4] = {{sum[0][s][0], sum[0][s][1], sum[0][s][2], sum[0][s][3]},
                                {sum[1][s][0], sum[1][s][1], sum[1][s][2], sum[1][s][3]}};
      store_sums<2>(both, part, job.row[0], 8 * s, job.n_entries, per_vector, p.clamp, entries,
                    inverse, lane);
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float one[1][4] = {{sum[k][s][0], sum[k][s][1], sum[k][s][2], sum[k][s][3]}};
        store_sums<1>(one, part, job.row[k], 8 * s, job.n_entries, per_vector, p.clamp, entries,
                      inverse, lane);
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_kernel(const __grid_constant__ TensorProduct p, bool pieces_first) {
  extern __shared__ uint4 tile_memory[];
  using Layout = TileMemory<C>;
  auto* const memory = reinterpret_cast<std::uint8_t*>(tile_memory);
  auto* const entries = reinterpret_cast<Entry*>(memory + Layout::entries);
  auto* const inverse = reinterpret_cast<float*>(memory + Layout::inverse);
  wait_for_inputs();
  const OpenPiece piece(p.pieces, pieces_first ? blockIdx.x : blockIdx.y, entries);
  if (piece.n == 0) return;
  if (static_cast<int>(threadIdx.x) < piece.n) {
    inverse[threadIdx.x] = p.columns.inverse[entries[threadIdx.x].vector];
  }
  if constexpr (C::kTables) {
    fill_tables(p.grid_iq2, memory);
  }
  __syncthreads();
  int tile = pieces_first ? blockIdx.y : blockIdx.x;
  TileJob job;
  job.part = &p.parts[part_of(p, tile)];
  job.matrix = piece.matrix;
  job.n_entries = piece.n;
  job.n_columns = piece.n * p.columns.per_vector;
  const int first = (tile * kTileWarps + static_cast<int>(threadIdx.x) / kWarp) * (p.gated ? 1 : 2);
  job.active = first * kTileRows < job.part->n_out;
  job.row[0] = tile_row(first, job.part->n_out);
  job.row[1] = tile_row(p.gated ? first : first + 1, job.part->n_out);
  // Straight code for each width, since branches would keep products from overlapping.
  if (job.n_columns > 32) {
    tile_block<C, 8>(p, job, memory);
  } else if (job.n_columns > 16) {
    tile_block<C, 4>(p, job, memory);
  } else {
    tile_block<C, 2>(p, job, memory);
  }
}

}  // namespace ebb::cuda
