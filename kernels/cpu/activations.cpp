#include "kernels/cpu/activations.h"

#include <cstring>

#include "kernels/cpu/simd_targets.h"

// Rounding to int8 and the gate of an expert. Both give the same bits wherever a value stands in a
// row and whatever the width of the machine's vectors.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activations.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "kernels/cpu/interleave-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DInt = hn::Rebind<std::int32_t, D>;
using V = hn::Vec<D>;
constexpr std::size_t kLanes = hn::MaxLanes(D());

/// Bits of the largest magnitude of every group. As integers, magnitudes order like floats, with
/// infinity and NaN above all numbers.
void group_maxima(const float* x, std::int32_t* maxima) {
  // Four maxima per group; then, reordered like the values of a tile, they stand in four vectors.
  alignas(64) std::uint32_t partial[4 * kTileGroups];
  const hn::CappedTag<float, 4> d4;
  const hn::RebindToSigned<decltype(d4)> d4_int;
  const hn::RebindToUnsigned<decltype(d4)> d4_unsigned;
  constexpr std::int64_t kLanes4 = hn::MaxLanes(d4);
  const auto magnitude = hn::Set(d4_int, 0x7fffffff);
  for (std::int64_t group = 0; group < kTileGroups; ++group) {
    for (std::int64_t i = 0; i < 4; i += kLanes4) {
      auto largest = hn::Zero(d4_int);
      for (std::int64_t z = 0; z < 4; ++z) {
        const auto value = hn::LoadU(d4, x + group * kGroupValues + 4 * z + i);
        largest = hn::Max(largest, hn::And(hn::BitCast(d4_int, value), magnitude));
      }
      hn::Store(hn::BitCast(d4_unsigned, largest), d4_unsigned, partial + 4 * group + i);
    }
  }
  interleave_words(partial, 0, partial);
  const DInt d;
  const hn::RebindToUnsigned<DInt> d_unsigned;
  for (std::size_t p = 0; p < kTileGroups; p += kLanes) {
    auto largest = hn::Zero(d);
    for (std::size_t c = 0; c < 4; ++c) {
      const auto bits = hn::Load(d_unsigned, partial + 16 * c + p);
      largest = hn::Max(largest, hn::BitCast(d, bits));
    }
    hn::Store(largest, d, maxima + p);
  }
}

/// 256 values.
void quantise_tile(const float* x, ActTile& tile) {
  const D d;
  const DInt d_int;
  const hn::Rebind<std::int8_t, D> d_byte;
  alignas(64) std::int32_t maxima[kTileGroups];
  alignas(64) float inverse[kTileGroups];
  group_maxima(x, maxima);
  const V infinity = hn::BitCast(d, hn::Set(d_int, 0x7f800000));
  const V tiny = hn::Set(d, 1e-30f);  // its reciprocal is still a number; less counts as nothing
  for (std::size_t p = 0; p < 16; p += kLanes) {
    const V amax = hn::BitCast(d, hn::Load(d_int, maxima + p));
    const auto usual = hn::And(hn::Ge(amax, tiny), hn::Lt(amax, infinity));
    // amax - amax is 0, or NaN where amax is infinite or NaN.
    const V scale = hn::IfThenElse(usual, hn::Div(amax, hn::Set(d, 127.0f)), hn::Sub(amax, amax));
    hn::Store(scale, d, tile.scale + p);
    hn::Store(hn::IfThenElseZero(usual, hn::Div(hn::Set(d, 127.0f), amax)), d, inverse + p);
  }
  for (int group = 0; group < kTileGroups; ++group) {
    const float factor = inverse[group];
    if (factor == 0) {
      std::memset(tile.q + 16 * group, 0, 16);
      continue;
    }
    for (int i = 0; i < 16; i += static_cast<int>(kLanes)) {
      const V value = hn::Mul(hn::LoadU(d, x + 16 * group + i), hn::Set(d, factor));
      hn::StoreU(hn::DemoteTo(d_byte, hn::NearestInt(value)), d_byte, tile.q + 16 * group + i);
    }
  }
  interleave(tile.q, 0);
  // Sums of 16 bytes: as q + 128, two at a time in 16-bit halves, then both halves.
  const hn::RebindToUnsigned<DInt> d_words;
  const auto low_bytes = hn::Set(d_words, 0x00ff00ffu);
  const auto* const words = reinterpret_cast<const std::uint32_t*>(tile.q);
  for (std::size_t p = 0; p < kTileGroups; p += kLanes) {
    auto pairs = hn::Zero(d_words);
    for (std::size_t c = 0; c < 4; ++c) {
      const auto bytes =
          hn::Xor(hn::Load(d_words, words + 16 * c + p), hn::Set(d_words, 0x80808080u));
      pairs = hn::Add(pairs, hn::And(bytes, low_bytes));
      pairs = hn::Add(pairs, hn::And(hn::ShiftRight<8>(bytes), low_bytes));
    }
    const auto halves =
        hn::Add(hn::And(pairs, hn::Set(d_words, 0xffffu)), hn::ShiftRight<16>(pairs));
    const auto sum = hn::Sub(hn::BitCast(d_int, halves), hn::Set(d_int, 16 * 128));
    hn::Store(hn::Neg(hn::ShiftLeft<7>(sum)), d_int, tile.bias + p);
    hn::Store(hn::Mul(hn::Load(d, tile.scale + p), hn::ConvertTo(d, sum)), d, tile.sum + p);
  }
}

