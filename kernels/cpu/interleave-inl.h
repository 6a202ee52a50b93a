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

/// The group of 16 values whose sums stand in a lane.
constexpr int group_of_lane(int lane) { return 4 * (lane % 4) + lane / 4; }

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

/// Reorders 256 bytes, in place, from the order of values to [4 quarters][16 lanes][4 values]: word
/// c of a group (a word is 4 values) comes to stand in quarter c, at the group's lane. `flip` is
/// xored into every byte.
HWY_INLINE void interleave(std::int8_t* q, std::int8_t flip) {
#if HWY_TARGET != HWY_SCALAR
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::uint32_t, 16> d32;
  const hn::Repartition<std::int8_t, decltype(d32)> d8;
  constexpr std::size_t kWords = hn::MaxLanes(d32);
  constexpr std::size_t kParts = 16 / kWords;
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(q);
  const auto flips = hn::BitCast(d32, hn::Set(d8, flip));
  hn::Vec<decltype(d32)> r[kParts][4];
  for (std::size_t p = 0; p < kParts; ++p) {
    for (std::size_t z = 0; z < 4; ++z) r[p][z] = hn::Load(d32, words + 16 * z + p * kWords);
    transpose_words(d32, r[p]);
  }
  for (std::size_t p = 0; p < kParts; ++p) {
    for (std::size_t c = 0; c < 4; ++c) {
      hn::Store(hn::Xor(r[p][c], flips), d32, words + 16 * c + p * kWords);
    }
  }
#else
  std::int8_t whole[kTileValues];
  std::memcpy(whole, q, sizeof(whole));
  for (int lane = 0; lane < 16; ++lane) {
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < 4; ++i) {
        q[64 * c + 4 * lane + i] =
            static_cast<std::int8_t>(whole[16 * group_of_lane(lane) + 4 * c + i] ^ flip);
      }
    }
  }
#endif
}

/// Reorders 16 floats, in place, from the order of groups to that of lanes.
HWY_INLINE void to_lanes(float* by_group) {
#if HWY_TARGET != HWY_SCALAR
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> d;
  if constexpr (hn::MaxLanes(d) == 16) {
    alignas(64) static constexpr std::int32_t kGroups[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                             2, 6, 10, 14, 3, 7, 11, 15};
    const auto order = hn::SetTableIndices(d, kGroups);
    hn::Store(hn::TableLookupLanes(hn::Load(d, by_group), order), d, by_group);
    return;
  } else {
    const hn::FixedTag<std::uint32_t, 4> d32;
    std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(by_group);
    hn::Vec<decltype(d32)> r[4];
    for (std::size_t z = 0; z < 4; ++z) r[z] = hn::Load(d32, words + 4 * z);
    transpose_words(d32, r);
    for (std::size_t z = 0; z < 4; ++z) hn::Store(r[z], d32, words + 4 * z);
  }
#else
  float whole[kTileGroups];
  std::memcpy(whole, by_group, sizeof(whole));
  for (int lane = 0; lane < 16; ++lane) by_group[lane] = whole[group_of_lane(lane)];
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
