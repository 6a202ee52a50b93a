#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// The products by plain f32 arithmetic; all parts are of one type.
cudaError_t matmul_plain(const Launch& launch, const MatmulArgs& args);

}  // namespace ebb::cuda
