// A task is one row with a block of its heads. All heads read the same rows, so the keys are taken
// in tiles of a few rows: scores of the whole block against the tile, one step of an online
// softmax, then the weighted sum of the tile's rows. The running maximum starts at the sink logit
// with denominator 1 (0 for -inf), which puts the sink into both.
//
// A score is summed over dims in lanes that are folded in one fixed order, and an output dim over
// keys in order; tiles are cut from the row's own list of keys. So the bits of a head depend on its
// row alone, not on the batch or on how heads are grouped. Tiles hold pointers: rows that are
// stored as f32 are read in place, others are decoded to scratch. No row outside the list is
// touched.

#include "kernels/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/chunks.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"
#include "kernels/row_format.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#ifndef EBB_CPU_ATTEND_ONCE
#define EBB_CPU_ATTEND_ONCE
namespace ebb::cpu {
namespace {

constexpr std::int32_t kMaxTile = 64;   // most keys per pass
constexpr std::int32_t kHeadGroup = 4;  // heads in registers at a time
constexpr std::int32_t kMaxLanes = 16;  // widths are padded to this many floats

std::int32_t round_up(std::int32_t value, std::int32_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct AttendPlan {
  AttendArgs args;
  std::int32_t ring_rot = 0;  // n_rot of row_format.h
  std::int32_t chunk_rot = 0;
  std::int32_t d_padded = 0;
  std::int32_t tile = 0;  // keys per pass
};

/// Keys per pass: as many as leave the rows in the first-level cache. Part of the result's bits,
/// hence a matter of the width alone.
std::int32_t tile_keys(std::int32_t d_padded) {
  return std::clamp(8192 / d_padded / 16 * 16, 16, kMaxTile);
}

/// A task's scratch, carved in this order; widths padded with zeros.
struct AttendScratch {
  float* q;        // [heads, d_padded]
  float* sum;      // [heads, d_padded] running weighted sums
  float* tile;     // [tile, d_padded] decoded rows
  float* weight;   // [heads, tile] scores, then softmax weights
  float* largest;  // [heads] running maximum
  float* total;    // [heads] running denominator
  float* rescale;  // [heads] what the sums are multiplied by in this tile

  static std::size_t bytes(std::int32_t heads, const AttendPlan& plan) {
    return sizeof(float) * (static_cast<std::size_t>(2 * heads + plan.tile) *
                                static_cast<std::size_t>(plan.d_padded) +
                            static_cast<std::size_t>(heads) * static_cast<std::size_t>(plan.tile) +
                            3 * static_cast<std::size_t>(round_up(heads, kMaxLanes)));
  }
  AttendScratch(std::byte* memory, std::int32_t heads, const AttendPlan& plan) {
    float* at = reinterpret_cast<float*>(memory);
    const auto take = [&](std::int32_t count, std::int32_t width) {
      float* const place = at;
      at += static_cast<std::int64_t>(count) * width;
      return place;
    };
    q = take(heads, plan.d_padded);
    sum = take(heads, plan.d_padded);
    tile = take(plan.tile, plan.d_padded);
    weight = take(heads, plan.tile);
    largest = take(round_up(heads, kMaxLanes), 1);
    total = take(round_up(heads, kMaxLanes), 1);
    rescale = take(round_up(heads, kMaxLanes), 1);
  }
};

/// The keys of one row, in order: window, then chunks.
struct KeyList {
  std::int32_t window_first;
  std::int32_t n_window;
  std::int32_t n_keys;
  const std::int32_t* ids;

  KeyList(const AttendArgs& a, std::int32_t row) {
    const std::int32_t pos = a.step.pos[row];
    window_first = window_begin(pos, a.window);
    n_window = pos - window_first + 1;
    n_keys = n_window;
    ids = nullptr;
    if (a.chunks.data == nullptr) return;
    if (a.ids != nullptr) {
      ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
      n_keys += a.count[row];
    } else {
      n_keys += visible_chunks(pos, a.ratio);
    }
  }
};

/// A key's stored row.
const std::byte* key_row(const AttendArgs& a, std::int32_t seq, const KeyList& keys,
                         std::int32_t key) {
  if (key < keys.n_window) {
    return row_at(a.ring, seq, ring_index(keys.window_first + key, a.ring.n_rows));
  }
  const std::int32_t chunk = key - keys.n_window;
  return row_at(a.chunks, seq, keys.ids != nullptr ? keys.ids[chunk] : chunk);
}

/// Points `rows` at the keys [first, first + n) of the list, decoding where needed.
void load_tile(const AttendPlan& plan, std::int32_t row, const KeyList& keys, std::int32_t first,
               std::int32_t n, float* tile, const float** rows) {
  const AttendArgs& a = plan.args;
  const std::int32_t seq = a.step.seq[row];
  for (std::int32_t j = 0; j < n; ++j) {
    const bool in_window = first + j < keys.n_window;
    const RowFormat format = in_window ? a.ring.format : a.chunks.format;
    const std::byte* const stored = key_row(a, seq, keys, first + j);
    if (format == RowFormat::f32 && a.d == plan.d_padded) {
      rows[j] = reinterpret_cast<const float*>(stored);
    } else {
      float* const decoded = tile + static_cast<std::int64_t>(j) * plan.d_padded;
      decode_row_fast(format, a.d, in_window ? plan.ring_rot : plan.chunk_rot, stored, decoded);
      rows[j] = decoded;
    }
  }
  // The score loop takes keys in groups: let the last group be whole.
  for (std::int32_t j = n; j % 4 != 0; ++j) rows[j] = rows[n - 1];
  // Chosen chunks lie anywhere: ask for the next tile's while this one is worked on.
  const std::int32_t end = std::min(first + n + plan.tile, keys.n_keys);
  for (std::int32_t key = std::max(first + n, keys.n_window); key < end; ++key) {
    const std::byte* const stored = key_row(a, seq, keys, key);
    for (std::int64_t at = 0; at < a.chunks.row_bytes; at += 64) __builtin_prefetch(stored + at);
  }
}

}  // namespace
}  // namespace ebb::cpu
#endif  // EBB_CPU_ATTEND_ONCE

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, kMaxLanes>;
using Vector = hn::Vec<Tag>;

// Heads whose scores, and vectors of dims whose sums, are in registers at a time: 16 accumulators
// and their operands want 32 registers.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3;
constexpr std::int32_t kScoreHeads = kManyRegisters ? 4 : 2;
constexpr std::int32_t kSumVectors = kManyRegisters ? 4 : 2;
constexpr std::int32_t kLanes = hn::MaxLanes(Tag());

/// Stores the sums of the lanes of 4 vectors.
HWY_INLINE void StoreSums(const Vector* v, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int k = 0; k < 4; ++k) sums[k] = hn::GetLane(v[k]);
#else
  const Tag tag;
  const hn::Repartition<double, Tag> pairs;
  // In every 128-bit part: halves of v[0], v[1] and of v[2], v[3], then quarters of all four.
  const Vector v01 =
      hn::Add(hn::InterleaveLower(tag, v[0], v[1]), hn::InterleaveUpper(tag, v[0], v[1]));
  const Vector v23 =
      hn::Add(hn::InterleaveLower(tag, v[2], v[3]), hn::InterleaveUpper(tag, v[2], v[3]));
  const auto p01 = hn::BitCast(pairs, v01), p23 = hn::BitCast(pairs, v23);
  const Vector all = hn::Add(hn::BitCast(tag, hn::InterleaveLower(pairs, p01, p23)),
                             hn::BitCast(tag, hn::InterleaveUpper(pairs, p01, p23)));
  const auto fold = [](const auto& self, auto t, auto x) {
    if constexpr (hn::MaxLanes(decltype(t)()) <= 4) {
      return x;
    } else {
      const hn::Half<decltype(t)> half;
      return self(self, half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
    }
  };
  hn::StoreU(fold(fold, tag, all), hn::FixedTag<float, 4>(), sums);
#endif
}

/// score[h][j] = q[h] . rows[j] for kScoreHeads heads and 4 keys.
HWY_INLINE void ScoreGroup(const float* HWY_RESTRICT q, std::int32_t d, const float* const* rows,
                           float* score, std::int32_t stride) {
  const Tag tag;
  Vector sums[kScoreHeads][4];
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kScoreHeads; ++h) {
#pragma GCC unroll 8
    for (std::int32_t j = 0; j < 4; ++j) sums[h][j] = hn::Zero(tag);
  }
  const float* const row[4] = {rows[0], rows[1], rows[2], rows[3]};
  for (std::int32_t i = 0; i < d; i += kLanes) {
    Vector k[4];
#pragma GCC unroll 8
    for (std::int32_t j = 0; j < 4; ++j) k[j] = hn::LoadU(tag, row[j] + i);
#pragma GCC unroll 8
    for (std::int32_t h = 0; h < kScoreHeads; ++h) {
      const Vector x = hn::Load(tag, q + h * d + i);
#pragma GCC unroll 8
      for (std::int32_t j = 0; j < 4; ++j) sums[h][j] = hn::MulAdd(x, k[j], sums[h][j]);
    }
  }
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kScoreHeads; ++h) StoreSums(sums[h], score + h * stride);
}

