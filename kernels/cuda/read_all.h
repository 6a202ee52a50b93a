#pragma once

#include "kernels/cuda/launch.h"

namespace ebb::cuda {

/// Reads `n_bytes` (a multiple of 16) at `data`, which is aligned to 16, once, and does nothing
/// else with them: the measure of what memory gives. `sink` [1] is where the compiler must believe
/// that a result goes.
cudaError_t read_all(const Launch& launch, const std::byte* data, std::int64_t n_bytes,
                     std::uint32_t* sink);

}  // namespace ebb::cuda
