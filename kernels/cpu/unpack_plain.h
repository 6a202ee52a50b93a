#pragma once

#include <cstdint>

#include "kernels/cpu/unpack.h"

namespace ebb::cpu {

/// Portable unpackers. A type that decides speed has a SIMD one in unpack_256-inl.h or
/// unpack_512-inl.h as well, which gives the same tiles.
UnpackTiles find_plain_tiles(DType type);

inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
/// Twice the E2M1 values.
inline constexpr std::int8_t kE2m1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};

/// True for types whose values have an offset besides the scale.
constexpr bool type_has_minus(DType type) {
  return type == DType::q2_k || type == DType::q4_k || type == DType::q5_k;
}

}  // namespace ebb::cpu
