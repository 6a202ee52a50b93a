// Unpackers for AVX2, of the types that decide speed. Each
// gives the same tile, bit by bit, as its portable twin in unpack_plain.cpp, where the layouts are
// told. Included once per target: no include guard, but Highway's toggle.

#if defined(EBB_UNPACK_256_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_UNPACK_256_INL_H
#undef EBB_UNPACK_256_INL_H
#else
#define EBB_UNPACK_256_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unpack.h"
#include "kernels/cpu/unpack_plain.h"
#include "kernels/quant_grids.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2
namespace wide {
namespace hn = hwy::HWY_NAMESPACE;

using Byte = std::uint8_t;
using DBytes = hn::FixedTag<Byte, 32>;
using DHalfBytes = hn::FixedTag<Byte, 16>;
using DWords = hn::FixedTag<std::int32_t, 8>;
using DFloats = hn::FixedTag<float, 8>;
using VBytes = hn::Vec<DBytes>;
using VWords = hn::Vec<DWords>;
using VFloats = hn::Vec<DFloats>;

/// The f16 at b.
HWY_INLINE float half_at(const Byte* b) {
  const hn::FixedTag<hwy::float16_t, 4> d_half;
  const hn::FixedTag<std::uint16_t, 4> d16;
  std::uint16_t bits;
  std::memcpy(&bits, b, sizeof(bits));
  const auto half = hn::BitCast(d_half, hn::Set(d16, bits));
  return hn::GetLane(hn::PromoteTo(hn::FixedTag<float, 4>(), half));
}

/// to[2j] = to[2j + 1] = v[j]: a scale per 32 values becomes one per 16.
HWY_INLINE void store_twice(VFloats v, float* to) {
  const DFloats d;
  const VFloats low = hn::InterleaveLower(d, v, v);
  const VFloats high = hn::InterleaveUpper(d, v, v);
  hn::Store(hn::ConcatLowerLower(d, high, low), d, to);
  hn::Store(hn::ConcatUpperUpper(d, high, low), d, to + 8);
}

/// 32-bit words at the beginning of 8 blocks of kStride bytes.
template <int kStride>
HWY_INLINE VWords words_of_blocks(const Byte* b) {
  const DWords d;
  const VWords offsets = hn::Mul(hn::Iota(d, 0), hn::Set(d, kStride));
  return hn::GatherOffset(d, reinterpret_cast<const std::int32_t*>(b), offsets);
}

/// 32 bytes shifted right by kBits, of which `mask` remains.
template <int kBits>
HWY_INLINE VBytes bits_of(VBytes v, VBytes mask) {
  const hn::Repartition<std::uint16_t, DBytes> d16;
  const VBytes shifted = hn::BitCast(DBytes(), hn::ShiftRight<kBits>(hn::BitCast(d16, v)));
  return hn::And(shifted, mask);
}

HWY_INLINE void store_bytes(VBytes v, std::int8_t* to) {
  hn::Store(v, DBytes(), reinterpret_cast<Byte*>(to));
}

/// to[i] = factor * bytes[i], i < 16.
template <class Integer>
HWY_INLINE void scale_bytes(hn::Vec<hn::FixedTag<Integer, 16>> bytes, float factor, float* to) {
  const hn::FixedTag<Integer, 8> d_half;
  const DFloats d;
  const VFloats f = hn::Set(d, factor);
  const VWords low = hn::PromoteTo(DWords(), hn::LowerHalf(d_half, bytes));
  const VWords high = hn::PromoteTo(DWords(), hn::UpperHalf(d_half, bytes));
  hn::Store(hn::Mul(f, hn::ConvertTo(d, low)), d, to);
  hn::Store(hn::Mul(f, hn::ConvertTo(d, high)), d, to + 8);
}

/// 8 blocks of Q8_0.
HWY_INLINE void q8_0(const Byte* b, Tile& tile) {
  const DBytes d;
  for (int i = 0; i < 8; ++i) store_bytes(hn::LoadU(d, b + 34 * i + 2), tile.q + 32 * i);
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<hwy::float16_t, 8> d_half;
  const VWords bits = hn::And(words_of_blocks<34>(b), hn::Set(DWords(), 0xffff));
  const auto halves = hn::BitCast(d_half, hn::DemoteTo(d16, bits));
  store_twice(hn::PromoteTo(DFloats(), halves), tile.scale);
}

HWY_INLINE void q2_k(const Byte* b, Tile& tile) {
  const DBytes d;
  const VBytes three = hn::Set(d, Byte{3});
  for (int h = 0; h < 2; ++h) {
    const VBytes fields = hn::LoadU(d, b + 16 + 32 * h);
    std::int8_t* const q = tile.q + 128 * h;
    store_bytes(hn::And(fields, three), q);
    store_bytes(bits_of<2>(fields, three), q + 32);
    store_bytes(bits_of<4>(fields, three), q + 64);
    store_bytes(bits_of<6>(fields, three), q + 96);
  }
  const DHalfBytes d16;
  const hn::Repartition<std::uint16_t, DHalfBytes> d_pairs;
  const auto scales = hn::LoadU(d16, b);
  const auto nibble = hn::Set(d16, Byte{15});
  const auto high =
      hn::And(hn::BitCast(d16, hn::ShiftRight<4>(hn::BitCast(d_pairs, scales))), nibble);
  scale_bytes<Byte>(hn::And(scales, nibble), half_at(b + 80), tile.scale);
  scale_bytes<Byte>(high, half_at(b + 82), tile.minus);
}

/// The eight factors and the eight offsets of Q4_K and Q5_K, 6 bits each in 12 bytes.
HWY_INLINE void pairs_of_scales(const Byte* b, Tile& tile) {
  std::uint32_t s[3];
  std::memcpy(s, b + 4, sizeof(s));
  const std::uint32_t bytes[4] = {s[0] & 0x3f3f3f3f, (s[2] & 0x0f0f0f0f) | (s[0] >> 2 & 0x30303030),
                                  s[1] & 0x3f3f3f3f,
                                  (s[2] >> 4 & 0x0f0f0f0f) | (s[1] >> 2 & 0x30303030)};
  const hn::FixedTag<Byte, 8> d8;
  const DFloats d;
  const Byte* const first = reinterpret_cast<const Byte*>(bytes);
  const VWords factors = hn::PromoteTo(DWords(), hn::LoadU(d8, first));
  const VWords offsets = hn::PromoteTo(DWords(), hn::LoadU(d8, first + 8));
  store_twice(hn::Mul(hn::Set(d, half_at(b)), hn::ConvertTo(d, factors)), tile.scale);
  store_twice(hn::Mul(hn::Set(d, half_at(b + 2)), hn::ConvertTo(d, offsets)), tile.minus);
}

HWY_INLINE void q4_k(const Byte* b, Tile& tile) {
  const DBytes d;
  const VBytes nibble = hn::Set(d, Byte{15});
  for (int i = 0; i < 4; ++i) {
    const VBytes nibbles = hn::LoadU(d, b + 16 + 32 * i);
    store_bytes(hn::And(nibbles, nibble), tile.q + 64 * i);
    store_bytes(bits_of<4>(nibbles, nibble), tile.q + 64 * i + 32);
  }
  pairs_of_scales(b, tile);
}

/// The high bits of value j * 32 + i are bit j of byte i: moves bit kBit of each byte to bit 4.
template <int kBit>
HWY_INLINE VBytes fifth_bit(VBytes high) {
  const hn::Repartition<std::uint16_t, DBytes> d16;
  const VBytes sixteen = hn::Set(DBytes(), Byte{16});
  const auto words = hn::BitCast(d16, high);
  if constexpr (kBit < 4) {
    return hn::And(hn::BitCast(DBytes(), hn::ShiftLeft<4 - kBit>(words)), sixteen);
  } else {
    return hn::And(hn::BitCast(DBytes(), hn::ShiftRight<kBit - 4>(words)), sixteen);
  }
}

template <int kPair>
HWY_INLINE void q5_k_pair(const Byte* nibbles, VBytes high, std::int8_t* q) {
  const VBytes nibble = hn::Set(DBytes(), Byte{15});
  const VBytes v = hn::LoadU(DBytes(), nibbles + 32 * kPair);
  store_bytes(hn::Or(hn::And(v, nibble), fifth_bit<2 * kPair>(high)), q + 64 * kPair);
  store_bytes(hn::Or(bits_of<4>(v, nibble), fifth_bit<2 * kPair + 1>(high)), q + 64 * kPair + 32);
}

HWY_INLINE void q5_k(const Byte* b, Tile& tile) {
  const VBytes high = hn::LoadU(DBytes(), b + 16);
  q5_k_pair<0>(b + 48, high, tile.q);
  q5_k_pair<1>(b + 48, high, tile.q);
  q5_k_pair<2>(b + 48, high, tile.q);
  q5_k_pair<3>(b + 48, high, tile.q);
  pairs_of_scales(b, tile);
}

HWY_INLINE void q6_k(const Byte* b, Tile& tile) {
  const DBytes d;
  const hn::Repartition<std::uint16_t, DBytes> d16;
  const VBytes nibble = hn::Set(d, Byte{15});
  const VBytes upper = hn::Set(d, Byte{0x30});
  const VBytes middle = hn::Set(d, Byte{32});
  for (int h = 0; h < 2; ++h) {
    const VBytes low0 = hn::LoadU(d, b + 64 * h);
    const VBytes low1 = hn::LoadU(d, b + 64 * h + 32);
    const VBytes pairs = hn::LoadU(d, b + 128 + 32 * h);
    const auto words = hn::BitCast(d16, pairs);
    const VBytes high0 = hn::And(hn::BitCast(d, hn::ShiftLeft<4>(words)), upper);
    const VBytes high1 = hn::And(hn::BitCast(d, hn::ShiftLeft<2>(words)), upper);
    const VBytes high2 = hn::And(pairs, upper);
    const VBytes high3 = bits_of<2>(pairs, upper);
    std::int8_t* const q = tile.q + 128 * h;
    store_bytes(hn::Sub(hn::Or(hn::And(low0, nibble), high0), middle), q);
    store_bytes(hn::Sub(hn::Or(hn::And(low1, nibble), high1), middle), q + 32);
    store_bytes(hn::Sub(hn::Or(bits_of<4>(low0, nibble), high2), middle), q + 64);
    store_bytes(hn::Sub(hn::Or(bits_of<4>(low1, nibble), high3), middle), q + 96);
  }
  const hn::FixedTag<std::int8_t, 16> d_scales;
  const auto scales = hn::LoadU(d_scales, reinterpret_cast<const std::int8_t*>(b + 192));
  scale_bytes<std::int8_t>(scales, half_at(b + 208), tile.scale);
}

/// 8 blocks of MXFP4.
HWY_INLINE void mxfp4(const Byte* b, Tile& tile) {
  const DHalfBytes d;
  const hn::Repartition<std::uint16_t, DHalfBytes> d16;
  const hn::FixedTag<std::int8_t, 16> d_values;
  alignas(16) static constexpr std::int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                           0, -1, -2, -3, -4, -6, -8, -12};
  const auto table = hn::Load(d_values, kDoubled);
  const auto nibble = hn::Set(d, Byte{15});
  for (int i = 0; i < 8; ++i) {
    const auto codes = hn::LoadU(d, b + 17 * i + 1);
    std::int8_t* const q = tile.q + 32 * i;
    const auto low = hn::And(codes, nibble);
    const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, codes))), nibble);
    hn::Store(hn::BitCast(d_values, hn::TableLookupBytes(table, low)), d_values, q);
    hn::Store(hn::BitCast(d_values, hn::TableLookupBytes(table, high)), d_values, q + 16);
  }
  // 2^(e - 128); e = 0 and 1 are subnormal.
  const DWords dw;
  const VWords e = hn::And(words_of_blocks<17>(b), hn::Set(dw, 255));
  const VWords normal = hn::ShiftLeft<23>(hn::Sub(e, hn::Set(dw, 1)));
  const VWords subnormal = hn::ShiftLeft<21>(hn::Add(e, hn::Set(dw, 1)));
  const VWords bits = hn::IfThenElse(hn::Lt(e, hn::Set(dw, 2)), subnormal, normal);
  store_twice(hn::BitCast(DFloats(), bits), tile.scale);
}

