#pragma once

#include <algorithm>

#include "kernels/cuda/tensor_pieces.cuh"
#include "kernels/cuda/tensor_stream.cuh"
#include "kernels/cuda/tensor_tile.cuh"

// How tensor products of one type are launched. Every choice here is of speed alone: it changes no
// bit of a result.

namespace ebb::cuda {

/// Numbers the tiles of all parts; a tile holds `rows` rows.
inline std::int32_t number_tiles(TensorProduct& p, std::int32_t rows) {
  std::int32_t tiles = 0;
  for (std::int32_t i = 0; i < p.n_parts; ++i) {
    tiles += (p.parts[i].n_out + rows - 1) / rows;
    p.parts[i].tiles_end = tiles;
  }
  return tiles;
}

struct StreamPlan {
  TensorProduct p;
  StreamShape shape;
  int n_warps = 0;        ///< of a block
  std::size_t bytes = 0;  ///< 0: there is none
};

/// What a meeting of the warps of a block costs, in stages.
template <class C>
inline constexpr double kMeetingCost = C::kTables ? 0.2 : 0.6;

/// The cut with the least work on the longest way. `resident` says how many thread blocks with so
/// much shared memory are at work at a time; `share` of them are this product's.
template <class C, int kTiles, int kSets, bool kOwn, bool kHeld, class Resident>
StreamPlan plan_stream(const TensorProduct& p, int most_warps, std::int64_t n_pieces,
                       std::int32_t piece_columns, double share, Resident resident) {
  StreamPlan best;
  best.p = p;
  const std::int32_t tiles = number_tiles(best.p, kTileRows * (p.gated ? 1 : kTiles));
  const int n_terms = p.n_in / kTermValues, stages = kTermValues / C::kBlock;
  double least = 0;
  const auto consider = [&](int n_warps, int slices) {
    StreamShape shape;
    shape.n_slices = slices;
    shape.stored_lanes = kSets == 1 ? std::min(4, (piece_columns + 1) / 2) : 4;
    const int groups = n_warps / slices;
    const int items = (tiles + groups - 1) / groups;
    for (int turns = 1; turns <= 2; ++turns) {
      shape.n_turns = turns;
      const StreamMemory<C, kTiles, kSets, kOwn, kHeld> layout(n_warps, p.n_in,
                                                               p.columns.per_vector, shape);
      const double at_once = resident(n_warps, static_cast<std::size_t>(layout.end)) * share;
      if (at_once == 0) continue;
      const int blocks = std::max(1, static_cast<int>(at_once / static_cast<double>(n_pieces)));
      const int rounds = (items + blocks - 1) / blocks;
      shape.n_blocks = (items + rounds - 1) / rounds;
      const double meeting = slices == 1 ? 0 : kMeetingCost<C> * (turns == 1 && rounds > 1 ? 2 : 1);
      const double cost = rounds * (stages * ((n_terms + slices - 1) / slices) + meeting) *
                          std::max(1.0, static_cast<double>(n_pieces * shape.n_blocks) / at_once);
      if (best.bytes != 0 && cost >= least) continue;
      least = cost;
      best.shape = shape;
      best.n_warps = n_warps;
      best.bytes = static_cast<std::size_t>(layout.end);
    }
  };
  for (int slices = 1; slices <= most_warps && slices <= n_terms; slices *= 2) {
    consider(most_warps, slices);
  }
  // Held columns may leave no memory for the terms of so many warps.
  for (int warps = most_warps - 1; kHeld && warps > most_warps / 2; --warps) {
    if (warps <= n_terms) consider(warps, warps);
  }
  return best;
}

/// Thread blocks of a kernel that the device holds, by their shared memory; 0: it cannot be. The
/// kernels declare no shared memory themselves, and may have all there is from here on.
template <class Kernel>
auto resident_blocks(const Launch& launch, Kernel kernel) {
  return [=](int warps, std::size_t bytes) {
    int n = 0;
    if (bytes > launch.largest_shared) return 0;
    if (allow_shared(kernel, launch.largest_shared) != cudaSuccess) return 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, warps * kWarp, bytes) !=
        cudaSuccess) {
      return 0;
    }
    return n * launch.n_sms;
  };
}

