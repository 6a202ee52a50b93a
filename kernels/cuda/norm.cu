#include "kernels/cuda/device.cuh"
#include "kernels/cuda/norm.h"

namespace ebb::cuda {
namespace {

__global__ void rms_norm_kernel(RmsNormArgs a) {
  __shared__ float memory[kWarp];
  const int row = blockIdx.x, n_rows = of_step(a.n_rows);
  wait_for_inputs();
  if (row >= n_rows) return;
  const float* const x = a.x + row * a.d;
  float* const y = a.y + row * a.d;
  const float scale = block_inverse_rms(x, a.d, a.eps, memory);
  for (std::int64_t i = threadIdx.x; i < a.d; i += blockDim.x) y[i] = x[i] * scale * a.weight[i];
}

/// Greater is better: the largest value, then the lowest index. NaN is no candidate (0).
__device__ __forceinline__ unsigned long long candidate(float value, std::uint32_t index) {
  if (value != value) return 0;
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  const std::uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | ~index;
}

__device__ __forceinline__ unsigned long long block_best(unsigned long long best,
                                                         unsigned long long* memory) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const unsigned long long other = __shfl_xor_sync(kAllLanes, best, step);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarp == 0) memory[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / kWarp; ++i) best = memory[i] > best ? memory[i] : best;
  return best;
}

constexpr int kArgmaxBlocks = 64;

/// Best of each of kArgmaxBlocks parts of a row.
__global__ void argmax_parts_kernel(ArgmaxArgs a, unsigned long long* parts) {
  __shared__ unsigned long long memory[kWarp];
  wait_for_inputs();
  const int row = blockIdx.y;
  if (row >= *a.n_rows) return;
  const float* const x = a.logits + row * a.n;
  unsigned long long best = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const unsigned long long other = candidate(x[i], static_cast<std::uint32_t>(i));
    best = other > best ? other : best;
  }
  best = block_best(best, memory);
  if (threadIdx.x == 0) parts[row * kArgmaxBlocks + blockIdx.x] = best;
}

__global__ void argmax_kernel(ArgmaxArgs a, const unsigned long long* parts) {
  __shared__ unsigned long long memory[kWarp];
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.n_rows) return;
  const unsigned long long best = block_best(parts[row * kArgmaxBlocks + threadIdx.x], memory);
  if (threadIdx.x == 0) {
    a.ids[row] = best == 0 ? 0 : static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
  }
}

}  // namespace

cudaError_t rms_norm(const Launch& launch, const RmsNormArgs& args) {
  return start(launch, rms_norm_kernel, dim3(static_cast<unsigned>(args.max_rows)),
               dim3(kNormThreads), 0, args);
}

std::size_t argmax_workspace(const ArgmaxArgs& args) {
  return static_cast<std::size_t>(args.max_rows) * kArgmaxBlocks * sizeof(unsigned long long);
}

cudaError_t argmax(const Launch& launch, const ArgmaxArgs& args) {
  auto* const parts = reinterpret_cast<unsigned long long*>(launch.workspace);
  const auto rows = static_cast<unsigned>(args.max_rows);
  const cudaError_t error =
      start(launch, argmax_parts_kernel, dim3(kArgmaxBlocks, rows), dim3(256), 0, args, parts);
  if (error != cudaSuccess) return error;
  return start(launch, argmax_kernel, dim3(rows), dim3(kArgmaxBlocks), 0, args,
               static_cast<const unsigned long long*>(parts));
}

}  // namespace ebb::cuda
