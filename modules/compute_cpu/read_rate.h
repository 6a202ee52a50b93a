#pragma once

#include "core/api/result.h"
#include "modules/compute_cpu/worker_pool.h"

namespace ebb::cpu {

/// Bytes per second at which the pool's workers together read memory: the best of several passes
/// over a buffer that no cache holds. Errors: out_of_memory. May throw std::bad_alloc.
Result<double> measure_read_rate(WorkerPool& pool);

/// Of its buffer.
inline constexpr std::uint64_t kReadRateBytes = std::uint64_t{512} << 20;

}  // namespace ebb::cpu
