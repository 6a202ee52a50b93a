#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

cudaError_t rms_norm(const Launch& launch, const RmsNormArgs& args);

/// Bytes of workspace that argmax wants.
std::size_t argmax_workspace(const ArgmaxArgs& args);
cudaError_t argmax(const Launch& launch, const ArgmaxArgs& args);

}  // namespace ebb::cuda
