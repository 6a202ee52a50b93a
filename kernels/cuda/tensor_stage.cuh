#pragma once

#include <cstdint>

#include "kernels/cuda/planes.h"

// Weights on their way to shared memory. A warp takes kTileRows rows, C::kBlock columns at a time,
// as one stage: field after field of the stored blocks, row after row. The 16-byte pieces of a row
// are permuted (C::swizzle), so that lanes that read together do not meet in a bank.

namespace ebb::cuda {

inline constexpr int kTileRows = 16;

/// Starts copying kBytes (4, 8 or 16, aligned) from global to shared memory.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes)
                 : "memory");
  }
#else
  const auto* const source = static_cast<const std::uint32_t*>(from);
  auto* const target = static_cast<std::uint32_t*>(to);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) target[i] = source[i];
#endif
}

/// Ends a group of copies; also an empty one counts.
__device__ __forceinline__ void commit_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most kPending of this thread's latest groups are still under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// Bytes that a field of a row takes in a stage: 2 bytes are copied with the word they lie in.
constexpr int staged_field_bytes(int bytes) { return bytes < 4 ? 4 : bytes; }

/// Where field f begins in a stage.
template <class C>
constexpr int field_offset(int f) {
  int offset = 0;
  for (int i = 0; i < f; ++i) offset += kTileRows * staged_field_bytes(C::bytes(i));
  return offset;
}

template <class C>
inline constexpr int kStageBytes = (field_offset<C>(C::kFields) + 63) / 64 * 64;

/// Whether one copy by a warp brings a field of two tiles.
template <class C, int kField>
inline constexpr bool kSmallField = C::bytes(kField) <= 16;

/// The rows of kTiles tiles: where the lane's piece of each field's first block is. Of small fields
/// half the lanes have the pieces of the second tile.
template <class C, int kTiles = 1>
struct TileSource {
  static_assert(kTiles <= 2);
  const std::uint8_t* field[kTiles][C::kFields];

  template <int kField>
  __device__ __forceinline__ void open_field(int tile, const std::uint8_t* plane,
                                             std::int64_t first, int stride, int lane) {
    constexpr int kBytes = C::bytes(kField);
    if constexpr (kSmallField<C, kField>) {
      if (tile != 0 && lane / kTileRows != tile) return;
      field[0][kField] = plane + (first + lane % kTileRows * stride) * kBytes;
    } else {
      constexpr int kPieces = kBytes / 16;
      field[tile][kField] =
          plane + (first + lane / kPieces * stride) * kBytes + lane % kPieces * 16;
    }
  }
  /// `first` is the number of the tile's first row's first block; rows have `stride` blocks. Tiles
  /// are opened in order.
  __device__ __forceinline__ void open(int tile, const Planes& planes, std::int64_t first,
                                       int stride, int lane) {
    open_field<0>(tile, planes.plane[0], first, stride, lane);
    if constexpr (C::kFields > 1) open_field<1>(tile, planes.plane[1], first, stride, lane);
    if constexpr (C::kFields > 2) open_field<2>(tile, planes.plane[2], first, stride, lane);
    if constexpr (C::kFields > 3) open_field<3>(tile, planes.plane[3], first, stride, lane);
  }
  /// The tiles that lie `n` rows of `stride` blocks further on.
  __device__ __forceinline__ TileSource rows_on(int n, int stride) const {
    TileSource other;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
#pragma unroll
      for (int f = 0; f < C::kFields; ++f) {
        other.field[k][f] = field[k][f] + static_cast<std::int64_t>(n) * (stride * C::bytes(f));
      }
    }
    return other;
  }
};

/// Starts copying one field of block b of every row; rows have `stride` blocks.
template <class C, int kField, int kTiles>
__device__ __forceinline__ void issue_field(const TileSource<C, kTiles>& source, int b, int stride,
                                            std::uint8_t* stage, int lane) {
  constexpr int kBytes = C::bytes(kField);
  std::uint8_t* const to = stage + field_offset<C>(kField);
  if constexpr (kSmallField<C, kField>) {
    const std::uint8_t* const from = source.field[0][kField] + b * kBytes;
    const int tile = kTiles == 2 ? lane / kTileRows : 0, row = lane % kTileRows;
    std::uint8_t* const place = to + tile * kStageBytes<C> + row * staged_field_bytes(kBytes);
    if (kTiles == 1 && lane >= kTileRows) return;
    if constexpr (kBytes == 2) {
      copy_async<4>(place, reinterpret_cast<const std::uint8_t*>(
                               reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{3}));
    } else {
      copy_async<kBytes>(place, from);
    }
  } else {
    constexpr int kPieces = kBytes / 16;  // of a row; a power of two
    constexpr int kAll = kTileRows * kPieces;
    const int row = lane / kPieces, piece = lane % kPieces;
    const int step = stride * (32 / kPieces * kBytes);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const std::uint8_t* const from = source.field[k][kField] + b * kBytes;
#pragma unroll
      for (int at = 0; at < kAll; at += 32) {
        const int r = row + at / kPieces;
        copy_async<16>(to + k * kStageBytes<C> + (r * kPieces + C::swizzle(kField, r, piece)) * 16,
                       from + at / 32 * step);
      }
    }
  }
}

/// Starts copying a stage of every tile, one behind the other: block b of their rows.
template <class C, int kTiles>
__device__ __forceinline__ void issue_stage(const TileSource<C, kTiles>& source, int b, int stride,
                                            std::uint8_t* stage, int lane) {
  issue_field<C, 0>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 1) issue_field<C, 1>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 2) issue_field<C, 2>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 3) issue_field<C, 3>(source, b, stride, stage, lane);
}

}  // namespace ebb::cuda
