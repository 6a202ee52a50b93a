#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/dense.h"

namespace ebb::cpu {

/// Appends the phase of EmbedArgs. A token outside the table gives a row of NaN.
/// Errors: invalid_argument for a type that holds no weights, sizes that do not fit the type's
/// block, a null pointer.
Status add_embed(PhaseList& phases, const EmbedArgs& args);

}  // namespace ebb::cpu