void quantise_simd(const float* x, std::int64_t n, ActTile* tiles) {
  for (std::int64_t first = 0; first < n; first += kTileValues, ++tiles) {
    if (n - first >= kTileValues) {
      quantise_tile(x + first, *tiles);
    } else {
      float padded[kTileValues] = {};
      std::memcpy(padded, x + first, static_cast<std::size_t>(n - first) * sizeof(float));
      quantise_tile(padded, *tiles);
    }
  }
}

HWY_INLINE V gated_vector(V gate, V up, V limit) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V below = hn::Neg(limit);
  const V exp_limit = hn::Set(d, 88.0f);  // exp stays finite; the sigmoid is 0 from here on
  // Comparisons with NaN are false, so a NaN passes; Min and Max would replace it.
  gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
  up = hn::IfThenElse(hn::Gt(up, limit), limit, up);
  up = hn::IfThenElse(hn::Lt(up, below), below, up);
  V negative = hn::Neg(gate);
  negative = hn::IfThenElse(hn::Gt(negative, exp_limit), exp_limit, negative);
  const V sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, negative)));
  return hn::Mul(hn::Mul(gate, sigmoid), up);
}

void gated_simd(const float* g, const float* u, float clamp, std::int64_t n, float* h) {
  const D d;
  const V limit = hn::Set(d, clamp);
  constexpr auto kStep = static_cast<std::int64_t>(kLanes);
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    hn::StoreU(gated_vector(hn::LoadU(d, g + i), hn::LoadU(d, u + i), limit), d, h + i);
  }
  if (i == n) return;
  alignas(64) float rest[2][kLanes] = {};
  const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(float);
  std::memcpy(rest[0], g + i, bytes);
  std::memcpy(rest[1], u + i, bytes);
  hn::Store(gated_vector(hn::Load(d, rest[0]), hn::Load(d, rest[1]), limit), d, rest[0]);
  std::memcpy(h + i, rest[0], bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(quantise_simd);
HWY_EXPORT(gated_simd);

void quantise(const float* x, std::int64_t n, ActTile* tiles) {
  HWY_DYNAMIC_DISPATCH(quantise_simd)(x, n, tiles);
}

void gated(const float* g, const float* u, float clamp, std::int64_t n, float* h) {
  HWY_DYNAMIC_DISPATCH(gated_simd)(g, u, clamp, n, h);
}

}  // namespace ebb::cpu
#endif
