#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/attention.h"

namespace ebb::cpu {

/// Appends the compressor to a plan: a phase that emits the chunks ending in the step, and one that
/// keeps the state.
/// Errors: invalid_argument; incompatible for a store or rounding that does not suit the width.
Status add_compress(PhaseList& list, const CompressArgs& args);

}  // namespace ebb::cpu
