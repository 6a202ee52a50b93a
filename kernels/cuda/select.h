#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxIndexWidth = 256;  ///< largest d of select and score

/// The most heads of width d whose queries fit in `largest_shared` bytes of a block's memory.
std::int32_t max_index_heads(std::int32_t d, std::uint64_t largest_shared);

/// Bounded by constants and top_k, whatever the capacity of the key store.
std::size_t select_workspace(const SelectArgs& args);
cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot);

}  // namespace ebb::cuda
