// Emission reads the state and the batch, and writes rows; only then does the second phase
// overwrite the state. So an emitting row never meets state of its own step, whatever the order of
// tasks, and a chunk's values depend only on its tokens: a token gives the same bits from either
// place.

#include "kernels/cpu/compress.h"

#include <cstring>

#include "kernels/compress.h"
#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/rows.h"
#include "kernels/row_format.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/compress.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// raw[i] = pooled value of every dim of the chunk that ends in `row`: compress_pool, in vectors.
void Pool(const CompressArgs& a, std::int32_t row, float* raw) {
  const hn::ScalableTag<float> tag;
  using Vector = hn::Vec<decltype(tag)>;
  const std::int32_t lanes = static_cast<std::int32_t>(hn::Lanes(tag));
  const std::int32_t n_slots = compress_slots(a);
  const std::int32_t first = compress_first_slot(a, a.step.pos[row]);
  const auto score_at = [&](const CompressSlot& slot, std::int32_t i) {
    const Vector gate = hn::LoadU(tag, slot.gate + i);
    return slot.ape != nullptr ? hn::Add(gate, hn::LoadU(tag, slot.ape + i)) : gate;
  };
  std::int32_t i = 0;
  for (; i + lanes <= a.d; i += lanes) {
    Vector largest = hn::Set(tag, -INFINITY);
    for (std::int32_t s = first; s < n_slots; ++s) {
      largest = hn::Max(largest, score_at(compress_slot(a, row, s), i));
    }
    Vector sum = hn::Zero(tag), weighted = hn::Zero(tag);
    for (std::int32_t s = first; s < n_slots; ++s) {
      const CompressSlot slot = compress_slot(a, row, s);
      const Vector weight = hn::Exp(tag, hn::Sub(score_at(slot, i), largest));
      sum = hn::Add(sum, weight);
      weighted = hn::MulAdd(weight, hn::LoadU(tag, slot.kv + i), weighted);
    }
    hn::StoreU(hn::Div(weighted, sum), tag, raw + i);
  }
  for (; i < a.d; ++i) raw[i] = compress_pool(a, row, i);
}

}  // namespace
}  // namespace ebb::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {
namespace {

HWY_EXPORT(Pool);

struct CompressPlan {
  CompressArgs args;
  std::int32_t n_rot = 0;
};

void emit_rows(const CompressPlan& plan, std::int64_t first, std::int64_t last,
               std::byte* scratch) {
  const CompressArgs& a = plan.args;
  const RowFinish finish{a.norm_weight, a.eps,      a.d,          a.n_pairs,
                         plan.n_rot,    a.rounding, a.rows.format};
  float* const raw = reinterpret_cast<float*>(scratch);
  for (std::int64_t r = first; r < last; ++r) {
    const std::int32_t pos = a.step.pos[r];
    if (!ends_chunk(pos, a.ratio)) continue;
    const std::int64_t chunk = pos / a.ratio;
    EBB_ASSERT(chunk < a.rows.n_rows);
    HWY_DYNAMIC_DISPATCH(Pool)(a, static_cast<std::int32_t>(r), raw);
    std::byte* const stored = row_at(a.rows, a.step.seq[r], chunk);
    finish_row(finish, raw, a.cos_sin + r * a.n_pairs * 2, raw, stored);
    std::byte* const slot = slot_at(a.rows, a.slots, a.step.seq[r], chunk);
    if (slot != nullptr) std::memcpy(slot, stored, static_cast<std::size_t>(a.rows.row_bytes));
  }
}

void keep_rows(const CompressPlan& plan, std::int64_t first, std::int64_t last, std::byte*) {
  const CompressArgs& a = plan.args;
  const std::int64_t width = compress_width(a);
  const std::int32_t state_rows = compress_state_rows(a.ratio, a.overlap);
  for (std::int64_t r = first; r < last; ++r) {
    if (!compress_keeps(a, static_cast<std::int32_t>(r))) continue;
    const std::int32_t pos = a.step.pos[r];
    const std::int64_t at =
        (static_cast<std::int64_t>(a.step.seq[r]) * state_rows + pos % state_rows) * width;
    std::memcpy(a.state_kv + at, a.kv + r * width, static_cast<std::size_t>(width) * sizeof(float));
    const float* const gate = a.gate + r * width;
    const float* const ape = a.ape + pos % a.ratio * width;
    for (std::int64_t i = 0; i < width; ++i) a.state_gate[at + i] = gate[i] + ape[i];
  }
}

}  // namespace

Status add_compress(PhaseList& list, const CompressArgs& args) {
  CompressPlan plan{args, 0};
  EBB_ASSIGN(plan.n_rot, check_compress(args, 1 << 16));
  const std::int64_t per_chunk = compress_slots(args) * static_cast<std::int64_t>(args.d);
  list.push_back(std::make_unique<BlockPhase<CompressPlan>>(
      "compress", plan, args.step.n_rows, 1,
      args.ratio * std::max<std::int64_t>(1, 4096 / per_chunk),
      static_cast<std::size_t>(args.d) * sizeof(float), emit_rows));
  list.push_back(std::make_unique<BlockPhase<CompressPlan>>(
      "compress state", plan, args.step.n_rows, 1, items_for_values(compress_width(args)), 0,
      keep_rows));
  return ok_status();
}

}  // namespace ebb::cpu
#endif
