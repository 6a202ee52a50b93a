#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// A token outside the table gives NaN.
cudaError_t embed(const Launch& launch, const EmbedArgs& args);

}  // namespace ebb::cuda
