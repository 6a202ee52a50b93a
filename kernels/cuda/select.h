#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxIndexWidth = 256;  ///< largest d of select

/// Bounded by constants and top_k, whatever the capacity of the key store.
std::size_t select_workspace(const SelectArgs& args);
cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot);

}  // namespace ebb::cuda
