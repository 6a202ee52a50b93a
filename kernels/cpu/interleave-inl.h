// The order in which integer products read 256 values, for the instruction set being compiled.
// Included once per target: no include guard, but Highway's toggle.

#if defined(EBB_INTERLEAVE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_INTERLEAVE_INL_H
#undef EBB_INTERLEAVE_INL_H
#else
#define EBB_INTERLEAVE_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unpack.h"

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {

/// What the weights of integer products are xored with: VNNI wants them unsigned, as q + 128, and
/// the sum of activations makes it good.
constexpr std::int8_t kFlip = HWY_TARGET == HWY_AVX3_DL ? -128 : 0;

#if HWY_TARGET != HWY_SCALAR
/// Transposes, in every 128-bit part, the 4 x 4 words of r[0..3].
template <class D32, class V32>
HWY_INLINE void transpose_words(D32 d32, V32* r) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Repartition<std::uint64_t, D32> d64;
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d32, r[0], r[1]));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d32, r[2], r[3]));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d32, r[0], r[1]));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d32, r[2], r[3]));
  r[0] = hn::BitCast(d32, hn::InterleaveLower(d64, low01, low23));
  r[1] = hn::BitCast(d32, hn::InterleaveUpper(d64, low01, low23));
  r[2] = hn::BitCast(d32, hn::InterleaveLower(d64, high01, high23));
  r[3] = hn::BitCast(d32, hn::InterleaveUpper(d64, high01, high23));
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// r[z] holds groups 4z .. 4z + 3 of four words each; afterwards r[c] holds word c of all groups.
HWY_INLINE void words_by_quarter(__m512i* r) {
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  const __m512i low01 = _mm512_permutex2var_epi32(r[0], first, r[1]);
  const __m512i low23 = _mm512_permutex2var_epi32(r[0], last, r[1]);
  const __m512i high01 = _mm512_permutex2var_epi32(r[2], first, r[3]);
  const __m512i high23 = _mm512_permutex2var_epi32(r[2], last, r[3]);
  r[0] = _mm512_inserti64x4(low01, _mm512_castsi512_si256(high01), 1);
  r[1] = _mm512_shuffle_i64x2(low01, high01, 0xee);
  r[2] = _mm512_inserti64x4(low23, _mm512_castsi512_si256(high23), 1);
  r[3] = _mm512_shuffle_i64x2(low23, high23, 0xee);
}
#endif

/// Reorders 64 words from [16 groups][4 words] to [4 quarters][16 groups]. `words` and `to` may be
/// the same and are aligned to 64. `flip` is xored into every byte.
HWY_INLINE void interleave_words(const std::uint32_t* words, std::int8_t flip, std::uint32_t* to) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  __m512i r[4];
  for (int z = 0; z < 4; ++z) r[z] = _mm512_load_si512(words + 16 * z);
  words_by_quarter(r);
  const __m512i flips = _mm512_set1_epi8(flip);
  for (int c = 0; c < 4; ++c) _mm512_store_si512(to + 16 * c, _mm512_xor_si512(r[c], flips));
#else
  std::uint32_t whole[64];
  std::memcpy(whole, words, sizeof(whole));
  std::uint32_t flips;
  std::memset(&flips, flip, sizeof(flips));
#if HWY_TARGET == HWY_AVX2
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::FixedTag<std::uint32_t, 8> d;
  const hn::FixedTag<std::uint32_t, 4> d_part;
  for (int first = 0; first < 16; first += 8) {
    hn::Vec<decltype(d)> r[4];
    for (int z = 0; z < 4; ++z) {
      const std::uint32_t* const group = whole + 4 * (first + z);
      r[z] = hn::Combine(d, hn::LoadU(d_part, group + 16), hn::LoadU(d_part, group));
    }
    transpose_words(d, r);
    for (int c = 0; c < 4; ++c) {
      hn::Store(hn::Xor(r[c], hn::Set(d, flips)), d, to + 16 * c + first);
    }
  }
#else
  for (int group = 0; group < 16; ++group) {
    for (int c = 0; c < 4; ++c) to[16 * c + group] = whole[4 * group + c] ^ flips;
  }
#endif
#endif
}

/// Reorders 256 bytes, in place, from the order of values to [4 quarters][16 groups][4 values].
HWY_INLINE void interleave(std::int8_t* q, std::int8_t flip) {
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(q);
  interleave_words(words, flip, words);
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
