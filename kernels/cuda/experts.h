#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/moe.h"

namespace ebb::cuda {

std::size_t experts_workspace(const ExpertsArgs& args);

/// The types must have a codec, and widths be whole chunks; checked by the caller.
cudaError_t experts(const Launch& launch, const ExpertsArgs& args);

}  // namespace ebb::cuda
