// Lanes run over chunks: a query value is broadcast and multiplied with 64 keys at once. Blocks of
// heads and vectors of chunks are chosen to fill the registers; a value never depends on the
// choice.

#include "kernels/cpu/select_tile.h"

#include <cstring>

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select_tile.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;
constexpr std::int32_t kLanes = hn::MaxLanes(Tag());

// 16 accumulators and their operands want 32 registers.
constexpr std::int32_t kVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

/// Adds the weighted scores of kHeads heads to `sum`, for kVectors vectors of chunks. The loops
/// over registers must be unrolled for them to be registers.
template <std::int32_t kHeads>
HWY_INLINE void AddHeads(const float* HWY_RESTRICT q, std::int32_t d, const float* weight,
                         float weight_scale, const float* HWY_RESTRICT tile, Vector* sum) {
  const Tag tag;
  Vector dots[kHeads][kVectors];
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) dots[h][v] = hn::Zero(tag);
  }
  for (std::int32_t i = 0; i < d; ++i) {
    Vector key[kVectors];
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v)
      key[v] = hn::Load(tag, tile + i * kSelectTile + v * kLanes);
#pragma GCC unroll 8
    for (std::int32_t h = 0; h < kHeads; ++h) {
      const Vector x = hn::Set(tag, q[h * d + i]);
#pragma GCC unroll 8
      for (std::int32_t v = 0; v < kVectors; ++v) dots[h][v] = hn::MulAdd(x, key[v], dots[h][v]);
    }
  }
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kHeads; ++h) {
    const Vector w = hn::Set(tag, weight[h] * weight_scale);
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) {
      // Not a maximum with 0, which may drop a NaN.
      const Vector positive = hn::IfThenZeroElse(hn::Lt(dots[h][v], hn::Zero(tag)), dots[h][v]);
      sum[v] = hn::MulAdd(w, positive, sum[v]);
    }
  }
}

/// score[0..kSelectTile) of one row against a transposed tile [d][kSelectTile]. Returns a bit for
/// every chunk whose score is above `least`.
std::uint64_t ScoreTile(const float* q, const float* weight, float weight_scale,
                        std::int32_t n_heads, std::int32_t d, const float* tile, float least,
                        float* score) {
  const Tag tag;
  std::uint64_t above = 0;
  for (std::int32_t c = 0; c < kSelectTile; c += kVectors * kLanes) {
    Vector sum[kVectors];
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(tag);
    std::int32_t h = 0;
    for (; h + 4 <= n_heads; h += 4) {
      AddHeads<4>(q + h * d, d, weight + h, weight_scale, tile + c, sum);
    }
    for (; h < n_heads; ++h) {
      AddHeads<1>(q + h * d, d, weight + h, weight_scale, tile + c, sum);
    }
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[v], tag, score + c + v * kLanes);
      std::uint8_t bits[8] = {};
      hn::StoreMaskBits(tag, hn::Gt(sum[v], hn::Set(tag, least)), bits);
      std::uint64_t word;
      std::memcpy(&word, bits, sizeof(word));
      above |= word << (c + v * kLanes);
    }
  }
  return above;
}

#if HWY_TARGET != HWY_SCALAR
/// A vector of 4 values from each of kLanes/4 rows, every fourth one of `rows`.
template <class D>
HWY_INLINE hn::Vec<D> LoadFours(D tag, const float* const* rows, std::int32_t i) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(tag, rows[0] + i);
  } else {
    const hn::Half<D> half;
    constexpr std::int32_t kRows = hn::MaxLanes(half);
    return hn::Combine(tag, LoadFours(half, rows + kRows, i), LoadFours(half, rows, i));
  }
}

#endif

/// tile[i][c] = rows[c][i], for d dims and kSelectTile rows.
void TransposeTile(const float* const* rows, std::int32_t d, float* tile) {
  std::int32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Tag tag;
  const hn::Repartition<double, Tag> pairs;
  const auto low = [&](auto a, auto b) {
    return hn::BitCast(tag,
                       hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto high = [&](auto a, auto b) {
    return hn::BitCast(tag,
                       hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  for (; i + 4 <= d; i += 4) {
    for (std::int32_t c = 0; c < kSelectTile; c += kLanes) {
      const Vector a = LoadFours(tag, rows + c, i), b = LoadFours(tag, rows + c + 1, i);
      const Vector e = LoadFours(tag, rows + c + 2, i), f = LoadFours(tag, rows + c + 3, i);
      const Vector ab0 = hn::InterleaveLower(tag, a, b), ab1 = hn::InterleaveUpper(tag, a, b);
      const Vector ef0 = hn::InterleaveLower(tag, e, f), ef1 = hn::InterleaveUpper(tag, e, f);
      float* const to = tile + i * kSelectTile + c;
      hn::Store(low(ab0, ef0), tag, to);
      hn::Store(high(ab0, ef0), tag, to + kSelectTile);
      hn::Store(low(ab1, ef1), tag, to + 2 * kSelectTile);
      hn::Store(high(ab1, ef1), tag, to + 3 * kSelectTile);
    }
  }
#endif
  for (; i < d; ++i) {
    for (std::int32_t c = 0; c < kSelectTile; ++c) tile[i * kSelectTile + c] = rows[c][i];
  }
}

}  // namespace
}  // namespace ebb::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(ScoreTile);
HWY_EXPORT(TransposeTile);

void transpose_tile(const float* const* rows, std::int32_t d, float* tile) {
  HWY_DYNAMIC_DISPATCH(TransposeTile)(rows, d, tile);
}
std::uint64_t score_tile(const float* q, const float* weight, float weight_scale,
                         std::int32_t n_heads, std::int32_t d, const float* tile, float least,
                         float* score) {
  return HWY_DYNAMIC_DISPATCH(ScoreTile)(q, weight, weight_scale, n_heads, d, tile, least, score);
}

}  // namespace ebb::cpu
#endif
