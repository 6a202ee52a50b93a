#pragma once

#include "core/api/ops_dense.h"
#include "kernels/cuda/launch.h"

namespace ebb::cuda {

/// A token outside the table gives NaN.
cudaError_t embed(const Launch& launch, const EmbedArgs& args);

}  // namespace ebb::cuda
