#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/dense.h"

namespace ebb::cpu {

/// Appends the phases of ops on single vectors to a plan. Errors: invalid_argument.
Status add_rms_norm(PhaseList& list, const RmsNormArgs& args);
Status add_argmax(PhaseList& list, const ArgmaxArgs& args);

}  // namespace ebb::cpu
