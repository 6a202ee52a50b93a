// Unpackers for AVX-512, of the types that decide speed: same tiles as in unpack_plain.cpp, where
// the layouts are told, but made 64 values at a time, and put in the order of integer products
// without another pass. Included once per target: no include guard, but Highway's toggle.

#if defined(EBB_UNPACK_512_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_UNPACK_512_INL_H
#undef EBB_UNPACK_512_INL_H
#else
#define EBB_UNPACK_512_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/interleave-inl.h"
#include "kernels/cpu/unpack.h"
#include "kernels/cpu/unpack_plain.h"
#include "kernels/quant_grids.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
namespace wide {

using Byte = std::uint8_t;

HWY_INLINE __m512i load(const Byte* b) { return _mm512_loadu_si512(b); }
HWY_INLINE __m256i load_half(const Byte* b) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
}
HWY_INLINE __m128i load_quarter(const Byte* b) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
}
/// 32 bytes, twice.
HWY_INLINE __m512i load_twice(const Byte* b) { return _mm512_broadcast_i64x4(load_half(b)); }

/// The f16 at b in every lane.
HWY_INLINE __m512 half_at(const Byte* b) {
  std::uint16_t bits;
  std::memcpy(&bits, b, sizeof(bits));
  return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/// Lanes 2j and 2j + 1 = v[j]: a number per 32 values becomes one per 16.
HWY_INLINE __m512 twice(__m256 v) {
  const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(v));
}
HWY_INLINE __m512 bytes_as_floats(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

/// 32-bit words at the beginning of 8 blocks of kStride bytes.
template <int kStride>
HWY_INLINE __m256i words_of_blocks(const Byte* b) {
  const __m256i blocks = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i offsets = _mm256_mullo_epi32(blocks, _mm256_set1_epi32(kStride));
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(b), offsets, 1);
}
/// The f16 at the beginning of 8 blocks, twice each.
template <int kStride>
HWY_INLINE __m512 halves_of_blocks(const Byte* b) {
  return twice(_mm256_cvtph_ps(_mm256_cvtepi32_epi16(words_of_blocks<kStride>(b))));
}

/// Shifts the 16-bit words of the lower 32 bytes by `low`, those of the upper ones by `high`.
HWY_INLINE __m512i shift_right(__m512i v, int low, int high) {
  const __m512i counts = _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(low)),
                                            _mm256_set1_epi16(static_cast<short>(high)), 1);
  return _mm512_srlv_epi16(v, counts);
}
HWY_INLINE __m512i shift_left(__m512i v, int low, int high) {
  const __m512i counts = _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(low)),
                                            _mm256_set1_epi16(static_cast<short>(high)), 1);
  return _mm512_sllv_epi16(v, counts);
}
HWY_INLINE __m512i masked(__m512i v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}

/// 256 integers in the order of values, 64 to a vector, and the floats that go with them.
struct Values {
  __m512i q[4];
  __m512 scale;
  __m512 minus;
};

HWY_INLINE void q8_0(const Byte* b, Values& v) {
  for (int z = 0; z < 4; ++z) {
    const Byte* const two = b + 68 * z;
    v.q[z] = _mm512_inserti64x4(_mm512_castsi256_si512(load_half(two + 2)), load_half(two + 36), 1);
  }
  v.scale = halves_of_blocks<34>(b);
}

HWY_INLINE void q2_k(const Byte* b, Values& v) {
  for (int h = 0; h < 2; ++h) {
    const __m512i fields = load_twice(b + 16 + 32 * h);
    v.q[2 * h] = masked(shift_right(fields, 0, 2), 3);
    v.q[2 * h + 1] = masked(shift_right(fields, 4, 6), 3);
  }
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i scales = load_quarter(b);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(scales, 4), nibble);
  v.scale = _mm512_mul_ps(half_at(b + 80), bytes_as_floats(_mm_and_si128(scales, nibble)));
  v.minus = _mm512_mul_ps(half_at(b + 82), bytes_as_floats(high));
}

