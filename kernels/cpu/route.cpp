
#include "kernels/cpu/route.h"

#include <algorithm>

#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/route.h"

namespace ebb::cpu {
namespace {

/// The n_used best experts, best first, by insertion into a short sorted list. Equal scores keep
/// the order of ids, since ids are offered in ascending order and only a larger score moves up.
void choose_by_score(const RouteArgs& a, const float* affinity, std::int32_t* ids) {
  float best[kMaxExpertsUsed];
  std::int32_t n = 0;
  for (std::int32_t e = 0; e < a.n_experts; ++e) {
    const float score = route_score(affinity[e], a.bias != nullptr ? a.bias[e] : 0.0f);
    if (n == a.n_used && !(score > best[n - 1])) continue;
    std::int32_t at = n < a.n_used ? n++ : n - 1;
    for (; at > 0 && score > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = score;
    ids[at] = e;
  }
}

void route_rows(const RouteArgs& a, std::int64_t first, std::int64_t last, std::byte* scratch) {
  float* const affinity = reinterpret_cast<float*>(scratch);
  for (std::int64_t r = first; r < last; ++r) {
    const float* const logits = a.logits + r * a.n_experts;
    std::int32_t* const ids = a.ids + r * a.n_used;
    float* const weights = a.weights + r * a.n_used;
    if (a.table != nullptr) {
      std::copy_n(a.table + static_cast<std::int64_t>(a.step.token[r]) * a.n_used, a.n_used, ids);
      for (std::int32_t i = 0; i < a.n_used; ++i) weights[i] = route_affinity(logits[ids[i]]);
    } else {
      for (std::int32_t e = 0; e < a.n_experts; ++e) affinity[e] = route_affinity(logits[e]);
      choose_by_score(a, affinity, ids);
      for (std::int32_t i = 0; i < a.n_used; ++i) weights[i] = affinity[ids[i]];
    }
    float factor = a.scale;
    if (a.normalise) {
      float sum = 0;
      for (std::int32_t i = 0; i < a.n_used; ++i) sum += weights[i];
      // Written so that a NaN sum stays NaN and is seen, not hidden by the floor.
      factor = a.scale / (sum < kRouteSumFloor ? kRouteSumFloor : sum);
    }
    for (std::int32_t i = 0; i < a.n_used; ++i) weights[i] *= factor;
  }
}

}  // namespace

Status add_route(PhaseList& list, const RouteArgs& args) {
  EBB_TRY(check_pointers("route", {{"step.n_rows", args.step.n_rows},
                                   {"logits", args.logits},
                                   {"ids", args.ids},
                                   {"weights", args.weights}}));
  EBB_TRY(check_range("route", "n_experts", args.n_experts, 1, 1 << 20));
  EBB_TRY(check_range("route", "n_used", args.n_used, 1,
                      std::min(args.n_experts, std::int32_t{kMaxExpertsUsed})));
  if (args.table != nullptr) {
    EBB_TRY(check_pointers("route", {{"step.token", args.step.token}}));
    if (args.bias != nullptr) {
      return make_error(Errc::invalid_argument,
                        "route: both a table and a bias are given, want one");
    }
  }
  list.push_back(std::make_unique<BlockPhase<RouteArgs>>(
      "route", args, args.step.n_rows, 1, std::max(1, 1024 / args.n_experts),
      static_cast<std::size_t>(args.n_experts) * sizeof(float), route_rows));
  return ok_status();
}

}  // namespace ebb::cpu