template <class C, int kTiles, int kSets, bool kOwn, bool kHeld = false>
cudaError_t launch_stream(const Launch& launch, const TensorProduct& p, std::int64_t n_pieces,
                          std::int64_t n_expected, std::int32_t piece_columns) {
  const auto kernel = stream_kernel<C, kTiles, kSets, kOwn, kHeld>;
  const int warps = Stream<C, kTiles, kSets, kOwn, kHeld>::kThreads / kWarp;
  // How many pieces the ids will make is not known here. With many short blocks that hardly
  // matters; with few pieces, what every block begins with would be the larger loss.
  const double share = p.pieces.ids == nullptr || n_expected <= 8 ? 1.0
                       : n_expected <= 64                         ? 2.0
                                                                  : 6.0;
  const StreamPlan plan = plan_stream<C, kTiles, kSets, kOwn, kHeld>(
      p, warps, n_expected, piece_columns, share, resident_blocks(launch, kernel));
  if (plan.bytes == 0) return cudaErrorInvalidConfiguration;
  return start(launch, kernel,
               dim3(static_cast<unsigned>(plan.shape.n_blocks), static_cast<unsigned>(n_pieces)),
               dim3(static_cast<unsigned>(plan.n_warps * kWarp)), plan.bytes, plan.p, plan.shape);
}

template <class C, int kTiles>
cudaError_t launch_pieces(const Launch& launch, TensorProduct p) {
  using P = PieceStream<C, kTiles>;
  const auto kernel = pieces_kernel<C, kTiles>;
  number_tiles(p, kTileRows * (p.gated ? 1 : kTiles));
  const auto resident = resident_blocks(launch, kernel);
  const int blocks = resident(P::kWarps, P::columns);
  if (blocks == 0) return cudaErrorInvalidConfiguration;
  // As many columns as keep no block away.
  const int column_bytes = P::value_stride(p.n_in) + P::sum_stride(p.n_in);
  int held = P::kHeldPieces * P::kMaxEntries;
  const auto bytes = [&] { return static_cast<std::size_t>(P::columns + held * column_bytes); };
  while (held > 0 && resident(P::kWarps, bytes()) < blocks) --held;
  return start(launch, kernel, dim3(static_cast<unsigned>(blocks)), dim3(P::kThreads), bytes(), p,
               held);
}

template <class C>
cudaError_t launch_tile(const Launch& launch, TensorProduct p, std::int64_t n_pieces) {
  static_assert(TileMemory<C>::end <= kTensorShared);
  const auto kernel = tile_kernel<C>;
  const auto tiles = static_cast<unsigned>(number_tiles(p, tile_rows(p.gated)));
  const auto pieces = static_cast<unsigned>(n_pieces);
  // Pieces of one matrix side by side share its weights in the cache; those of experts do anyway.
  const bool pieces_first = p.pieces.ids == nullptr;
  if (const cudaError_t error = allow_shared(kernel, TileMemory<C>::end)) return error;
  return start(launch, kernel, pieces_first ? dim3(pieces, tiles) : dim3(tiles, pieces),
               dim3(kTileThreads), TileMemory<C>::end, p, pieces_first);
}

/// The widest vectors of which a block holds 16 columns, with a ring beside them.
inline constexpr std::int32_t kMaxHeldColumns = 4096;

template <DType kType>
cudaError_t launch_tensor(const Launch& launch, const TensorProduct& p, std::int64_t n_pieces,
                          std::int32_t piece_rows) {
  using C = TensorCodec<kType>;
  const std::int32_t columns = piece_rows * p.columns.per_vector;
  std::int64_t expected = n_pieces;
  if (p.pieces.entries != nullptr) {
    // Few pieces are full; at most there is one for every entry.
    expected = std::max<std::int64_t>(1, n_pieces - p.pieces.n_experts);
    expected = std::min<std::int64_t>(n_pieces, expected * piece_rows);
  }
  const auto stream = [&]<int kTiles, int kSets, bool kOwn, bool kHeld = false>() {
    using Used = std::conditional_t<kOwn, C, TileCodec<kType>>;
    return launch_stream<Used, kTiles, kSets, kOwn, kHeld>(launch, p, n_pieces, expected, columns);
  };
  // Products of tensor_diagonal.cuh are of two tiles; kSingle is for what is compiled and not run.
  constexpr int kSingle = C::kDiagonal ? 2 : 1;
  const bool two_tiles = p.gated || C::kDiagonal;
  if (p.columns.values == nullptr) {
    return two_tiles ? stream.template operator()<2, 1, true>()
                     : stream.template operator()<kSingle, 1, true>();
  }
  if (columns <= kFewColumns && p.pieces.entries != nullptr) {
    return two_tiles || C::kDigits ? launch_pieces<C, 2>(launch, p)
                                   : launch_pieces<C, kSingle>(launch, p);
  }
  if (columns <= kFewColumns) {
    return p.gated ? stream.template operator()<2, 1, false>()
                   : stream.template operator()<1, 1, false>();
  }
  if constexpr (!C::kDiagonal) {
    if (columns <= kStreamColumns && p.n_in > kMaxHeldColumns) {
      return stream.template operator()<2, 2, false>();
    }
    if (columns <= kStreamColumns) {
      return p.gated ? stream.template operator()<2, 2, false, true>()
                     : stream.template operator()<1, 2, false, true>();
    }
  }
  return launch_tile<TileCodec<kType>>(launch, p, n_pieces);
}

}  // namespace ebb::cuda
