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

#include "kernels/cpu/attend_keys.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/vector.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

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
  EBB_ASSIGN(const AttendStores stores, check_attend(args));
  AttendPlan plan{args, stores.ring_rot, stores.chunk_rot, round_up(args.d, kMaxLanes), 0};
  plan.tile = tile_keys(plan.d_padded);
  list.push_back(std::make_unique<AttendPhase>(plan));
  return ok_status();
}

}  // namespace ebb::cpu
#endif
