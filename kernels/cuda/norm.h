#pragma once

#include "core/api/ops_dense.h"
#include "kernels/cuda/launch.h"

namespace ebb::cuda {

cudaError_t rms_norm(const Launch& launch, const RmsNormArgs& args);

/// Bytes of workspace that argmax wants.
std::size_t argmax_workspace(const ArgmaxArgs& args);
cudaError_t argmax(const Launch& launch, const ArgmaxArgs& args);

}  // namespace ebb::cuda
