#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/types.h"

namespace ebb::cpu {

inline constexpr std::int64_t kTileValues = 256;  ///< a multiple of every type's block
inline constexpr std::int64_t kGroupValues =
    16;  ///< values that share a scale; divides every block
inline constexpr std::int64_t kTileGroups = kTileValues / kGroupValues;

/// 256 consecutive values of a stored row: value[i] = scale[i/16] * q[i] - minus[i/16].
struct alignas(64) Tile {
  std::int8_t q[kTileValues];
  float scale[kTileGroups];
  float minus[kTileGroups];  ///< written only for types with has_minus
};

/// Writes ceil(n_values / 256) tiles from whole blocks; groups past the end get zeros.
/// n_values is a multiple of the type's block.
using UnpackTiles = void (*)(const std::byte* blocks, std::int64_t n_values, Tile* tiles);

/// Writes n_values floats, each rounded as scale * q, then minus `minus`.
/// n_values is a multiple of the type's block.
using UnpackFloats = void (*)(const std::byte* blocks, std::int64_t n_values, float* values);

/// How rows of one type are read, on this machine's instruction set.
struct Unpacker {
  UnpackTiles tiles = nullptr;    ///< nullptr for F32, F16, BF16: they have no integer form
  UnpackFloats floats = nullptr;  ///< nullptr for types that are no weights (I32, Q8_K)
  bool has_minus = false;
};

Unpacker find_unpacker(DType type);

}  // namespace ebb::cpu
