#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/moe.h"

namespace ebb::cuda {

/// Experts that a row may use, and experts there may be.
inline constexpr std::int32_t kMaxRouteUsed = 64;
inline constexpr std::int32_t kMaxRouteExperts = 4096;

cudaError_t route(const Launch& launch, const RouteArgs& args);

}  // namespace ebb::cuda
