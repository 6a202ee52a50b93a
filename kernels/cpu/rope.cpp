#include "kernels/cpu/rope.h"

#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/vector.h"
#include "kernels/rope.h"

namespace ebb::cpu {
namespace {

void rope_table_rows(const RopeTableArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t position = static_cast<std::int64_t>(a.step.pos[r]) + a.offset;
    if (position < 0) continue;
    float* const row = a.cos_sin + r * a.n_pairs * 2;
    for (std::int32_t i = 0; i < a.n_pairs; ++i) {
      (a.single ? rope_entry_single : rope_entry)(position, a.frequency[i], row + 2 * i);
    }
  }
}

/// An item is one head of one row.
void heads_items(const HeadsArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  for (std::int64_t item = first; item < last; ++item) {
    float* const x = a.x + item * a.d;
    if (a.normalise) rms_norm_vector(x, nullptr, x, a.d, a.eps);
    const float* const cos_sin = a.cos_sin + item / a.n_heads * a.n_pairs * 2;
    rope_and_round(x, a.d, cos_sin, a.n_pairs, a.rounding);
  }
}

}  // namespace

Status add_rope_table(PhaseList& list, const RopeTableArgs& args) {
  EBB_TRY(check_rope_table(args));
  list.push_back(std::make_unique<BlockPhase<RopeTableArgs>>("rope_table", args, args.step.n_rows,
                                                             1, items_for_values(64 * args.n_pairs),
                                                             0, rope_table_rows));
  return ok_status();
}

Status add_heads(PhaseList& list, const HeadsArgs& args) {
  EBB_TRY(check_heads(args, 1 << 16));
  list.push_back(std::make_unique<BlockPhase<HeadsArgs>>(
      "heads", args, args.step.n_rows, args.n_heads, items_for_values(2 * args.d), 0, heads_items));
  return ok_status();
}

}  // namespace ebb::cpu