HWY_INLINE void q3_k(const Byte* b, Values& v) {
  const __m512i high = load_twice(b);
  const __m512i four = _mm512_set1_epi8(4);
  // Bit j of a high byte belongs to run j of 32 values, in place 2.
  const __m512i high_bits[4] = {shift_left(high, 2, 1), shift_right(high, 0, 1),
                                shift_right(high, 2, 3), shift_right(high, 4, 5)};
  for (int z = 0; z < 4; ++z) {
    const __m512i fields = load_twice(b + 32 + 32 * (z / 2));
    const __m512i low =
        masked(z % 2 == 0 ? shift_right(fields, 0, 2) : shift_right(fields, 4, 6), 3);
    v.q[z] = _mm512_sub_epi8(_mm512_or_si512(low, _mm512_and_si512(high_bits[z], four)), four);
  }
  // Sixteen 6-bit scales in 12 bytes: 8 bytes of two low nibbles, 4 bytes of four high pairs.
  std::uint32_t s[3];
  std::memcpy(s, b + 96, sizeof(s));
  const __m128i low = _mm_setr_epi32(
      static_cast<int>(s[0] & 0x0f0f0f0f), static_cast<int>(s[1] & 0x0f0f0f0f),
      static_cast<int>(s[0] >> 4 & 0x0f0f0f0f), static_cast<int>(s[1] >> 4 & 0x0f0f0f0f));
  const __m128i pairs =
      _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(s[2])), _mm_setr_epi32(0, 2, 4, 6));
  const __m128i upper = _mm_slli_epi16(_mm_and_si128(pairs, _mm_set1_epi8(3)), 4);
  const __m128i scales = _mm_sub_epi8(_mm_or_si128(low, upper), _mm_set1_epi8(32));
  v.scale = _mm512_mul_ps(half_at(b + 108), bytes_as_floats(scales));
}

/// Eight bytes as floats, twice each.
HWY_INLINE __m512 eight_bytes_twice(std::uint32_t low, std::uint32_t high) {
  const auto bytes = static_cast<std::int64_t>(low | static_cast<std::uint64_t>(high) << 32);
  return twice(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes))));
}

/// The eight factors and the eight offsets of Q4_K and Q5_K, 6 bits each in 12 bytes.
HWY_INLINE void pairs_of_scales(const Byte* b, Values& v) {
  std::uint32_t s[3];
  std::memcpy(s, b + 4, sizeof(s));
  const __m512 factors =
      eight_bytes_twice(s[0] & 0x3f3f3f3f, (s[2] & 0x0f0f0f0f) | (s[0] >> 2 & 0x30303030));
  const __m512 offsets =
      eight_bytes_twice(s[1] & 0x3f3f3f3f, (s[2] >> 4 & 0x0f0f0f0f) | (s[1] >> 2 & 0x30303030));
  v.scale = _mm512_mul_ps(half_at(b), factors);
  v.minus = _mm512_mul_ps(half_at(b + 2), offsets);
}

HWY_INLINE void q4_k(const Byte* b, Values& v) {
  for (int z = 0; z < 4; ++z) v.q[z] = masked(shift_right(load_twice(b + 16 + 32 * z), 0, 4), 15);
  pairs_of_scales(b, v);
}

HWY_INLINE void q5_k(const Byte* b, Values& v) {
  const __m512i high = load_twice(b + 16);
  // Bit j of a high byte belongs to run j of 32 values, in place 4.
  const __m512i high_bits[4] = {shift_left(high, 4, 3), shift_left(high, 2, 1),
                                shift_right(high, 0, 1), shift_right(high, 2, 3)};
  for (int z = 0; z < 4; ++z) {
    const __m512i low = masked(shift_right(load_twice(b + 48 + 32 * z), 0, 4), 15);
    v.q[z] = _mm512_or_si512(low, masked(high_bits[z], 16));
  }
  pairs_of_scales(b, v);
}

HWY_INLINE void q6_k(const Byte* b, Values& v) {
  const __m512i middle = _mm512_set1_epi8(32);
  for (int h = 0; h < 2; ++h) {
    const __m512i nibbles = load(b + 64 * h);
    const __m512i pairs = load_twice(b + 128 + 32 * h);
    const __m512i low0 = masked(nibbles, 15);
    const __m512i low1 = masked(_mm512_srli_epi16(nibbles, 4), 15);
    const __m512i high0 = masked(shift_left(pairs, 4, 2), 0x30);
    const __m512i high1 = masked(shift_right(pairs, 0, 2), 0x30);
    v.q[2 * h] = _mm512_sub_epi8(_mm512_or_si512(low0, high0), middle);
    v.q[2 * h + 1] = _mm512_sub_epi8(_mm512_or_si512(low1, high1), middle);
  }
  v.scale = _mm512_mul_ps(half_at(b + 208), bytes_as_floats(load_quarter(b + 192)));
}

