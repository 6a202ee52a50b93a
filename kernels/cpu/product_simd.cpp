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
#include "kernels/cpu/product_blocks-inl.h"
// clang-format on

#ifndef EBB_PRODUCT_SIZES
#define EBB_PRODUCT_SIZES
namespace ebb::cpu {

constexpr std::int32_t kFewActs = 4;       ///< more activation rows count as many
constexpr std::int64_t kFewRows = 4;       ///< weight rows of a tile, few activations
constexpr std::int64_t kFewTiles = 16;     ///< tiles of k in a slice
constexpr std::int64_t kManyRows = 16;     ///< many
constexpr std::int64_t kManyTiles = 4;     ///< of integers
constexpr std::int64_t kManyFloats = 512;  ///< values of k in a slice of floats

constexpr std::size_t kTileBytes = kManyRows * kManyFloats * sizeof(float);
static_assert(kTileBytes >= kManyRows * kManyTiles * sizeof(Tile));
static_assert(kTileBytes >= kFewRows * kFewTiles * sizeof(Tile));
constexpr std::size_t kAccBytes = kMaxActRows * kManyRows * 16 * sizeof(float);
constexpr std::size_t kActBytes = kMaxActRows * kManyFloats * sizeof(float);

}  // namespace ebb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
  // Only floats in memory meet many activations.
  constexpr int kActs =
      std::is_same_v<Row, FloatRow> || kFloatActs < kFewActs ? kFloatActs : kFewActs;
  const std::int64_t n_padded = round_up(n_block, kFloatRows);
  for (std::int64_t i = n_block; i < n_padded; ++i) w[i] = w[n_block - 1];
  for (std::int32_t a = 0; a < n_acts; a += kActs) {
    const std::int32_t n_some = n_acts - a < kActs ? n_acts - a : kActs;
    for (std::int64_t i = 0; i < n_padded; i += kFloatRows) {
      float_block_of<kActs>(n_some, w + i, x + a, n, acc + a * acc_stride + i * kAccLanes,
                            acc_stride);
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
          int_block_of<kIntActs, kMinus>(n_acts, w + i, x, tiles_of(n),
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