/// One step of the online softmax: turns the scores of a head's n keys into weights.
void SoftmaxStep(float* weight, std::int32_t n, float scale, float* largest, float* total,
                 float* rescale) {
  const Tag tag;
  const std::int32_t n_padded = round_up(n, kLanes);
  for (std::int32_t j = n; j < n_padded; ++j) weight[j] = -INFINITY;
  const Vector factor = hn::Set(tag, scale);
  const Vector lowest = hn::Set(tag, -INFINITY);
  Vector best = hn::Set(tag, *largest);
  for (std::int32_t j = 0; j < n_padded; j += kLanes) {
    // The padding must stay -inf whatever the sign of the scale.
    const Vector score = hn::LoadU(tag, weight + j);
    const Vector scaled = hn::IfThenElse(hn::Eq(score, lowest), lowest, hn::Mul(score, factor));
    hn::StoreU(scaled, tag, weight + j);
    best = hn::Max(best, scaled);
  }
  const float old = *largest;
  const float now = hn::GetLane(hn::MaxOfLanes(tag, best));
  // Nothing but -inf so far: subtracting it would make NaN.
  const Vector base = hn::Set(tag, now == -INFINITY ? 0.0f : now);
  Vector sum = hn::Zero(tag);
  for (std::int32_t j = 0; j < n_padded; j += kLanes) {
    const Vector p = hn::Exp(tag, hn::Sub(hn::LoadU(tag, weight + j), base));
    hn::StoreU(p, tag, weight + j);
    sum = hn::Add(sum, p);
  }
  *rescale = now == old ? 1.0f : hn::GetLane(hn::Exp(tag, hn::Sub(hn::Set(tag, old), base)));
  *total = *total * *rescale + hn::GetLane(hn::SumOfLanes(tag, sum));
  *largest = now;
}

