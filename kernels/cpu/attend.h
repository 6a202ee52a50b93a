#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/attention.h"

namespace ebb::cpu {

/// Appends attention over window and chunks to a plan.
/// Errors: invalid_argument; incompatible for a store that does not suit the width.
Status add_attend(PhaseList& list, const AttendArgs& args);

}  // namespace ebb::cpu
