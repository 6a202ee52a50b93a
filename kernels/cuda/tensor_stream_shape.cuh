#pragma once

#include "kernels/cuda/tensor_piece.cuh"

// How the products of tensor_stream.cuh are cut, and what they want of shared memory: the same for
// the kernel and for those who choose the cut (tensor_launch.cuh).

namespace ebb::cuda {

/// How a kernel is cut for weights of one type.
template <class C, int kTiles, int kSets, bool kOwn, bool kHeld = false>
struct Stream {
  static constexpr int kThreads = C::kTables ? 512 : 256;
  static constexpr bool kStagesColumns = !kOwn && !kHeld && kSets > 1;
  static constexpr int kColumnBytes = kStagesColumns ? kSets * 8 * C::kBlock * 2 : 0;
  static constexpr int kSumBytes = kStagesColumns && C::kMinus ? kSets * 8 * 32 : 0;
  static constexpr int kStage = kTiles * kStageBytes<C> + kColumnBytes + kSumBytes;
  static constexpr int kDepth = [] {
    const int wanted = (C::kTables ? 4608 : 8704) / kStage;  // beside the tables
    return wanted < 2 ? 2 : wanted > 6 ? 6 : wanted;
  }();
};

struct StreamShape {
  std::int32_t n_slices = 1;
  std::int32_t n_blocks = 1;      ///< thread blocks of a piece
  std::int32_t n_turns = 1;       ///< 2: terms have two places, so that one may still be read
  std::int32_t stored_lanes = 4;  ///< of four, whose terms can be wanted
};

/// Parts of the dynamic shared memory, bytes from its begin.
template <class C, int kTiles, int kSets, bool kOwn, bool kHeld = false>
struct StreamMemory {
  int ring, values, sums, exchange, entries, inverse, end;

  __host__ __device__ StreamMemory(int n_warps, int n_in, int per_vector,
                                   const StreamShape& shape) {
    using S = Stream<C, kTiles, kSets, kOwn, kHeld>;
    ring = C::kTables ? kTableBytes : 0;
    values = ring + n_warps * S::kDepth * S::kStage;
    const int held = kOwn ? per_vector : kHeld ? kSets * 8 : 0;
    sums = values + held * column_stride(n_in) * 2;
    exchange = sums + (C::kMinus ? held * (n_in / kSumValues) * 2 : 0);
    const int terms =
        shape.n_turns * (n_warps / shape.n_slices) * (n_in / kTermValues) * kTiles * kSets;
    entries = exchange + (shape.n_slices > 1 ? terms * 8 * shape.stored_lanes * 16 : 0);
    inverse = entries + kStreamColumns * static_cast<int>(sizeof(Entry));
    end = inverse + (kStreamColumns + 32) * 4;
  }

  /// Values from one column to the next: held ones are padded so that those that lanes read at a
  /// time stand in different banks.
  static __host__ __device__ constexpr int column_stride(int n_in) {
    return kHeld ? n_in + 32 : n_in;
  }
};

}  // namespace ebb::cuda
