#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/scoring.h"

namespace ebb::cpu {

/// Append the ops of kernels/ops/scoring.h to a plan.   Errors: invalid_argument, incompatible
Status add_keep_rows(PhaseList& list, const KeepRowsArgs& args);
Status add_pick_rows(PhaseList& list, const PickRowsArgs& args);
Status add_score(PhaseList& list, const ScoreArgs& args);

}  // namespace ebb::cpu
