#include "kernels/cpu/product.h"

#include <cstring>

#include "kernels/cpu/simd_targets.h"

// Two ways to multiply a block, each with its order of rounding fixed by the types alone.
// Float: weights become floats in a tile that stays in cache (scale * q, then minus the offset),
// and
//   acc[lane] = fma(w, x, acc[lane])
// Integer: of every group of 16 values the exact integer dot product is made, and
//   acc[lane] = fma(dot, weight scale * activation scale, acc[lane])
//   acc[lane] = fma(-offset, activation scale * sum of q, acc[lane])    for types with offsets
// acc has 16 lanes whatever the width of the machine's vectors. Between slices of k the
// accumulators rest in scratch, so a weight tile is unpacked once for all activation rows.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

// VNNI is part of what Highway requires for AVX3_DL, but not of the attribute that it sets.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kAccLanes = 16;
using D = hn::CappedTag<float, kAccLanes>;
using DInt = hn::Rebind<std::int32_t, D>;
using V = hn::Vec<D>;
using VInt = hn::Vec<DInt>;
constexpr std::size_t kLanes = hn::MaxLanes(D());
constexpr int kParts = static_cast<int>(kAccLanes / kLanes);

// Register blocks: accumulators and operands fit the register file.
constexpr int kFloatRows = kParts == 1 ? 4 : 2;
constexpr int kFloatActs = kParts == 1 ? 6 : 3;
constexpr int kIntRows = 2;
constexpr int kIntActs = kParts == 1 ? 4 : 2;

/// Lanes i, i + 8 first, then i, i + 4, and so on.
HWY_INLINE float sum_lanes(const float* acc) {
  float sum[8];
  for (int i = 0; i < 8; ++i) sum[i] = acc[i] + acc[i + 8];
  for (int i = 0; i < 4; ++i) sum[i] += sum[i + 4];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// ---- float
// ---------------------------------------------------------------------------------------

/// acc[a][i] += w[i] * x[a] over n_vectors * 16 values. `acc_stride` floats lie between rows a.
template <int kActs>
void float_block(const float* const* w, const float* const* x, std::int64_t n_vectors, float* acc,
                 std::int64_t acc_stride) {
  const D d;
  V sum[kActs][kFloatRows][kParts];
#pragma GCC unroll 8
  for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
    for (int i = 0; i < kFloatRows; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p) {
        sum[a][i][p] = hn::LoadU(d, acc + a * acc_stride + i * kAccLanes + p * kLanes);
      }
    }
  }
  for (std::int64_t k = 0; k < n_vectors * static_cast<std::int64_t>(kAccLanes); k += kAccLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kParts; ++p) {
      V wk[kFloatRows];
#pragma GCC unroll 8
      for (int i = 0; i < kFloatRows; ++i) wk[i] = hn::LoadU(d, w[i] + k + p * kLanes);
#pragma GCC unroll 8
      for (int a = 0; a < kActs; ++a) {
        const V xk = hn::LoadU(d, x[a] + k + p * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < kFloatRows; ++i) sum[a][i][p] = hn::MulAdd(wk[i], xk, sum[a][i][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
    for (int i = 0; i < kFloatRows; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p) {
        hn::StoreU(sum[a][i][p], d, acc + a * acc_stride + i * kAccLanes + p * kLanes);
      }
    }
  }
}

void float_block_of(std::int32_t n_acts, const float* const* w, const float* const* x,
                    std::int64_t n_vectors, float* acc, std::int64_t acc_stride) {
  switch (n_acts) {
    case 1:
      return float_block<1>(w, x, n_vectors, acc, acc_stride);
    case 2:
      return float_block<2>(w, x, n_vectors, acc, acc_stride);
    case 3:
      return float_block<3>(w, x, n_vectors, acc, acc_stride);
#if HWY_MAX_BYTES >= 64
    case 4:
      return float_block<4>(w, x, n_vectors, acc, acc_stride);
    case 5:
      return float_block<5>(w, x, n_vectors, acc, acc_stride);
    case 6:
      return float_block<6>(w, x, n_vectors, acc, acc_stride);
#endif
  }
}

// ---- integer
// -------------------------------------------------------------------------------------

/// Reorders 256 bytes from value order to the order of ActTile: seen as 32-bit words, transposes
/// groups (rows of 4 words) so that word c of every group comes to stand in quarter c.
void interleave(std::int8_t* q) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes >= 4) {
    const hn::Repartition<std::uint32_t, D> d32;
    const hn::Repartition<std::uint64_t, D> d64;
    constexpr std::size_t kBytes = 4 * kLanes;
    std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(q);
    hn::Vec<decltype(d32)> out[kParts][4];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const auto r0 = hn::Load(d32, words + p * (kBytes / 4));
      const auto r1 = hn::Load(d32, words + 16 + p * (kBytes / 4));
      const auto r2 = hn::Load(d32, words + 32 + p * (kBytes / 4));
      const auto r3 = hn::Load(d32, words + 48 + p * (kBytes / 4));
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d32, r0, r1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d32, r2, r3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d32, r0, r1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d32, r2, r3));
      out[p][0] = hn::BitCast(d32, hn::InterleaveLower(d64, low01, low23));
      out[p][1] = hn::BitCast(d32, hn::InterleaveUpper(d64, low01, low23));
      out[p][2] = hn::BitCast(d32, hn::InterleaveLower(d64, high01, high23));
      out[p][3] = hn::BitCast(d32, hn::InterleaveUpper(d64, high01, high23));
    }
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) hn::Store(out[p][c], d32, words + 16 * c + p * (kBytes / 4));
    }
    return;
  }
