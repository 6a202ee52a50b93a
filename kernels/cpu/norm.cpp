#include "kernels/cpu/norm.h"

#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/vector.h"

namespace ebb::cpu {

Status add_rms_norm(PhaseList& list, const RmsNormArgs& args) {
  EBB_TRY(check_pointers(
      "rms_norm",
      {{"n_rows", args.n_rows}, {"x", args.x}, {"weight", args.weight}, {"y", args.y}}));
  EBB_TRY(check_range("rms_norm", "d", args.d, 1, INT32_MAX));
  list.push_back(std::make_unique<BlockPhase<RmsNormArgs>>(
      "rms_norm", args, args.n_rows, 1, items_for_values(args.d), 0,
      [](const RmsNormArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
        for (std::int64_t r = first; r < last; ++r) {
          rms_norm_vector(a.x + r * a.d, a.weight, a.y + r * a.d, a.d, a.eps);
        }
      }));
  return ok_status();
}

Status add_argmax(PhaseList& list, const ArgmaxArgs& args) {
  EBB_TRY(check_pointers("argmax",
                         {{"n_rows", args.n_rows}, {"logits", args.logits}, {"ids", args.ids}}));
  EBB_TRY(check_range("argmax", "n", args.n, 1, INT32_MAX));
  list.push_back(std::make_unique<BlockPhase<ArgmaxArgs>>(
      "argmax", args, args.n_rows, 1, items_for_values(args.n), 0,
      [](const ArgmaxArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
        for (std::int64_t r = first; r < last; ++r) {
          a.ids[r] = static_cast<std::int32_t>(argmax_vector(a.logits + r * a.n, a.n));
        }
      }));
  return ok_status();
}

}  // namespace ebb::cpu
