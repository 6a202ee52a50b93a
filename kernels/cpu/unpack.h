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

/// How rows of one type are read, on this machine's instruction set. The order of integer products
/// is [4 quarters][16 groups][4 values]: a vector of 64 bytes has four values of every group, and a
/// group's sum comes to stand in one lane. With VNNI, every byte is q + 128 there, unsigned.
struct Unpacker {
  UnpackTiles tiles = nullptr;    ///< nullptr for F32, F16, BF16: they have no integer form
  UnpackTiles lanes = nullptr;    ///< the same with q in the order of integer products
  UnpackFloats floats = nullptr;  ///< nullptr for types that are no weights (I32, Q8_K)
  bool has_minus = false;
};

Unpacker find_unpacker(DType type);

}  // namespace ebb::cpu
