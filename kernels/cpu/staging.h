#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/staging.h"

namespace ebb::cpu {

/// Append the ops of kernels/ops/staging.h to a plan.   Errors: invalid_argument
Status add_move_rows(PhaseList& list, const MoveRowsArgs& args);
Status add_copy(PhaseList& list, const CopyArgs& args);
Status add_host_call(PhaseList& list, const HostCallArgs& args);

}  // namespace ebb::cpu
