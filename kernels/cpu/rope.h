#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/attention.h"

namespace ebb::cpu {

/// Appends the rope table of a step, or the preparation of query heads, to a plan.
/// Errors: invalid_argument; incompatible for a rounding that the width does not allow.
Status add_rope_table(PhaseList& list, const RopeTableArgs& args);
Status add_heads(PhaseList& list, const HeadsArgs& args);

}  // namespace ebb::cpu
