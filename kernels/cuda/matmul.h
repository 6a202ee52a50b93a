#pragma once

#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// Bytes that matmul may want.
std::size_t matmul_workspace(const MatmulArgs& args, Precision precision);

/// Products of every part, one or two launches per stored type. Arguments are checked by the
/// caller: the types have a codec, widths are whole chunks.
cudaError_t matmul(const Launch& launch, const MatmulArgs& args, Precision precision);

}  // namespace ebb::cuda
