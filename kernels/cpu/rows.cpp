#include "kernels/cpu/rows.h"

#include "kernels/chunks.h"
#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/vector.h"
#include "kernels/row_format.h"

namespace ebb::cpu {

void finish_row(const RowFinish& finish, const float* x, const float* cos_sin, float* work,
                std::byte* row) {
  rms_norm_vector(x, finish.norm_weight, work, finish.d, finish.eps);
  rope_and_round(work, finish.d, cos_sin, finish.n_pairs, finish.rounding);
  encode_row(finish.format, finish.d, finish.n_rot, work, row);
}

void decode_row_fast(RowFormat format, std::int32_t d, std::int32_t n_rot, const std::byte* row,
                     float* x) {
  decode_row(format, d, n_rot, row, x);
}

namespace {

struct AppendPlan {
  AppendArgs args;
  std::int32_t n_rot = 0;
};

void append_rows(const AppendPlan& plan, std::int64_t first, std::int64_t last,
                 std::byte* scratch) {
  const AppendArgs& a = plan.args;
  const RowFinish finish{a.norm_weight, a.eps,      a.d,          a.n_pairs,
                         plan.n_rot,    a.rounding, a.ring.format};
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t place = ring_index(a.step.pos[r], a.ring.n_rows);
    finish_row(finish, a.kv + r * a.d, a.cos_sin + r * a.n_pairs * 2,
               reinterpret_cast<float*>(scratch), row_at(a.ring, a.step.seq[r], place));
  }
}

}  // namespace

Status add_append(PhaseList& list, const AppendArgs& args) {
  EBB_TRY(check_step("append", args.step));
  EBB_TRY(check_pointers(
      "append", {{"kv", args.kv}, {"norm_weight", args.norm_weight}, {"cos_sin", args.cos_sin}}));
  EBB_TRY(check_range("append", "d", args.d, 1, 1 << 16));
  EBB_TRY(check_rounding("append", args.rounding, args.d, args.n_pairs));
  EBB_TRY(
      check_range("append", "rows of the ring", args.ring.n_rows, args.step.max_rows, INT32_MAX));
  AppendPlan plan{args, 0};
  EBB_ASSIGN(plan.n_rot,
             check_store("append", "ring", args.ring, args.d, args.n_pairs, args.rounding));
  list.push_back(std::make_unique<BlockPhase<AppendPlan>>(
      "append", plan, args.step.n_rows, 1, items_for_values(8 * args.d),
      static_cast<std::size_t>(args.d) * sizeof(float), append_rows));
  return ok_status();
}

}  // namespace ebb::cpu