/// sum[h] = sum[h] * rescale[h] + sum_j weight[h][j] * rows[j], for kHeadGroup heads and kVectors
/// vectors of dims from dim i on.
template <std::int32_t kVectors>
HWY_INLINE void SumGroup(const float* HWY_RESTRICT weight, std::int32_t stride,
                         const float* rescale, const float* const* rows, std::int32_t n,
                         std::int32_t d, std::int32_t i, float* HWY_RESTRICT sum) {
  const Tag tag;
  Vector sums[kHeadGroup][kVectors];
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kHeadGroup; ++h) {
    const Vector factor = hn::Set(tag, rescale[h]);
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) {
      sums[h][v] = hn::Mul(hn::Load(tag, sum + h * d + i + v * kLanes), factor);
    }
  }
  for (std::int32_t j = 0; j < n; ++j) {
    const float* const row = rows[j] + i;
    Vector value[kVectors];
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) value[v] = hn::LoadU(tag, row + v * kLanes);
#pragma GCC unroll 8
    for (std::int32_t h = 0; h < kHeadGroup; ++h) {
      const Vector p = hn::Set(tag, weight[h * stride + j]);
#pragma GCC unroll 8
      for (std::int32_t v = 0; v < kVectors; ++v) sums[h][v] = hn::MulAdd(p, value[v], sums[h][v]);
    }
  }
