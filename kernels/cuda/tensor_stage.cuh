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
inline constexpr int kStageBytes = (field_offset<C>(C::kFields) + 127) / 128 * 128;

/// The rows of a tile: where the lane's piece of each field's first block is.
template <class C>
struct TileSource {
  const std::uint8_t* field[C::kFields];

  template <int kField>
  __device__ __forceinline__ void open_field(const std::uint8_t* plane, std::int64_t first,
                                             int stride, int lane) {
    constexpr int kBytes = C::bytes(kField);
    constexpr int kPieces = kBytes >= 16 ? kBytes / 16 : 1;
    field[kField] = plane + (first + lane / kPieces * stride) * kBytes + lane % kPieces * 16;
  }
  /// `first` is the number of the first row's first block; rows have `stride` blocks.
  __device__ __forceinline__ void open(const Planes& planes, std::int64_t first, int stride,
                                       int lane) {
    open_field<0>(planes.plane[0], first, stride, lane);
    if constexpr (C::kFields > 1) open_field<1>(planes.plane[1], first, stride, lane);
    if constexpr (C::kFields > 2) open_field<2>(planes.plane[2], first, stride, lane);
    if constexpr (C::kFields > 3) open_field<3>(planes.plane[3], first, stride, lane);
  }
  /// The tile that lies `n` rows of `stride` blocks further on.
  __device__ __forceinline__ TileSource rows_on(int n, int stride) const {
    TileSource other;
#pragma unroll
    for (int f = 0; f < C::kFields; ++f) {
      other.field[f] = field[f] + static_cast<std::int64_t>(n) * (stride * C::bytes(f));
    }
    return other;
  }
};

/// Starts copying one field of block b of every row; rows have `stride` blocks.
template <class C, int kField>
__device__ __forceinline__ void issue_field(const TileSource<C>& source, int b, int stride,
                                            std::uint8_t* stage, int lane) {
  constexpr int kBytes = C::bytes(kField);
  std::uint8_t* const to = stage + field_offset<C>(kField);
  const std::uint8_t* const from = source.field[kField] + b * kBytes;
  if constexpr (kBytes >= 16) {
    constexpr int kPieces = kBytes / 16;  // of a row; a power of two
    constexpr int kAll = kTileRows * kPieces;
    const int row = lane / kPieces, piece = lane % kPieces;
    const int step = stride * (32 / kPieces * kBytes);
#pragma unroll
    for (int at = 0; at < kAll; at += 32) {
      const int r = row + at / kPieces;
      if (kAll >= 32 || lane < kAll) {
        copy_async<16>(to + (r * kPieces + C::swizzle(kField, r, piece)) * 16,
                       from + at / 32 * step);
      }
    }
  } else if (lane < kTileRows) {
    if constexpr (kBytes == 2) {
      copy_async<4>(to + lane * 4,
                    reinterpret_cast<const std::uint8_t*>(reinterpret_cast<std::uintptr_t>(from) &
                                                          ~std::uintptr_t{3}));
    } else {
      copy_async<kBytes>(to + lane * kBytes, from);
    }
  }
}

/// Starts copying a stage: block b of the tile's rows.
template <class C>
__device__ __forceinline__ void issue_stage(const TileSource<C>& source, int b, int stride,
                                            std::uint8_t* stage, int lane) {
  issue_field<C, 0>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 1) issue_field<C, 1>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 2) issue_field<C, 2>(source, b, stride, stage, lane);
  if constexpr (C::kFields > 3) issue_field<C, 3>(source, b, stride, stage, lane);
}

}  // namespace ebb::cuda
