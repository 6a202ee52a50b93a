#pragma once

#include "kernels/cpu/unpack.h"

namespace ebb::cpu {

/// Portable unpackers. A type that decides speed has a SIMD one in unpack_wide-inl.h as well, which
/// gives the same tiles.
UnpackTiles find_plain_tiles(DType type);

/// True for types whose values have an offset besides the scale.
constexpr bool type_has_minus(DType type) {
  return type == DType::q2_k || type == DType::q4_k || type == DType::q5_k;
}

}  // namespace ebb::cpu
