#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/moe.h"

namespace ebb::cpu {

/// Appends the phases of ExpertsArgs. Each expert's weight in the sum is applied to the output of
/// its down product. A row with an id outside the experts gives NaN.
/// Precision as for add_matmul; the gated values are rounded again before `down`.
/// Errors: invalid_argument for a type that holds no weights, sizes that do not fit each other or
/// the type's block, a null pointer, a clamp that is not positive.
/// Memory: rounded activations of max_rows * (n_used + 2) rows and the grouping, owned by the
/// phases. May throw std::bad_alloc.
Status add_experts(PhaseList& phases, const ExpertsArgs& args, Precision precision);

}  // namespace ebb::cpu
