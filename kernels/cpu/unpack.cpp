#include "kernels/cpu/unpack.h"

#include <cstring>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/unpack_plain.h"

// Unpackers for the instruction set at hand. Tiles of a type are the same on every instruction set,
// and so are the floats made of them: scale * q is rounded, then the offset is subtracted.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unpack.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/cpu/interleave-inl.h"
#include "kernels/cpu/unpack_256-inl.h"
#include "kernels/cpu/unpack_512-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

UnpackTiles unpack_tiles_of(DType type) {
  const UnpackTiles wide = find_wide_tiles(type);
  return wide != nullptr ? wide : find_plain_tiles(type);
}

/// Tiles of kType in the order of integer products, where there is no faster way to make them.
template <DType kType>
void reordered_tiles(const std::byte* blocks, std::int64_t n_values, Tile* tiles) {
  unpack_tiles_of(kType)(blocks, n_values, tiles);
  for (std::int64_t first = 0; first < n_values; first += kTileValues, ++tiles) {
    interleave(tiles->q, kFlip);
  }
}

template <bool kMinus>
void expand(const Tile& tile, std::int64_t n_values, float* values) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d_int;
  const hn::Rebind<std::int8_t, decltype(d)> d_byte;
  for (std::int64_t first = 0; first < n_values; first += kGroupValues) {
    const auto scale = hn::Set(d, tile.scale[first / kGroupValues]);
    const auto minus = hn::Set(d, kMinus ? tile.minus[first / kGroupValues] : 0.0f);
    for (std::size_t i = 0; i < kGroupValues; i += hn::Lanes(d)) {
      const auto q = hn::PromoteTo(d_int, hn::LoadU(d_byte, tile.q + first + i));
      auto value = hn::Mul(scale, hn::ConvertTo(d, q));
      if constexpr (kMinus) value = hn::Sub(value, minus);
      hn::StoreU(value, d, values + first + i);
    }
  }
}

/// Floats of a quantised type.
template <DType kType>
void tile_floats(const std::byte* blocks, std::int64_t n_values, float* values) {
  const UnpackTiles tiles = unpack_tiles_of(kType);
  Tile some[4];
  constexpr std::int64_t kStep = 4 * kTileValues;
  for (std::int64_t first = 0; first < n_values; first += kStep) {
    const std::int64_t n = n_values - first < kStep ? n_values - first : kStep;
    tiles(blocks + row_bytes(kType, first), n, some);
    for (std::int64_t i = 0; i < n; i += kTileValues) {
      const std::int64_t n_tile = n - i < kTileValues ? n - i : kTileValues;
      expand<type_has_minus(kType)>(some[i / kTileValues], n_tile, values + first + i);
    }
  }
}

void f32_floats(const std::byte* blocks, std::int64_t n_values, float* values) {
  std::memcpy(values, blocks, static_cast<std::size_t>(n_values) * sizeof(float));
}

/// F16 and BF16: `Half` is Highway's type.
template <class Half>
void half_floats(const std::byte* blocks, std::int64_t n_values, float* values) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<Half, decltype(d)> d_half;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const Half* const halves = reinterpret_cast<const Half*>(blocks);
  std::int64_t i = 0;
  for (; i + kLanes <= n_values; i += kLanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(d_half, halves + i)), d, values + i);
  }
  if (i == n_values) return;
  alignas(64) std::uint16_t rest[kLanes] = {};
  alignas(64) float rest_values[kLanes];
  const auto n_rest = static_cast<std::size_t>(n_values - i);
  std::memcpy(rest, halves + i, n_rest * sizeof(Half));
  const auto rest_halves = hn::Load(d_half, reinterpret_cast<const Half*>(rest));
  hn::Store(hn::PromoteTo(d, rest_halves), d, rest_values);
  std::memcpy(values + i, rest_values, n_rest * sizeof(float));
}

template <DType kType>
Unpacker quantised() {
  Unpacker unpacker;
  unpacker.tiles = unpack_tiles_of(kType);
  unpacker.lanes = find_wide_lanes(kType);
  if (unpacker.lanes == nullptr) unpacker.lanes = reordered_tiles<kType>;
  unpacker.floats = tile_floats<kType>;
  unpacker.has_minus = type_has_minus(kType);
  return unpacker;
}

Unpacker floats_only(UnpackFloats floats) {
  Unpacker unpacker;
  unpacker.floats = floats;
  return unpacker;
}

Unpacker unpacker_of(DType type) {
  switch (type) {
    case DType::f32:
      return floats_only(f32_floats);
    case DType::f16:
      return floats_only(half_floats<hwy::float16_t>);
    case DType::bf16:
      return floats_only(half_floats<hwy::bfloat16_t>);
    case DType::q8_0:
      return quantised<DType::q8_0>();
    case DType::q2_k:
      return quantised<DType::q2_k>();
    case DType::q3_k:
      return quantised<DType::q3_k>();
    case DType::q4_k:
      return quantised<DType::q4_k>();
    case DType::q5_k:
      return quantised<DType::q5_k>();
    case DType::q6_k:
      return quantised<DType::q6_k>();
    case DType::iq2_xxs:
      return quantised<DType::iq2_xxs>();
    case DType::iq2_xs:
      return quantised<DType::iq2_xs>();
    case DType::iq2_s:
      return quantised<DType::iq2_s>();
    case DType::iq3_xxs:
      return quantised<DType::iq3_xxs>();
    case DType::iq3_s:
      return quantised<DType::iq3_s>();
    case DType::iq1_s:
      return quantised<DType::iq1_s>();
    case DType::iq1_m:
      return quantised<DType::iq1_m>();
    case DType::iq4_nl:
      return quantised<DType::iq4_nl>();
    case DType::iq4_xs:
      return quantised<DType::iq4_xs>();
    case DType::mxfp4:
      return quantised<DType::mxfp4>();
    case DType::nvfp4:
      return quantised<DType::nvfp4>();
    default:
      return Unpacker{};
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(unpacker_of);

Unpacker find_unpacker(DType type) { return HWY_DYNAMIC_DISPATCH(unpacker_of)(type); }

}  // namespace ebb::cpu
#endif
