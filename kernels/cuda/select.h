#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxIndexWidth = 256;  ///< largest d of select

/// Grows with the capacity of the key store: 4 bytes a chunk for a bounded number of rows.
std::size_t select_workspace(const SelectArgs& args);
cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot);

}  // namespace ebb::cuda
