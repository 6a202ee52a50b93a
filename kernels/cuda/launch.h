#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ebb::cuda {

/// Where and how a plan's kernels are launched, and what they share.
/// A launcher only enqueues: it allocates nothing and waits for nothing, so that it can be captured
/// into a graph. It returns what the launch returned.
struct Launch {
  cudaStream_t stream = nullptr;
  std::int32_t n_sms = 1;
  std::size_t largest_shared = 0;           ///< bytes of shared memory that a block may have
  bool tensor_units = false;                ///< products may use tensor_product.h
  bool early_start = false;                 ///< kernels may be set up while their predecessor ends
  const std::uint64_t* grid_iq2 = nullptr;  ///< [256] codebook of IQ2_XXS, device memory
  std::byte* workspace = nullptr;           ///< device memory that lives for one op
  std::byte* landing = nullptr;  ///< device memory of attend_fetch, which lives until its attend
};

}  // namespace ebb::cuda
