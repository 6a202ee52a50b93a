#include <cstring>
#include <type_traits>

#include "kernels/cpu/product.h"
#include "kernels/cpu/simd_targets.h"

// Two ways to multiply a block, each with its order of rounding fixed by the types alone.
// Float: weights become floats in a tile that stays in cache (scale * q, then minus the offset),
// and
//   acc[lane] = fma(w, x, acc[lane])
// Integer: of every group of 16 values the exact integer dot product is made, and
//   acc[lane] = fma(dot, weight scale * activation scale, acc[lane])
//   acc[lane] = fma(-offset, activation scale * sum of q, acc[lane])    for types with offsets
// acc has 16 lanes whatever the width of the machine's vectors.
//
// The loops around that: some weight rows at a time; for them, slices of k; a slice of weights is
// unpacked once and meets all activation rows, register block by register block. Between slices the
// accumulators rest in scratch. With few activation rows reading weights decides the time: then few
// weight rows and long slices, so that memory is read in long runs. With many, a slice is sized for
// the first-level cache.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product_simd.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include "kernels/cpu/interleave-inl.h"
// clang-format on

#ifndef EBB_PRODUCT_SIZES
#define EBB_PRODUCT_SIZES
namespace ebb::cpu {

constexpr std::int64_t kAccLanes = 16;
constexpr std::int32_t kFewActs = 4;       ///< more activation rows count as many
constexpr std::int64_t kFewRows = 4;       ///< weight rows of a tile, few activations
constexpr std::int64_t kFewTiles = 16;     ///< tiles of k in a slice
constexpr std::int64_t kManyRows = 16;     ///< many
constexpr std::int64_t kManyTiles = 4;     ///< of integers
constexpr std::int64_t kManyFloats = 256;  ///< values of k in a slice of floats

constexpr std::size_t kTileBytes = kManyRows * kManyTiles * sizeof(Tile);
static_assert(kTileBytes >= kManyRows * kManyFloats * sizeof(float));
static_assert(kTileBytes >= kFewRows * kFewTiles * sizeof(Tile));
constexpr std::size_t kAccBytes = kMaxActRows * kManyRows * kAccLanes * sizeof(float);
constexpr std::size_t kActBytes = kMaxActRows * kManyFloats * sizeof(float);

}  // namespace ebb::cpu
#endif

// VNNI is part of what Highway requires for AVX3_DL, but not of the attribute that it sets.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kAccLanes>;
using DInt = hn::Rebind<std::int32_t, D>;
using V = hn::Vec<D>;
using VInt = hn::Vec<DInt>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = static_cast<int>(kAccLanes) / kLanes;

// Register blocks: accumulators and operands fit the register file.
constexpr int kFloatRows = kParts == 1 ? 4 : 2;
constexpr int kFloatActs = kParts == 1 ? 6 : 3;
constexpr int kIntRows = 2;
constexpr int kIntActs = kParts == 1 ? 4 : 2;

// ---- register blocks
// -----------------------------------------------------------------------------

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

/// Exact integer dot products of the 16 groups; w.q is in the order of integer products.
HWY_INLINE void tile_dots(const Tile& w, const ActTile& x, VInt* dots) {
#if HWY_TARGET == HWY_AVX3_DL
  __m512i sum = _mm512_load_si512(x.bias);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    sum =
        _mm512_dpbusd_epi32(sum, _mm512_load_si512(w.q + 64 * c), _mm512_load_si512(x.q + 64 * c));
  }
  dots[0] = VInt{sum};
#elif HWY_TARGET == HWY_AVX3
  // |w| * (x with w's sign): two products are at most 2 * 128 * 127, which int16 holds.
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i wc = _mm512_load_si512(w.q + 64 * c);
    const __m512i xc = _mm512_load_si512(x.q + 64 * c);
    const __m512i signed_x =
        _mm512_mask_sub_epi8(xc, _mm512_movepi8_mask(wc), _mm512_setzero_si512(), xc);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(wc), signed_x);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  dots[0] = VInt{sum};
#elif HWY_TARGET == HWY_AVX2
#pragma GCC unroll 2
  for (int p = 0; p < 2; ++p) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const std::int8_t* const wq = w.q + 64 * c + 32 * p;
      const std::int8_t* const xq = x.q + 64 * c + 32 * p;
      const __m256i wc = _mm256_load_si256(reinterpret_cast<const __m256i*>(wq));
      const __m256i xc = _mm256_load_si256(reinterpret_cast<const __m256i*>(xq));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(wc), _mm256_sign_epi8(xc, wc));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    dots[p] = VInt{sum};
  }
