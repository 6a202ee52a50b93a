#pragma once

#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/moe.h"

namespace ebb::cuda {

std::size_t experts_workspace(const ExpertsArgs& args, Precision precision);

/// The types must have a codec, and widths be whole chunks; checked by the caller. Without
/// `with_sum` y stays unwritten: whoever reads it adds the rows of `partial` as ExpertsArgs says.
///
/// A step of one row may go a shorter way (experts_row.h), which always writes y; `x_settled` is
/// said there.
cudaError_t experts(const Launch& launch, const ExpertsArgs& args, Precision precision,
                    bool with_sum = true, bool x_settled = false);

}  // namespace ebb::cuda