/// 64 codes of 4 bits: the low nibbles of 16 bytes at b0, their high ones, and the same at b1.
HWY_INLINE __m512i nibbles_of(const Byte* b0, const Byte* b1) {
  const __m512i bytes =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(load_quarter(b0))),
                         _mm256_broadcastsi128_si256(load_quarter(b1)), 1);
  const __m512i counts =
      _mm512_broadcast_i64x4(_mm256_setr_epi64x(0, 0, 0x0004000400040004, 0x0004000400040004));
  return masked(_mm512_srlv_epi16(bytes, counts), 15);
}
HWY_INLINE __m512i look_up(const std::int8_t* table, __m512i codes) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes);
}

HWY_INLINE void iq4_nl(const Byte* b, Values& v) {
  for (int z = 0; z < 4; ++z) {
    v.q[z] = look_up(kIq4Values, nibbles_of(b + 36 * z + 2, b + 36 * z + 20));
  }
  v.scale = halves_of_blocks<18>(b);
}

HWY_INLINE void iq4_xs(const Byte* b, Values& v) {
  for (int z = 0; z < 4; ++z) {
    v.q[z] = look_up(kIq4Values, nibbles_of(b + 8 + 32 * z, b + 24 + 32 * z));
  }
  std::uint16_t high;
  std::uint32_t low;
  std::memcpy(&high, b + 2, sizeof(high));
  std::memcpy(&low, b + 4, sizeof(low));
  const __m256i lows = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(low)),
                                         _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256i highs =
      _mm256_srlv_epi32(_mm256_set1_epi32(high), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i scales =
      _mm256_or_si256(_mm256_and_si256(lows, _mm256_set1_epi32(15)),
                      _mm256_slli_epi32(_mm256_and_si256(highs, _mm256_set1_epi32(3)), 4));
  const __m256 centred = _mm256_cvtepi32_ps(_mm256_sub_epi32(scales, _mm256_set1_epi32(32)));
  v.scale = _mm512_mul_ps(half_at(b), twice(centred));
}

HWY_INLINE void mxfp4(const Byte* b, Values& v) {
  for (int z = 0; z < 4; ++z) {
    v.q[z] = look_up(kE2m1Doubled, nibbles_of(b + 34 * z + 1, b + 34 * z + 18));
  }
  // 2^(e - 128); e = 0 and 1 are subnormal.
  const __m256i e = _mm256_and_si256(words_of_blocks<17>(b), _mm256_set1_epi32(255));
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
  const __m256i subnormal = _mm256_slli_epi32(_mm256_add_epi32(e, one), 21);
  const __mmask8 small = _mm256_cmple_epi32_mask(e, one);
  v.scale = twice(_mm256_castsi256_ps(_mm256_mask_blend_epi32(small, normal, subnormal)));
}

using UnpackValues = void (*)(const Byte*, Values&);

/// One tile, in the order of values or in that of integer products.
template <UnpackValues kUnpack, bool kMinus, bool kLanes>
HWY_INLINE void unpack_tile(const Byte* b, Tile& tile) {
  Values v;
  kUnpack(b, v);
  if constexpr (kLanes) words_by_quarter(v.q);
  for (int z = 0; z < 4; ++z) {
    if constexpr (kLanes) v.q[z] = _mm512_xor_si512(v.q[z], _mm512_set1_epi8(kFlip));
    _mm512_store_si512(tile.q + 64 * z, v.q[z]);
  }
  _mm512_store_ps(tile.scale, v.scale);
  if constexpr (kMinus) _mm512_store_ps(tile.minus, v.minus);
}

