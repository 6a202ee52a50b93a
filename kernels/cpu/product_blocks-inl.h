// Register blocks of products, for the instruction set being compiled: what runs between loading
// some accumulators and storing them. Orders of rounding are told in product_simd.cpp. Included
// once per target: no include guard, but Highway's toggle.

#if defined(EBB_PRODUCT_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EBB_PRODUCT_BLOCKS_INL_H
#undef EBB_PRODUCT_BLOCKS_INL_H
#else
#define EBB_PRODUCT_BLOCKS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/interleave-inl.h"
#include "kernels/cpu/unpack.h"

// VNNI is part of what Highway requires for AVX3_DL, but not of the attribute that it sets.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kAccLanes = 16;
using D = hn::CappedTag<float, kAccLanes>;
using DInt = hn::Rebind<std::int32_t, D>;
using V = hn::Vec<D>;
using VInt = hn::Vec<DInt>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = static_cast<int>(kAccLanes) / kLanes;

// Weight and activation rows of a block: accumulators and operands fit the register file of
// machines with 16 floats to a vector (32 registers) and with 8 (16 registers). The rest does
// without blocks.
constexpr int kFloatRows = kParts == 1 ? 4 : kParts == 2 ? 2 : 1;
constexpr int kFloatActs = kParts == 1 ? 6 : kParts == 2 ? 3 : 1;
constexpr int kIntRows = kParts <= 2 ? 2 : 1;
constexpr int kIntActs = kParts == 1 ? 4 : kParts == 2 ? 2 : 1;

/// The accumulators of kActs activation rows and kRows weight rows. In memory, those of activation
/// row a begin at a * stride.
template <int kActs, int kRows>
struct Sums {
  V v[kActs][kRows][kParts];

  HWY_INLINE void load(const float* acc, std::int64_t stride) {
#pragma GCC unroll 8
    for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
          v[a][i][p] = hn::Load(D(), acc + a * stride + i * kAccLanes + p * kLanes);
        }
      }
    }
  }
  HWY_INLINE void store(float* acc, std::int64_t stride) const {
#pragma GCC unroll 8
    for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
          hn::Store(v[a][i][p], D(), acc + a * stride + i * kAccLanes + p * kLanes);
        }
      }
    }
  }
};

// Where a float product finds 256 weights of a row; next() moves on to the following 256.

struct FloatRow {
  const float* at;

  HWY_INLINE V value(std::int64_t k) const { return hn::LoadU(D(), at + k); }
  HWY_INLINE void next() { at += kTileValues; }
};

template <class Half>
struct HalfRow {
  const Half* at;

  HWY_INLINE V value(std::int64_t k) const {
    return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<Half, D>(), at + k));
  }
  HWY_INLINE void next() { at += kTileValues; }
};

/// Rounds as unpackers do: the bits are those of a tile of floats.
template <bool kMinus>
struct TileRow {
  const Tile* at;

  HWY_INLINE V value(std::int64_t k) const {
    const D d;
    const auto q = hn::PromoteTo(DInt(), hn::LoadU(hn::Rebind<std::int8_t, D>(), at->q + k));
    const V value = hn::Mul(hn::Set(d, at->scale[k / kGroupValues]), hn::ConvertTo(d, q));
    if constexpr (!kMinus) return value;
    return hn::Sub(value, hn::Set(d, at->minus[k / kGroupValues]));
  }
  HWY_INLINE void next() { ++at; }
};

