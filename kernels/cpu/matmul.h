#pragma once

#include <memory>

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/dense.h"

namespace ebb::cpu {

class ActRoom;

/// Appends the phases of MatmulArgs. With Precision::fast and a quantised weight, the activations
/// are rounded to int8 in groups of 16 first, once for all parts; F32, F16 and BF16 weights and
/// args.exact multiply floats in either precision.
/// Errors: invalid_argument for a type that holds no weights, sizes that do not fit each other or
/// the type's block, a null pointer.
/// Memory: the rounded activations of max_rows rows (7 bytes per 4 values) lie in `room`, which ops
/// that never run at once may share; by default in one of their own. May throw std::bad_alloc.
Status add_matmul(PhaseList& phases, const MatmulArgs& args, Precision precision,
                  std::shared_ptr<ActRoom> room = nullptr);

}  // namespace ebb::cpu
