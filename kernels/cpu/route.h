#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/moe.h"

namespace ebb::cpu {

/// Appends the choice of experts to a plan. Errors: invalid_argument for null pointers, for a table
/// and a bias at once, and for more experts used than there are (at most kMaxExpertsUsed).
inline constexpr int kMaxExpertsUsed = 64;
Status add_route(PhaseList& list, const RouteArgs& args);

}  // namespace ebb::cpu
