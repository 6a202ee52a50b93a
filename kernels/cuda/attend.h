#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxHeadWidth = 512;  ///< largest d of attend

std::size_t attend_workspace(const AttendArgs& args);

/// `ring_rot`, `chunk_rot`: n_rot of row_format.h for the two stores.
cudaError_t attend(const Launch& launch, const AttendArgs& args, std::int32_t ring_rot,
                   std::int32_t chunk_rot);

}  // namespace ebb::cuda