#pragma GCC unroll 8
  for (std::int32_t h = 0; h < kHeadGroup; ++h) {
#pragma GCC unroll 8
    for (std::int32_t v = 0; v < kVectors; ++v) {
      hn::Store(sums[h][v], tag, sum + h * d + i + v * kLanes);
    }
  }
}

void SumRows(const float* weight, std::int32_t stride, const float* rescale,
             const float* const* rows, std::int32_t n, std::int32_t d, float* sum) {
  std::int32_t i = 0;
  for (; i + kSumVectors * kLanes <= d; i += kSumVectors * kLanes) {
    SumGroup<kSumVectors>(weight, stride, rescale, rows, n, d, i, sum);
  }
  for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
    SumGroup<2>(weight, stride, rescale, rows, n, d, i, sum);
  }
  for (; i < d; i += kLanes) SumGroup<1>(weight, stride, rescale, rows, n, d, i, sum);
}

void Attend(const AttendPlan& plan, std::int32_t row, std::int32_t first_head, std::int32_t n_heads,
            std::byte* memory) {
  const AttendArgs& a = plan.args;
  const std::int32_t heads = round_up(n_heads, kHeadGroup);
  const std::int32_t d = plan.d_padded;
  const AttendScratch s(memory, heads, plan);
  const float* const q = a.q + (static_cast<std::int64_t>(row) * a.n_heads + first_head) * a.d;
  std::memset(s.q, 0, static_cast<std::size_t>(heads) * d * sizeof(float));
  std::memset(s.sum, 0, static_cast<std::size_t>(heads) * d * sizeof(float));
  if (a.d != d) std::memset(s.tile, 0, static_cast<std::size_t>(plan.tile) * d * sizeof(float));
  for (std::int32_t h = 0; h < heads; ++h) {
    s.largest[h] = h < n_heads ? a.sink[first_head + h] : 0.0f;
    s.total[h] = s.largest[h] == -INFINITY ? 0.0f : 1.0f;
    if (h < n_heads) {
      std::memcpy(s.q + h * d, q + h * a.d, static_cast<std::size_t>(a.d) * sizeof(float));
    }
  }

  const KeyList keys(a, row);
  const float* rows[kMaxTile];
  for (std::int32_t first = 0; first < keys.n_keys; first += plan.tile) {
    const std::int32_t n = std::min(plan.tile, keys.n_keys - first);
    load_tile(plan, row, keys, first, n, s.tile, rows);
    for (std::int32_t h = 0; h < heads; h += kHeadGroup) {
      float* const weight = s.weight + h * plan.tile;
      for (std::int32_t k = 0; k < kHeadGroup; k += kScoreHeads) {
        for (std::int32_t j = 0; j < n; j += 4) {
          ScoreGroup(s.q + (h + k) * d, d, rows + j, weight + k * plan.tile + j, plan.tile);
        }
      }
      for (std::int32_t k = 0; k < kHeadGroup; ++k) {
        SoftmaxStep(weight + k * plan.tile, n, a.scale, s.largest + h + k, s.total + h + k,
                    s.rescale + h + k);
      }
      SumRows(weight, plan.tile, s.rescale + h, rows, n, d, s.sum + h * d);
    }
  }

  const float* const cos_sin = a.cos_sin + static_cast<std::int64_t>(row) * a.n_pairs * 2;
  float* out = a.out + (static_cast<std::int64_t>(row) * a.n_heads + first_head) * a.d;
  for (std::int32_t h = 0; h < n_heads; ++h, out += a.d) {
    const Tag tag;
    const float inverse = 1.0f / s.total[h];
    const float* const sum = s.sum + h * d;
    std::int32_t i = 0;
    for (; i + kLanes <= a.d; i += kLanes) {
      hn::StoreU(hn::Mul(hn::Load(tag, sum + i), hn::Set(tag, inverse)), tag, out + i);
    }
    for (; i < a.d; ++i) out[i] = sum[i] * inverse;
    rotate_back(out + a.d - 2 * a.n_pairs, cos_sin, a.n_pairs);
  }
}

}  // namespace
}  // namespace ebb::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(Attend);