/// Four sign bytes in the low half of every 64-bit group of IQ2_XXS: the fields of 7 bits that its
/// high half begins with, each completed by its parity. The upper four bytes are of no use.
HWY_INLINE __m512i sign_bytes(__m512i groups) {
#if HWY_TARGET == HWY_AVX3_DL
  const __m512i offsets = _mm512_set1_epi64(0x352e2720);  // bits 32, 39, 46 and 53
  const __m512i fields = masked(_mm512_multishift_epi64_epi8(offsets, groups), 0x7f);
  const __m512i parity = _mm512_slli_epi16(_mm512_popcnt_epi8(fields), 7);
  return _mm512_or_si512(fields, masked(parity, 0x80));
#else
  const __m512i words = _mm512_srli_epi64(groups, 32);
  __m512i signs = _mm512_and_si512(words, _mm512_set1_epi64(0x7f));
  for (int l = 1; l < 4; ++l) {
    const __m512i field =
        _mm512_and_si512(_mm512_sll_epi64(words, _mm_cvtsi32_si128(l)),
                         _mm512_set1_epi64(static_cast<long long>(std::uint64_t{0x7f} << (8 * l))));
    signs = _mm512_or_si512(signs, field);
  }
  __m512i parity = _mm512_xor_si512(signs, masked(_mm512_srli_epi64(signs, 4), 15));
  parity = _mm512_xor_si512(parity, masked(_mm512_srli_epi64(parity, 2), 3));
  parity = _mm512_xor_si512(parity, _mm512_srli_epi64(parity, 1));
  return _mm512_or_si512(signs, _mm512_slli_epi64(masked(parity, 1), 7));
#endif
}

/// IQ2_XXS: eight groups of 8 bytes: four indices, and a word of 4 x 7 sign bits and a scale. One
/// gather brings octet l of all groups; octets 0 and 1 make one group of 16 values, 2 and 3 the
/// next, so the halves of the gathered octets are the quarters of integer products as they are.
template <bool kLanes>
HWY_INLINE void iq2_xxs(const Byte* b, Tile& tile) {
  const __m512i groups = load(b + 2);
  const __m512i signs = sign_bytes(groups);
  const __m512i bit_of_byte = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  __m512i octets[4];
#pragma GCC unroll 4
  for (int l = 0; l < 4; ++l) {
    // Byte l of each group alone, as an index, and eight times, so that byte i can look at sign i.
    const long long l_times_8 = l * 0x0101010101010101;
    const __m512i alone =
        _mm512_broadcast_i32x4(_mm_set_epi64x(static_cast<long long>(0x8080808080808008) + l,
                                              static_cast<long long>(0x8080808080808000) + l));
    const __m512i eight_times =
        _mm512_broadcast_i32x4(_mm_set_epi64x(0x0808080808080808 + l_times_8, l_times_8));
    const __m512i magnitudes =
        _mm512_i64gather_epi64(_mm512_shuffle_epi8(groups, alone), kernels::kGridIq2Xxs, 8);
    const __mmask64 negative =
        _mm512_test_epi8_mask(_mm512_shuffle_epi8(signs, eight_times), bit_of_byte);
    octets[l] = _mm512_mask_sub_epi8(magnitudes, negative, _mm512_setzero_si512(), magnitudes);
  }

  if constexpr (kLanes) {
    const __m512i flips = _mm512_set1_epi8(kFlip);
    const __mmask16 even = 0x5555;
    const __mmask16 odd = 0xaaaa;
    constexpr auto kSwap = static_cast<_MM_PERM_ENUM>(0xb1);  // the two words of every 64 bits
    const __m512i quarters[4] = {_mm512_mask_shuffle_epi32(octets[0], odd, octets[2], kSwap),
                                 _mm512_mask_shuffle_epi32(octets[2], even, octets[0], kSwap),
                                 _mm512_mask_shuffle_epi32(octets[1], odd, octets[3], kSwap),
                                 _mm512_mask_shuffle_epi32(octets[3], even, octets[1], kSwap)};
    for (int c = 0; c < 4; ++c) {
      _mm512_store_si512(tile.q + 64 * c, _mm512_xor_si512(quarters[c], flips));
    }
  } else {
    // Octets 0 and 1 of a group side by side, and 2 and 3; then the 128-bit parts are transposed.
    const __m512i even01 = _mm512_unpacklo_epi64(octets[0], octets[1]);
    const __m512i odd01 = _mm512_unpackhi_epi64(octets[0], octets[1]);
    const __m512i even23 = _mm512_unpacklo_epi64(octets[2], octets[3]);
    const __m512i odd23 = _mm512_unpackhi_epi64(octets[2], octets[3]);
    const __m512i even_low = _mm512_shuffle_i64x2(even01, even23, 0x44);
    const __m512i even_high = _mm512_shuffle_i64x2(even01, even23, 0xee);
    const __m512i odd_low = _mm512_shuffle_i64x2(odd01, odd23, 0x44);
    const __m512i odd_high = _mm512_shuffle_i64x2(odd01, odd23, 0xee);
    _mm512_store_si512(tile.q, _mm512_shuffle_i64x2(even_low, odd_low, 0x88));
    _mm512_store_si512(tile.q + 64, _mm512_shuffle_i64x2(even_low, odd_low, 0xdd));
    _mm512_store_si512(tile.q + 128, _mm512_shuffle_i64x2(even_high, odd_high, 0x88));
    _mm512_store_si512(tile.q + 192, _mm512_shuffle_i64x2(even_high, odd_high, 0xdd));
  }

  // d * (0.5 + s) * 0.25; the factor of d is exact.
  const __m256 s = _mm256_cvtepi32_ps(_mm512_cvtepi64_epi32(_mm512_srli_epi64(groups, 60)));
  const __m256 factor = _mm256_fmadd_ps(s, _mm256_set1_ps(0.25f), _mm256_set1_ps(0.125f));
  _mm512_store_ps(tile.scale, _mm512_mul_ps(half_at(b), twice(factor)));
}

