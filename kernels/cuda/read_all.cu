#include "kernels/cuda/device.cuh"
#include "kernels/cuda/read_all.h"

namespace ebb::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // loads of 16 bytes that a thread waits for together

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, std::int64_t n, std::uint32_t* sink) {
  wait_for_inputs();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::uint32_t all = 0;
  for (; at + (kInFlight - 1) * step < n; at += kInFlight * step) {
    uint4 piece[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) piece[i] = __ldcs(data + at + i * step);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) all ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
  }
  for (; at < n; at += step) {
    const uint4 piece = __ldcs(data + at);
    all ^= piece.x ^ piece.y ^ piece.z ^ piece.w;
  }
  if (all == 0x5EED5EEDU) *sink = all;
}

}  // namespace

cudaError_t read_all(const Launch& launch, const std::byte* data, std::int64_t n_bytes,
                     std::uint32_t* sink) {
  return start(launch, read_kernel, dim3(launch.n_sms * 4), dim3(kThreads), 0,
               reinterpret_cast<const uint4*>(data), n_bytes / 16, sink);
}

}  // namespace ebb::cuda
