#pragma once

#include "core/api/result.h"
#include "kernels/cuda/launch.h"

namespace ebb::cuda {

/// Bytes per second at which the device reads a buffer that its caches cannot hold: the best of
/// several passes, with nothing else running. The buffer takes at most `most_bytes` and half of
/// what is free. Errors: out_of_memory if that is too little to tell; device.
Result<double> measure_read_rate(const Launch& launch, std::uint64_t most_bytes);

}  // namespace ebb::cuda