/// acc[a][i] += w[i] * x[a] over n values, a multiple of 16.
template <int kActs, class Row>
void float_block(const Row* rows, const float* const* acts, std::int64_t n, float* acc,
                 std::int64_t acc_stride) {
  Sums<kActs, kFloatRows> sums;
  sums.load(acc, acc_stride);
  Row w[kFloatRows];
  const float* x[kActs];
  for (int i = 0; i < kFloatRows; ++i) w[i] = rows[i];
  for (int a = 0; a < kActs; ++a) x[a] = acts[a];
  for (; n > 0; n -= kTileValues) {
    const std::int64_t n_some = n < kTileValues ? n : kTileValues;
    for (std::int64_t k = 0; k < n_some; k += kAccLanes) {
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p) {
        V wk[kFloatRows];
#pragma GCC unroll 8
        for (int i = 0; i < kFloatRows; ++i) wk[i] = w[i].value(k + p * kLanes);
#pragma GCC unroll 8
        for (int a = 0; a < kActs; ++a) {
          const V xk = hn::LoadU(D(), x[a] + k + p * kLanes);
#pragma GCC unroll 8
          for (int i = 0; i < kFloatRows; ++i) {
            sums.v[a][i][p] = hn::MulAdd(wk[i], xk, sums.v[a][i][p]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kFloatRows; ++i) w[i].next();
#pragma GCC unroll 8
    for (int a = 0; a < kActs; ++a) x[a] += kTileValues;
  }
  sums.store(acc, acc_stride);
}

/// One activation tile as an operand of integer products.
struct ActOperand {
#if HWY_TARGET == HWY_AVX3_DL
  HWY_INLINE explicit ActOperand(const ActTile& x) : bias(_mm512_load_si512(x.bias)) {
    // Without the empty asm the compiler reads x again for each weight row, and the load ports
    // become the limit.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      q[c] = _mm512_load_si512(x.q + 64 * c);
      asm("" : "+v"(q[c]));
    }
  }

  __m512i q[4];
  __m512i bias;
#else
  HWY_INLINE explicit ActOperand(const ActTile& x) : tile(&x) {}

  const ActTile* tile;
#endif

  /// Exact integer dot products of the 16 groups; w.q is in the order of integer products.
  HWY_INLINE void dots(const Tile& w, VInt* to) const {
#if HWY_TARGET == HWY_AVX3_DL
    __m512i sum = bias;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      sum = _mm512_dpbusd_epi32(sum, _mm512_load_si512(w.q + 64 * c), q[c]);
    }
    to[0] = VInt{sum};
#elif HWY_TARGET == HWY_AVX3
    // |w| * (x with w's sign): two products are at most 2 * 128 * 127, which int16 holds.
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i wc = _mm512_load_si512(w.q + 64 * c);
      const __m512i xc = _mm512_load_si512(tile->q + 64 * c);
      const __m512i signed_x =
          _mm512_mask_sub_epi8(xc, _mm512_movepi8_mask(wc), _mm512_setzero_si512(), xc);
      const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(wc), signed_x);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    to[0] = VInt{sum};
#elif HWY_TARGET == HWY_AVX2
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const std::int8_t* const wq = w.q + 64 * c + 32 * p;
        const std::int8_t* const xq = tile->q + 64 * c + 32 * p;
        const __m256i wc = _mm256_load_si256(reinterpret_cast<const __m256i*>(wq));
        const __m256i xc = _mm256_load_si256(reinterpret_cast<const __m256i*>(xq));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(wc), _mm256_sign_epi8(xc, wc));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
      to[p] = VInt{sum};
    }
#else
    alignas(64) std::int32_t sum[kAccLanes] = {};
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < 64; ++i) sum[i / 4] += w.q[64 * c + i] * tile->q[64 * c + i];
    }
    for (int p = 0; p < kParts; ++p) to[p] = hn::Load(DInt(), sum + p * kLanes);
#endif
  }
};

/// acc[a][i] += w[i] * x[a] over n tiles.
template <int kActs, bool kMinus>
void int_block(const Tile* const* w, const ActTile* const* x, std::int64_t n, float* acc,
               std::int64_t acc_stride) {
  const D d;
  Sums<kActs, kIntRows> sums;
  sums.load(acc, acc_stride);
  for (std::int64_t t = 0; t < n; ++t) {
#pragma GCC unroll 8
    for (int a = 0; a < kActs; ++a) {
      const ActOperand act(x[a][t]);
#pragma GCC unroll 8
      for (int i = 0; i < kIntRows; ++i) {
        VInt dots[kParts];
        act.dots(w[i][t], dots);
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
          V& sum = sums.v[a][i][p];
          const V scale = hn::Mul(hn::Load(d, w[i][t].scale + p * kLanes),
                                  hn::Load(d, x[a][t].scale + p * kLanes));
          sum = hn::MulAdd(hn::ConvertTo(d, dots[p]), scale, sum);
          if constexpr (kMinus) {
            sum = hn::NegMulAdd(hn::Load(d, w[i][t].minus + p * kLanes),
                                hn::Load(d, x[a][t].sum + p * kLanes), sum);
          }
        }
      }
    }
  }
  sums.store(acc, acc_stride);
}

/// float_block for n_acts of 1 .. kMost.
template <int kMost, class Row>
void float_block_of(std::int32_t n_acts, const Row* w, const float* const* x, std::int64_t n,
                    float* acc, std::int64_t acc_stride) {
  if (n_acts == kMost) return float_block<kMost>(w, x, n, acc, acc_stride);
  if constexpr (kMost > 1) float_block_of<kMost - 1>(n_acts, w, x, n, acc, acc_stride);
}

/// int_block for n_acts of 1 .. kMost.
template <int kMost, bool kMinus>
void int_block_of(std::int32_t n_acts, const Tile* const* w, const ActTile* const* x,
                  std::int64_t n, float* acc, std::int64_t acc_stride) {
  if (n_acts == kMost) return int_block<kMost, kMinus>(w, x, n, acc, acc_stride);
  if constexpr (kMost > 1) int_block_of<kMost - 1, kMinus>(n_acts, w, x, n, acc, acc_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