#endif
  std::int8_t whole[kTileValues];
  std::memcpy(whole, q, sizeof(whole));
  for (int lane = 0; lane < 16; ++lane) {
    const int group = 4 * (lane % 4) + lane / 4;
    for (int c = 0; c < 4; ++c) std::memcpy(q + 64 * c + 4 * lane, whole + 16 * group + 4 * c, 4);
  }
}

/// Per-group floats from group order to lane order.
void to_lanes(float* by_group) {
  float whole[kTileGroups];
  std::memcpy(whole, by_group, sizeof(whole));
  for (int lane = 0; lane < 16; ++lane) by_group[lane] = whole[4 * (lane % 4) + lane / 4];
}

/// Brings a weight tile into the order of ActTile.
template <bool kMinus>
void arrange(Tile& tile) {
  interleave(tile.q);
#if HWY_TARGET == HWY_AVX3_DL
  for (int c = 0; c < 4; ++c) {  // vpdpbusd wants its weights unsigned; ActTile::bias makes it good
    const __m512i q = _mm512_load_si512(tile.q + 64 * c);
    _mm512_store_si512(tile.q + 64 * c, _mm512_xor_si512(q, _mm512_set1_epi8(-128)));
  }
#endif
  to_lanes(tile.scale);
  if constexpr (kMinus) to_lanes(tile.minus);
}

/// Exact integer dot products of the 16 groups.
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

/// acc[a][i] += w[i] * x[a] over n_tiles tiles.
template <int kActs, bool kMinus>
void int_block(const Tile* const* w, const ActTile* const* x, std::int64_t n_tiles, float* acc,
               std::int64_t acc_stride) {
  const D d;
  V sum[kActs][kIntRows][kParts];
#pragma GCC unroll 8
  for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
    for (int i = 0; i < kIntRows; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p) {
        sum[a][i][p] = hn::Load(d, acc + a * acc_stride + i * kAccLanes + p * kLanes);
      }
    }
  }
  for (std::int64_t t = 0; t < n_tiles; ++t) {
#pragma GCC unroll 8
    for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
      for (int i = 0; i < kIntRows; ++i) {
        VInt dots[kParts];
        tile_dots(w[i][t], x[a][t], dots);
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p) {
          const V scale = hn::Mul(hn::Load(d, w[i][t].scale + p * kLanes),
                                  hn::Load(d, x[a][t].scale + p * kLanes));
          sum[a][i][p] = hn::MulAdd(hn::ConvertTo(d, dots[p]), scale, sum[a][i][p]);
          if constexpr (kMinus) {
            sum[a][i][p] = hn::NegMulAdd(hn::Load(d, w[i][t].minus + p * kLanes),
                                         hn::Load(d, x[a][t].sum + p * kLanes), sum[a][i][p]);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < kActs; ++a) {
#pragma GCC unroll 8
    for (int i = 0; i < kIntRows; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p) {
        hn::Store(sum[a][i][p], d, acc + a * acc_stride + i * kAccLanes + p * kLanes);
      }
    }
  }
}