using UnpackTile = void (*)(const Byte*, Tile&);

/// How far ahead of the tile being made memory is asked for: rows follow one another, and between
/// unpacking some rows and the next the multiplications leave the memory idle.
constexpr std::int64_t kAhead = 1024;

/// Whole tiles by kUnpack, a last one that is not full by the portable unpacker.
template <DType kType, UnpackTile kUnpack, bool kLanes>
void tiles(const std::byte* blocks, std::int64_t n_values, Tile* to) {
  constexpr std::int64_t kBytes = row_bytes(kType, kTileValues);
  for (; n_values >= kTileValues; n_values -= kTileValues, blocks += kBytes, ++to) {
    for (std::int64_t line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(blocks) + kAhead + line, _MM_HINT_T0);
    }
    kUnpack(reinterpret_cast<const Byte*>(blocks), *to);
  }
  if (n_values == 0) return;
  find_plain_tiles(kType)(blocks, n_values, to);
  if constexpr (kLanes) interleave(to->q, kFlip);
}

template <DType kType, UnpackValues kUnpack, bool kLanes>
UnpackTiles tiles_of_values() {
  return tiles<kType, unpack_tile<kUnpack, type_has_minus(kType), kLanes>, kLanes>;
}

template <bool kLanes>
UnpackTiles find(DType type) {
  switch (type) {
    case DType::q8_0:
      return tiles_of_values<DType::q8_0, q8_0, kLanes>();
    case DType::q2_k:
      return tiles_of_values<DType::q2_k, q2_k, kLanes>();
    case DType::q3_k:
      return tiles_of_values<DType::q3_k, q3_k, kLanes>();
    case DType::q4_k:
      return tiles_of_values<DType::q4_k, q4_k, kLanes>();
    case DType::q5_k:
      return tiles_of_values<DType::q5_k, q5_k, kLanes>();
    case DType::q6_k:
      return tiles_of_values<DType::q6_k, q6_k, kLanes>();
    case DType::iq4_nl:
      return tiles_of_values<DType::iq4_nl, iq4_nl, kLanes>();
    case DType::iq4_xs:
      return tiles_of_values<DType::iq4_xs, iq4_xs, kLanes>();
    case DType::mxfp4:
      return tiles_of_values<DType::mxfp4, mxfp4, kLanes>();
    case DType::iq2_xxs:
      return tiles<DType::iq2_xxs, iq2_xxs<kLanes>, kLanes>;
    default:
      return nullptr;
  }
}

}  // namespace wide

inline UnpackTiles find_wide_tiles(DType type) { return wide::find<false>(type); }
inline UnpackTiles find_wide_lanes(DType type) { return wide::find<true>(type); }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