class AttendPhase final : public Phase {
 public:
  explicit AttendPhase(const AttendPlan& plan) : plan_(plan) {}

  std::int64_t n_tasks() const noexcept override {
    return static_cast<std::int64_t>(*plan_.args.step.n_rows) * blocks();
  }
  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    const std::int32_t n_blocks = blocks();
    const std::int32_t per_block = heads_per_block(n_blocks);
    const std::int32_t first = static_cast<std::int32_t>(task % n_blocks) * per_block;
    HWY_DYNAMIC_DISPATCH(Attend)
    (plan_, static_cast<std::int32_t>(task / n_blocks), first,
     std::min(per_block, plan_.args.n_heads - first), scratch);
  }
  std::size_t scratch_bytes() const noexcept override {
    return AttendScratch::bytes(round_up(plan_.args.n_heads, kHeadGroup), plan_);
  }
  const char* name() const noexcept override { return "attend"; }

 private:
  std::int32_t heads_per_block(std::int32_t n_blocks) const {
    return round_up((plan_.args.n_heads + n_blocks - 1) / n_blocks, kHeadGroup);
  }
  /// Blocks of heads per row. Few rows are split so that every worker finds a task; less where
  /// each task has to decode the rows anew.
  std::int32_t blocks() const {
    const std::int32_t tasks = plan_.args.ring.format == RowFormat::f32 ? 16 : 8;
    const std::int32_t wanted = std::max(1, tasks / std::max(1, *plan_.args.step.n_rows));
    const std::int32_t possible = std::max(1, plan_.args.n_heads / kHeadGroup);
    const std::int32_t per_block = heads_per_block(std::min(wanted, possible));
    return (plan_.args.n_heads + per_block - 1) / per_block;
  }

  AttendPlan plan_;
};

}  // namespace

Status add_attend(PhaseList& list, const AttendArgs& args) {
  EBB_TRY(check_step("attend", args.step));
  EBB_TRY(check_pointers(
      "attend",
      {{"q", args.q}, {"sink", args.sink}, {"cos_sin", args.cos_sin}, {"out", args.out}}));
  EBB_TRY(check_range("attend", "d", args.d, 1, 1 << 16));
  EBB_TRY(check_range("attend", "n_heads", args.n_heads, 1, 1 << 16));
  EBB_TRY(check_range("attend", "n_pairs", args.n_pairs, 0, args.d / 2));
  EBB_TRY(check_range("attend", "window", args.window, 1, INT32_MAX));
  AttendPlan plan{args, 0, 0, round_up(args.d, kMaxLanes), 0};
  plan.tile = tile_keys(plan.d_padded);
  EBB_ASSIGN(plan.ring_rot,
             check_store("attend", "ring", args.ring, args.d, args.n_pairs, Rounding::none));
  EBB_TRY(check_range("attend", "rows of the ring", args.ring.n_rows,
                      static_cast<std::int64_t>(args.window) - 1 + args.step.max_rows, INT32_MAX));
  if (args.chunks.data != nullptr) {
    EBB_ASSIGN(plan.chunk_rot,
               check_store("attend", "chunks", args.chunks, args.d, args.n_pairs, Rounding::none));
    EBB_TRY(check_range("attend", "ratio", args.ratio, 1, 1 << 16));
    if (args.ids != nullptr) {
      EBB_TRY(check_pointers("attend", {{"count", args.count}}));
      EBB_TRY(check_range("attend", "top_k", args.top_k, 1, INT32_MAX));
    }
  }
  list.push_back(std::make_unique<AttendPhase>(plan));
  return ok_status();
}

}  // namespace ebb::cpu
#endif
