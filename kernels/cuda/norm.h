#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

inline constexpr int kNormThreads = 256;  ///< of a block that norms a vector

cudaError_t rms_norm(const Launch& launch, const RmsNormArgs& args);

/// Bytes of workspace that argmax wants.
std::size_t argmax_workspace(const ArgmaxArgs& args);
cudaError_t argmax(const Launch& launch, const ArgmaxArgs& args);

}  // namespace ebb::cuda
