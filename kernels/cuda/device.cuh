#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.h"

// What every kernel file needs: the launch itself, the hand-over between kernels, and reductions
// whose order is fixed, so that results do not vary from run to run.

namespace ebb::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Blocks until everything that earlier kernels of the stream wrote can be read. Every kernel calls
/// it first, in every block: a kernel that left without waiting would let its successor run before
/// its predecessor has ended. The successor is set up from here on; before it waits, it may read
/// what the kernels before this one wrote. (Setting it up before this kernel waits would bring more
/// weights early, but made steps of one row 7 % slower.)
__device__ __forceinline__ void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Lets the successor be set up before this kernel's inputs are there. Before it waits, it may then
/// only read what was there before the kernel in front of this one began.
__device__ __forceinline__ void begin_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Reads what describes the step. It is there before the first kernel of a plan begins, so it may
/// be read before wait_for_inputs: a load that others depend on then costs nothing.
template <class T>
__device__ __forceinline__ T of_step(const T* at) {
  return __ldcg(at);
}

/// Asks for the line at `at` to be brought to the L2 cache. What never changes, weights, can be
/// asked for before wait_for_inputs.
__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// Launches `kernel`; with launch.early_start its blocks may come to their wait_for_inputs while
/// the kernel before still runs.
template <class... Parameters, class... Arguments>
cudaError_t start(const Launch& launch, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                  std::size_t shared_bytes, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.early_start ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

/// Lets `kernel` take `bytes` of dynamic shared memory; to be called before its first launch with
/// more than 48 KiB, what it declares itself included.
template <class Kernel>
cudaError_t allow_shared(Kernel kernel, std::size_t bytes) {
  if (bytes <= 16 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

/// Sum over the lanes of a warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// Sum over a block of whole warps, in every thread; `memory` holds 32 floats and is free again
/// after the call.
__device__ __forceinline__ float block_sum(float value, float* memory) {
  value = warp_sum(value);
  const int warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) memory[warp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n_warps; ++i) sum += memory[i];
  __syncthreads();
  return sum;
}

/// 1 / RMS of x, in every thread of a block of kNormThreads: whoever norms a vector so gets the
/// same bits. `memory` as above.
__device__ __forceinline__ float block_inverse_rms(const float* x, std::int64_t d, float eps,
                                                   float* memory) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < d; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  return 1.0f / sqrtf(block_sum(sum, memory) / static_cast<float>(d) + eps);
}

/// a . b added to `sum`, in order.
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

}  // namespace ebb::cuda