template <bool kMinus>
void int_block_of(std::int32_t n_acts, const Tile* const* w, const ActTile* const* x,
                  std::int64_t n_tiles, float* acc, std::int64_t acc_stride) {
  switch (n_acts) {
    case 1:
      return int_block<1, kMinus>(w, x, n_tiles, acc, acc_stride);
    case 2:
      return int_block<2, kMinus>(w, x, n_tiles, acc, acc_stride);
#if HWY_MAX_BYTES >= 64
    case 3:
      return int_block<3, kMinus>(w, x, n_tiles, acc, acc_stride);
    case 4:
      return int_block<4, kMinus>(w, x, n_tiles, acc, acc_stride);
#endif
  }
}

// ---- a block of weight rows
// ----------------------------------------------------------------------

constexpr std::int32_t kFewActs = 8;    ///< up to here reading weights costs more than multiplying
constexpr std::int64_t kWideRows = 16;  ///< weight rows of a tile that many activations share
constexpr std::int64_t kThinRows = 4;   ///< of a tile for few: long reads from few places at a time
constexpr std::int64_t kFloatSlice = 512;       ///< values of k in a float tile of kWideRows
constexpr std::int64_t kFloatThinSlice = 1024;  ///< in one of kThinRows
constexpr std::int64_t kIntSlice = 4;           ///< tiles of k
constexpr std::size_t kTileBytes = kWideRows * kFloatSlice * sizeof(float);
static_assert(kTileBytes >= kWideRows * kIntSlice * sizeof(Tile));
static_assert(kTileBytes >= kThinRows * kFloatThinSlice * sizeof(float));
constexpr std::size_t kAccBytes = kMaxActRows * kWideRows * kAccLanes * sizeof(float);

void finish_rows(const float* acc, std::int64_t acc_stride, std::int64_t n_rows, std::int64_t row,
                 std::int32_t n_acts, float* const* y) {
  for (std::int32_t a = 0; a < n_acts; ++a) {
    for (std::int64_t i = 0; i < n_rows; ++i) {
      y[a][row + i] = sum_lanes(acc + a * acc_stride + i * kAccLanes);
    }
  }
}

/// One slice of k: rows of float weights `w` (w_rows of them, a multiple of kFloatRows) times all
/// activation rows at k0. A last vector that is not full is taken from padded copies of both.
void float_slice(const float* const* w, std::int64_t w_rows, const ActRows& acts, std::int64_t k0,
                 std::int64_t n, float* acc, std::int64_t acc_stride) {
  const std::int64_t n_full = n / static_cast<std::int64_t>(kAccLanes);
  const std::int64_t n_rest = n % static_cast<std::int64_t>(kAccLanes);
  for (std::int32_t a = 0; a < acts.n; a += kFloatActs) {
    const std::int32_t n_acts = acts.n - a < kFloatActs ? acts.n - a : kFloatActs;
    const float* x[kFloatActs];
    const float* x_rest[kFloatActs];
    alignas(64) float padded[kFloatActs][kAccLanes] = {};
    for (std::int32_t i = 0; i < n_acts; ++i) {
      x[i] = acts.x[a + i] + k0;
      x_rest[i] = padded[i];
      const float* const rest = x[i] + n - n_rest;
      for (std::int64_t k = 0; k < n_rest; ++k) padded[i][k] = rest[k];
    }
    for (std::int64_t row = 0; row < w_rows; row += kFloatRows) {
      float* const sums = acc + a * acc_stride + row * static_cast<std::int64_t>(kAccLanes);
      float_block_of(n_acts, w + row, x, n_full, sums, acc_stride);
      if (n_rest == 0) continue;
      const float* w_rest[kFloatRows];
      for (int i = 0; i < kFloatRows; ++i) w_rest[i] = w[row + i] + n - n_rest;
      float_block_of(n_acts, w_rest, x_rest, 1, sums, acc_stride);
    }
  }
}