using UnpackTile = void (*)(const Byte*, Tile&);

/// Whole tiles by kUnpack, a last one that is not full by the portable unpacker.
template <DType kType, UnpackTile kUnpack>
void tiles(const std::byte* blocks, std::int64_t n_values, Tile* to) {
  constexpr std::int64_t kBytes = row_bytes(kType, kTileValues);
  for (; n_values >= kTileValues; n_values -= kTileValues, blocks += kBytes, ++to) {
    kUnpack(reinterpret_cast<const Byte*>(blocks), *to);
  }
  if (n_values > 0) find_plain_tiles(kType)(blocks, n_values, to);
}

inline UnpackTiles find_tiles(DType type) {
  switch (type) {
    case DType::q8_0:
      return tiles<DType::q8_0, q8_0>;
    case DType::q2_k:
      return tiles<DType::q2_k, q2_k>;
    case DType::q4_k:
      return tiles<DType::q4_k, q4_k>;
    case DType::q5_k:
      return tiles<DType::q5_k, q5_k>;
    case DType::q6_k:
      return tiles<DType::q6_k, q6_k>;
    case DType::mxfp4:
      return tiles<DType::mxfp4, mxfp4>;
    default:
      return nullptr;
  }
}
}  // namespace wide

inline UnpackTiles find_wide_tiles(DType type) { return wide::find_tiles(type); }
inline UnpackTiles find_wide_lanes(DType) { return nullptr; }
#elif HWY_TARGET != HWY_AVX3 && HWY_TARGET != HWY_AVX3_DL
inline UnpackTiles find_wide_tiles(DType) { return nullptr; }
inline UnpackTiles find_wide_lanes(DType) { return nullptr; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
