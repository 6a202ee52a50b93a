#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/attention.h"

namespace ebb::cpu {

/// Appends the choice of chunks to a plan. The memory it needs does not depend on the context.
/// Errors: invalid_argument; incompatible for a store that does not suit the width.
Status add_select(PhaseList& list, const SelectArgs& args);

}  // namespace ebb::cpu