void product_floats(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                    const ActRows& acts, float* const* y, std::byte* scratch) {
  const bool few = acts.n <= kFewActs;
  const std::int64_t block = few ? kThinRows : kWideRows;
  const std::int64_t slice = few ? kFloatThinSlice : kFloatSlice;
  float* const tile = reinterpret_cast<float*>(scratch);
  float* const acc = reinterpret_cast<float*>(scratch + kTileBytes);
  const std::int64_t acc_stride = block * static_cast<std::int64_t>(kAccLanes);
  for (std::int64_t row = 0; row < n_rows; row += block) {
    const std::int64_t n_block = n_rows - row < block ? n_rows - row : block;
    const std::int64_t n_padded = (n_block + kFloatRows - 1) / kFloatRows * kFloatRows;
    std::memset(acc, 0, static_cast<std::size_t>(acts.n * acc_stride) * sizeof(float));
    for (std::int64_t k = 0; k < weight.n_in; k += slice) {
      const std::int64_t n = weight.n_in - k < slice ? weight.n_in - k : slice;
      const float* w[kWideRows];
      for (std::int64_t i = 0; i < n_padded; ++i) {
        if (i >= n_block) {  // a row past the end: any weights do, its sums are not used
          w[i] = w[n_block - 1];
          continue;
        }
        const std::byte* const source =
            rows + (row + i) * weight.bytes_per_row + row_bytes(weight.type, k);
        float* const values = tile + i * slice;
        if (weight.type == DType::f32 && n % static_cast<std::int64_t>(kAccLanes) == 0) {
          w[i] = reinterpret_cast<const float*>(source);
          continue;
        }
        weight.unpacker.floats(source, n, values);
        for (std::int64_t j = n; j % static_cast<std::int64_t>(kAccLanes) != 0; ++j) values[j] = 0;
        w[i] = values;
      }
      float_slice(w, n_padded, acts, k, n, acc, acc_stride);
    }
    finish_rows(acc, acc_stride, n_block, row, acts.n, y);
  }
}

template <bool kMinus>
void product_ints(const ProductWeight& weight, const std::byte* rows, std::int64_t n_rows,
                  const ActRows& acts, float* const* y, std::byte* scratch) {
  const std::int64_t block = acts.n <= kFewActs ? kThinRows : kWideRows;
  Tile* const tiles = reinterpret_cast<Tile*>(scratch);
  float* const acc = reinterpret_cast<float*>(scratch + kTileBytes);
  const std::int64_t acc_stride = block * static_cast<std::int64_t>(kAccLanes);
  const std::int64_t n_tiles = tiles_of(weight.n_in);
  for (std::int64_t row = 0; row < n_rows; row += block) {
    const std::int64_t n_block = n_rows - row < block ? n_rows - row : block;
    const std::int64_t n_padded = (n_block + kIntRows - 1) / kIntRows * kIntRows;
    std::memset(acc, 0, static_cast<std::size_t>(acts.n * acc_stride) * sizeof(float));
    for (std::int64_t t = 0; t < n_tiles; t += kIntSlice) {
      const std::int64_t n = n_tiles - t < kIntSlice ? n_tiles - t : kIntSlice;
      const std::int64_t k = t * kTileValues;
      const std::int64_t k_end =
          weight.n_in < k + n * kTileValues ? weight.n_in : k + n * kTileValues;
      const Tile* w[kWideRows];
      for (std::int64_t i = 0; i < n_padded; ++i) {
        w[i] = tiles + (i < n_block ? i : n_block - 1) * kIntSlice;
        if (i >= n_block) continue;
        Tile* const row_tiles = tiles + i * kIntSlice;
        weight.unpacker.tiles(rows + (row + i) * weight.bytes_per_row + row_bytes(weight.type, k),
                              k_end - k, row_tiles);
        for (std::int64_t j = 0; j < n; ++j) arrange<kMinus>(row_tiles[j]);
      }
      for (std::int32_t a = 0; a < acts.n; a += kIntActs) {
        const std::int32_t n_acts = acts.n - a < kIntActs ? acts.n - a : kIntActs;
        const ActTile* x[kIntActs];
        for (std::int32_t i = 0; i < n_acts; ++i) x[i] = acts.tiles[a + i] + t;
        for (std::int64_t i = 0; i < n_padded; i += kIntRows) {
          int_block_of<kMinus>(n_acts, w + i, x, n,
                               acc + a * acc_stride + i * static_cast<std::int64_t>(kAccLanes),
                               acc_stride);
        }
      }
    }
    finish_rows(acc, acc_stride, n_block, row, acts.n, y);
  }
}

