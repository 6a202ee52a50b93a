#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// Sum of f32 products of every part, one launch per stored type. Arguments are checked by the
/// caller: the types have a codec, widths are whole chunks.
cudaError_t matmul(const Launch& launch, const MatmulArgs& args);

}  // namespace ebb::cuda
