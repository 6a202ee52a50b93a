#pragma once

#include <memory>

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/moe.h"

namespace ebb::cpu {

class ActRoom;

/// Appends the phases of ExpertsArgs. Each expert's weight in the sum is applied to the output of
/// its down product. A row with an id outside the experts gives NaN.
/// Precision as for add_matmul; the gated values are rounded again before `down`.
/// Errors: invalid_argument for a type that holds no weights, sizes that do not fit each other or
/// the type's block, a null pointer, a clamp that is not positive.
/// Memory: the grouping, owned by the phases, and rounded activations of max_rows * (n_used + 2)
/// rows in `room`, as for add_matmul. May throw std::bad_alloc.
Status add_experts(PhaseList& phases, const ExpertsArgs& args, Precision precision,
                   std::shared_ptr<ActRoom> room = nullptr);

}  // namespace ebb::cpu