void product_simd(const ProductWeight& weight, std::int64_t mat, std::int64_t first,
                  std::int64_t n_rows, const ActRows& acts, float* const* y, std::byte* scratch) {
  const std::byte* const rows = weight.row(mat, first);
  if (!weight.integer) return product_floats(weight, rows, n_rows, acts, y, scratch);
  if (weight.unpacker.has_minus) {
    return product_ints<true>(weight, rows, n_rows, acts, y, scratch);
  }
  return product_ints<false>(weight, rows, n_rows, acts, y, scratch);
}

// ---- activations
// ---------------------------------------------------------------------------------

/// One group of 16 into q, and its scale.
float quantise_group(const float* x, std::int8_t* q) {
  const D d;
  const DInt d_int;
  const hn::Rebind<std::int8_t, D> d_byte;
  // As integers, magnitudes order like floats, with infinity and NaN above all numbers.
  VInt largest = hn::Zero(d_int);
  const VInt magnitude = hn::Set(d_int, 0x7fffffff);
  for (std::size_t i = 0; i < kAccLanes; i += kLanes) {
    const VInt bits = hn::BitCast(d_int, hn::LoadU(d, x + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  const std::int32_t amax_bits = hn::GetLane(hn::MaxOfLanes(d_int, largest));
  float amax;
  std::memcpy(&amax, &amax_bits, sizeof(amax));
  constexpr std::int32_t kInfinity = 0x7f800000;
  constexpr float kTiny = 1e-30f;  // its reciprocal is still a number; less counts as nothing
  if (amax_bits >= kInfinity || amax < kTiny) {
    std::memset(q, 0, kAccLanes);
    return amax_bits >= kInfinity ? amax - amax : 0.0f;
  }
  const V inverse = hn::Set(d, 127.0f / amax);
  for (std::size_t i = 0; i < kAccLanes; i += kLanes) {
    const VInt rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    hn::StoreU(hn::DemoteTo(d_byte, rounded), d_byte, q + i);
  }
  return amax / 127.0f;
}

void quantise_simd(const float* x, std::int64_t n, ActTile* tiles) {
  for (std::int64_t first = 0; first < n; first += kTileValues, ++tiles) {
    for (std::int64_t lane = 0; lane < kTileGroups; ++lane) {
      const std::int64_t group = 4 * (lane % 4) + lane / 4;
      const std::int64_t k = first + group * kGroupValues;
      std::int8_t* const q = tiles->q + group * kGroupValues;
      alignas(64) float some[kGroupValues] = {};
      const float* values = x + k;
      if (k + kGroupValues > n) {
        for (std::int64_t i = 0; k + i < n; ++i) some[i] = x[k + i];
        values = some;
      }
      const float scale = quantise_group(values, q);
      std::int32_t sum = 0;
      for (int i = 0; i < kGroupValues; ++i) sum += q[i];
      tiles->scale[lane] = scale;
      tiles->bias[lane] = -128 * sum;
      tiles->sum[lane] = scale * static_cast<float>(sum);
    }
    interleave(tiles->q);
  }
}

void gated_simd(const float* g, const float* u, float clamp, std::int64_t n, float* h) {
  const D d;
  const V limit = hn::Set(d, clamp);
  const V below = hn::Set(d, -clamp);
  const V one = hn::Set(d, 1.0f);
  const V exp_limit = hn::Set(d, 88.0f);  // exp stays finite; the sigmoid is 0 from here on
  for (std::int64_t first = 0; first < n; first += kLanes) {
    const std::int64_t n_some = n - first;
    alignas(64) float some[3][kLanes] = {};
    const bool whole = n_some >= static_cast<std::int64_t>(kLanes);
    if (!whole) {
      std::memcpy(some[0], g + first, static_cast<std::size_t>(n_some) * sizeof(float));
      std::memcpy(some[1], u + first, static_cast<std::size_t>(n_some) * sizeof(float));
    }
    V gate = hn::LoadU(d, whole ? g + first : some[0]);
    V up = hn::LoadU(d, whole ? u + first : some[1]);
    // Comparisons with NaN are false, so a NaN passes; Min and Max would replace it.
    gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
    up = hn::IfThenElse(hn::Gt(up, limit), limit, up);
    up = hn::IfThenElse(hn::Lt(up, below), below, up);
    V negative = hn::Neg(gate);
    negative = hn::IfThenElse(hn::Gt(negative, exp_limit), exp_limit, negative);
    const V sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, negative)));
    const V value = hn::Mul(hn::Mul(gate, sigmoid), up);
    if (whole) {
      hn::StoreU(value, d, h + first);
    } else {
      hn::Store(value, d, some[2]);
      std::memcpy(h + first, some[2], static_cast<std::size_t>(n_some) * sizeof(float));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ebb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(product_simd);
HWY_EXPORT(quantise_simd);
HWY_EXPORT(gated_simd);

void product(const ProductWeight& weight, std::int64_t mat, std::int64_t first, std::int64_t n_rows,
             const ActRows& acts, float* const* y, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(product_simd)(weight, mat, first, n_rows, acts, y, scratch);
}

void quantise(const float* x, std::int64_t n, ActTile* tiles) {
  HWY_DYNAMIC_DISPATCH(quantise_simd)(x, n, tiles);
}

void gated(const float* g, const float* u, float clamp, std::int64_t n, float* h) {
  HWY_DYNAMIC_DISPATCH(gated_simd)(g, u, clamp, n, h);
}

std::size_t product_scratch_bytes() {
  return HWY_STATIC_DISPATCH(kTileBytes) + HWY_STATIC_DISPATCH(kAccBytes);
}

std::int64_t rows_per_task(std::int64_t n_in, std::int32_t n_acts) {
  // Reading a value costs about as much as multiplying it four times. 64K values read are some
  // microseconds: worth a task, and small enough to spread over the workers.
  constexpr std::int64_t kWork = 65536 + 65536 / 4;
  constexpr std::int64_t kLeast = 16;
  constexpr std::int64_t kMost = 1024;
  const std::int64_t work = n_in + n_in * n_acts / 4;
  const std::int64_t rows = (kWork / (work > 0 ? work : 1) + kLeast - 1) / kLeast * kLeast;
  return rows < kLeast ? kLeast : rows > kMost ? kMost : rows;
}

ProductWeight::ProductWeight(const Weight& weight, Precision precision)
    : data(weight.data),
      type(weight.type),
      n_in(weight.n_in),
      n_out(weight.n_out),
      bytes_per_row(row_bytes(weight.type, weight.n_in)),
      unpacker(find_unpacker(weight.type)),
      integer(precision == Precision::fast && unpacker.tiles != nullptr) {}

Status check_weight(const char* op, const char* what, const Weight& weight) {
  const DTypeTraits* const traits = dtype_traits(weight.type);
  if (traits == nullptr || find_unpacker(weight.type).floats == nullptr) {
    return make_error(Errc::invalid_argument, "%s: %s has type %s (%d), which holds no weights", op,
                      what, traits == nullptr ? "unknown" : traits->name,
                      static_cast<int>(weight.type));
  }
  if (weight.n_in <= 0 || weight.n_in % traits->block_values != 0) {
    return make_error(Errc::invalid_argument, "%s: %s has %lld inputs; %s wants a multiple of %d",
                      op, what, static_cast<long long>(weight.n_in), traits->name,
                      traits->block_values);
  }
  if (weight.n_out <= 0 || weight.n_mats <= 0 || weight.data == nullptr) {
    return make_error(Errc::invalid_argument, "%s: %s is empty (%lld outputs, %lld matrices%s)", op,
                      what, static_cast<long long>(weight.n_out),
                      static_cast<long long>(weight.n_mats),
                      weight.data == nullptr ? ", no data" : "");
  }
  return ok_status();
}

}  // namespace ebb::cpu
#endif