#else
  alignas(64) std::int32_t sum[kAccLanes] = {};
  for (int c = 0; c < 4; ++c) {
    for (int i = 0; i < 64; ++i) sum[i / 4] += w.q[64 * c + i] * x.q[64 * c + i];
  }
  for (int p = 0; p < kParts; ++p) dots[p] = hn::Load(DInt(), sum + p * kLanes);
#endif
}

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
#pragma GCC unroll 8
      for (int i = 0; i < kIntRows; ++i) {
        VInt dots[kParts];
        tile_dots(w[i][t], x[a][t], dots);
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

template <class Row>
void float_block_of(std::int32_t n_acts, const Row* w, const float* const* x, std::int64_t n,
                    float* acc, std::int64_t acc_stride) {
  switch (n_acts) {
    case 1:
      return float_block<1>(w, x, n, acc, acc_stride);
    case 2:
      return float_block<2>(w, x, n, acc, acc_stride);
    case 3:
      return float_block<3>(w, x, n, acc, acc_stride);
#if HWY_MAX_BYTES >= 64
    case 4:
      return float_block<4>(w, x, n, acc, acc_stride);
#endif
  }
#if HWY_MAX_BYTES >= 64
  if constexpr (std::is_same_v<Row, FloatRow>) {  // other rows meet few activations
    if (n_acts == 5) return float_block<5>(w, x, n, acc, acc_stride);
    if (n_acts == 6) return float_block<6>(w, x, n, acc, acc_stride);
  }
#endif
}

template <bool kMinus>
void int_block_of(std::int32_t n_acts, const Tile* const* w, const ActTile* const* x,
                  std::int64_t n, float* acc, std::int64_t acc_stride) {
  switch (n_acts) {
    case 1:
      return int_block<1, kMinus>(w, x, n, acc, acc_stride);
    case 2:
      return int_block<2, kMinus>(w, x, n, acc, acc_stride);
#if HWY_MAX_BYTES >= 64
    case 3:
      return int_block<3, kMinus>(w, x, n, acc, acc_stride);
    case 4:
      return int_block<4, kMinus>(w, x, n, acc, acc_stride);
#endif
  }
}

// ---- a block of weight rows
// ----------------------------------------------------------------------

/// The parts of scratch.
struct Scratch {
  explicit Scratch(std::byte* scratch)
      : tile(scratch),
        acc(reinterpret_cast<float*>(scratch + kTileBytes)),
        acts(reinterpret_cast<float*>(scratch + kTileBytes + kAccBytes)) {}

  std::byte* tile;  ///< a slice of unpacked weights
  float* acc;       ///< [activation rows][weight rows][16]
  float* acts;      ///< a slice of activations, copied and padded
};

/// y[a][row + i] = sum of the lanes of acc[a][i]: lanes l and l + 8 first, then l and l + 4, l and
/// l + 2, and the last two.
void finish_rows(const float* acc, std::int64_t acc_stride, std::int64_t n_rows, std::int64_t row,
                 std::int32_t n_acts, float* const* y) {
  for (std::int32_t a = 0; a < n_acts; ++a) {
    for (std::int64_t first = 0; first < n_rows; first += 4) {
      const float* const from = acc + a * acc_stride + first * kAccLanes;
      float* const to = y[a] + row + first;
#if HWY_TARGET != HWY_SCALAR
      const hn::FixedTag<float, 4> d4;
      const hn::RebindToUnsigned<decltype(d4)> d32;
      hn::Vec<decltype(d32)> r[4];
      for (int i = 0; i < 4; ++i) {
        const float* const lanes = from + i * kAccLanes;
        const auto low = hn::Add(hn::Load(d4, lanes), hn::Load(d4, lanes + 8));
        const auto high = hn::Add(hn::Load(d4, lanes + 4), hn::Load(d4, lanes + 12));
        r[i] = hn::BitCast(d32, hn::Add(low, high));
      }
      transpose_words(d32, r);
      const auto even = hn::Add(hn::BitCast(d4, r[0]), hn::BitCast(d4, r[2]));
      const auto odd = hn::Add(hn::BitCast(d4, r[1]), hn::BitCast(d4, r[3]));
      const auto sum = hn::Add(even, odd);
      if (n_rows - first >= 4) {
        hn::StoreU(sum, d4, to);
      } else {
        alignas(16) float some[4];
        hn::Store(sum, d4, some);
        for (std::int64_t i = 0; i < n_rows - first; ++i) to[i] = some[i];
      }
#else
      for (std::int64_t i = 0; i < 4 && first + i < n_rows; ++i) {
        const float* const lanes = from + i * kAccLanes;
        float sum[4];
        for (int l = 0; l < 4; ++l) {
          sum[l] = (lanes[l] + lanes[l + 8]) + (lanes[l + 4] + lanes[l + 12]);
        }
        to[i] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
      }
#endif
    }
  }
}

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

/// Rows of weights, `n_block` of them rounded up to kFloatRows, times all activation rows over n
/// values of k. Past the last row any weights do: their sums are not used.
template <class Row>
void float_rows(Row* w, std::int64_t n_block, const float* const* x, std::int32_t n_acts,
                std::int64_t n, float* acc, std::int64_t acc_stride) {
  const std::int64_t n_padded = round_up(n_block, kFloatRows);
  for (std::int64_t i = n_block; i < n_padded; ++i) w[i] = w[n_block - 1];
  for (std::int32_t a = 0; a < n_acts; a += kFloatActs) {
    const std::int32_t n_some = n_acts - a < kFloatActs ? n_acts - a : kFloatActs;
    for (std::int64_t i = 0; i < n_padded; i += kFloatRows) {
      float_block_of(n_some, w + i, x + a, n, acc + a * acc_stride + i * kAccLanes, acc_stride);
    }
  }
}

/// Few activations: weights are used where they are, or from tiles of integers.
template <class Row>
void few_floats(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                const ActRows& acts, float* const* y, const Scratch& scratch) {
  constexpr bool kTiles = std::is_same_v<Row, TileRow<true>> || std::is_same_v<Row, TileRow<false>>;
  constexpr std::int64_t kStride = kFewRows * kAccLanes;
  const std::int64_t slice = kTiles ? kFewTiles * kTileValues : weight.n_in;
  Tile* const tiles = reinterpret_cast<Tile*>(scratch.tile);
  for (std::int64_t row = 0; row < n_rows; row += kFewRows) {
    const std::int64_t n_block = n_rows - row < kFewRows ? n_rows - row : kFewRows;
    std::memset(scratch.acc, 0, static_cast<std::size_t>(acts.n * kStride) * sizeof(float));
    for (std::int64_t k = 0; k < weight.n_in; k += slice) {
      const std::int64_t n = weight.n_in - k < slice ? weight.n_in - k : slice;
      Row w[kFewRows];
      const float* x[kFewActs];
      for (std::int32_t a = 0; a < acts.n; ++a) x[a] = acts.x[a] + k;
      for (std::int64_t i = 0; i < n_block; ++i) {
        const std::byte* const source =
            rows + (row + i) * weight.bytes_per_row + row_bytes(weight.type, k);
        if constexpr (kTiles) {
          w[i].at = tiles + i * kFewTiles;
          weight.unpacker.tiles(source, n, tiles + i * kFewTiles);
        } else {
          w[i].at = reinterpret_cast<decltype(w[i].at)>(source);
        }
      }
      float_rows(w, n_block, x, acts.n, n, scratch.acc, kStride);
    }
    finish_rows(scratch.acc, kStride, n_block, row, acts.n, y);
  }
}

/// Many activations, or a width that does not fill the last vector: weights become floats, and
/// activations are copied for the padding.
void many_floats(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                 const ActRows& acts, float* const* y, const Scratch& scratch) {
  constexpr std::int64_t kStride = kManyRows * kAccLanes;
  float* const tile = reinterpret_cast<float*>(scratch.tile);
  for (std::int64_t row = 0; row < n_rows; row += kManyRows) {
    const std::int64_t n_block = n_rows - row < kManyRows ? n_rows - row : kManyRows;
    std::memset(scratch.acc, 0, static_cast<std::size_t>(acts.n * kStride) * sizeof(float));
    for (std::int64_t k = 0; k < weight.n_in; k += kManyFloats) {
      const std::int64_t n = weight.n_in - k < kManyFloats ? weight.n_in - k : kManyFloats;
      const std::int64_t n_padded = round_up(n, kAccLanes);
      FloatRow w[kManyRows];
      for (std::int64_t i = 0; i < n_block; ++i) {
        float* const values = tile + i * kManyFloats;
        weight.unpacker.floats(rows + (row + i) * weight.bytes_per_row + row_bytes(weight.type, k),
                               n, values);
        for (std::int64_t j = n; j < n_padded; ++j) values[j] = 0;
        w[i].at = values;
      }
      const float* x[kMaxActRows];
      for (std::int32_t a = 0; a < acts.n; ++a) {
        x[a] = acts.x[a] + k;
        if (n == n_padded) continue;
        float* const copy = scratch.acts + a * n_padded;
        std::memcpy(copy, x[a], static_cast<std::size_t>(n) * sizeof(float));
        for (std::int64_t j = n; j < n_padded; ++j) copy[j] = 0;
        x[a] = copy;
      }
      float_rows(w, n_block, x, acts.n, n_padded, scratch.acc, kStride);
    }
    finish_rows(scratch.acc, kStride, n_block, row, acts.n, y);
  }
}

void product_floats(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                    const ActRows& acts, float* const* y, const Scratch& scratch) {
  if (acts.n > kFewActs || weight.n_in % kAccLanes != 0) {
    return many_floats(weight, rows, n_rows, acts, y, scratch);
  }
  switch (weight.type) {
    case DType::f32:
      return few_floats<FloatRow>(weight, rows, n_rows, acts, y, scratch);
    case DType::f16:
      return few_floats<HalfRow<hwy::float16_t>>(weight, rows, n_rows, acts, y, scratch);
    case DType::bf16:
      return few_floats<HalfRow<hwy::bfloat16_t>>(weight, rows, n_rows, acts, y, scratch);
    default:
      break;
  }
  if (weight.unpacker.has_minus) {
    return few_floats<TileRow<true>>(weight, rows, n_rows, acts, y, scratch);
  }
  return few_floats<TileRow<false>>(weight, rows, n_rows, acts, y, scratch);
}

template <bool kMinus>
void product_ints(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                  const ActRows& acts, float* const* y, const Scratch& scratch) {
  const bool few = acts.n <= kFewActs;
  const std::int64_t block = few ? kFewRows : kManyRows;
  const std::int64_t slice_tiles = few ? kFewTiles : kManyTiles;
  const std::int64_t slice = slice_tiles * kTileValues;
  const std::int64_t acc_stride = block * kAccLanes;
  Tile* const tiles = reinterpret_cast<Tile*>(scratch.tile);
  for (std::int64_t row = 0; row < n_rows; row += block) {
    const std::int64_t n_block = n_rows - row < block ? n_rows - row : block;
    const std::int64_t n_padded = round_up(n_block, kIntRows);
    std::memset(scratch.acc, 0, static_cast<std::size_t>(acts.n * acc_stride) * sizeof(float));
    for (std::int64_t k = 0; k < weight.n_in; k += slice) {
      const std::int64_t n = weight.n_in - k < slice ? weight.n_in - k : slice;
      const Tile* w[kManyRows];
      for (std::int64_t i = 0; i < n_block; ++i) {
        weight.unpacker.lanes(rows + (row + i) * weight.bytes_per_row + row_bytes(weight.type, k),
                              n, tiles + i * slice_tiles);
        w[i] = tiles + i * slice_tiles;
      }
      for (std::int64_t i = n_block; i < n_padded; ++i) w[i] = w[n_block - 1];
      for (std::int32_t a = 0; a < acts.n; a += kIntActs) {
        const std::int32_t n_acts = acts.n - a < kIntActs ? acts.n - a : kIntActs;
        const ActTile* x[kIntActs];
        for (std::int32_t i = 0; i < n_acts; ++i) x[i] = acts.tiles[a + i] + k / kTileValues;
        for (std::int64_t i = 0; i < n_padded; i += kIntRows) {
          int_block_of<kMinus>(n_acts, w + i, x, tiles_of(n),
                               scratch.acc + a * acc_stride + i * kAccLanes, acc_stride);
        }
      }
    }
    finish_rows(scratch.acc, acc_stride, n_block, row, acts.n, y);
  }
}

void product_simd(const ProductWeight& weight, std::int64_t mat, std::int64_t first,
                  std::int64_t n_rows, const ActRows& acts, float* const* y, std::byte* memory) {
  const Scratch scratch(memory);
  const std::byte* const rows = weight.row(mat, first);
  if (!weight.integer) return product_floats(weight, rows, n_rows, acts, y, scratch);
  if (weight.unpacker.has_minus) {
    return product_ints<true>(weight, rows, n_rows, acts, y, scratch);
  }
  return product_ints<false>(weight, rows, n_rows, acts, y, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(product_simd);

void product(const ProductWeight& weight, std::int64_t mat, std::int64_t first, std::int64_t n_rows,
             const ActRows& acts, float* const* y, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(product_simd)(weight, mat, first, n_rows, acts, y, scratch);
}

std::size_t product_scratch_bytes() { return kTileBytes + kAccBytes + kActBytes; }

}  // namespace ebb::cpu
#endif
