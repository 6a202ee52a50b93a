#include "kernels/cuda/device.cuh"
#include "kernels/cuda/planes.h"
#include "kernels/numeric.h"

namespace ebb::cuda {
namespace {

struct Spread {
  BlockFields fields;
  std::int32_t block_bytes;
  const std::uint8_t* stored;
  std::uint8_t* target;
  std::int64_t n_bytes;
  std::int64_t first;
  std::int64_t total;
};

__global__ void spread_kernel(Spread s) {
  wait_for_inputs();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       at < s.n_bytes; at += step) {
    const std::int64_t block = at / s.block_bytes;
    const std::int32_t within = static_cast<std::int32_t>(at - block * s.block_bytes);
    std::int64_t plane = 0;
#pragma unroll
    for (int i = 0; i < kMaxFields; ++i) {
      if (i >= s.fields.n_fields) break;
      const Field field = s.fields.fields[i];
      if (within >= field.offset && within < field.offset + field.bytes) {
        s.target[plane + (s.first + block) * field.bytes + within - field.offset] = s.stored[at];
      }
      plane += s.total * field.bytes;
    }
  }
}

__global__ void widen_kernel(const std::uint16_t* stored, bool is_bf16, std::int64_t count,
                             float* target) {
  wait_for_inputs();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    target[i] = is_bf16 ? bf16_to_float(stored[i]) : f16_to_float(stored[i]);
  }
}

}  // namespace

cudaError_t spread_blocks(const Launch& launch, DType type, const std::byte* stored,
                          std::int64_t n_blocks, std::byte* target, std::int64_t first,
                          std::int64_t total_blocks) {
  if (n_blocks == 0) return cudaSuccess;
  const std::int32_t block_bytes = dtype_traits(type)->block_bytes;
  const Spread s{block_fields(type),
                 block_bytes,
                 reinterpret_cast<const std::uint8_t*>(stored),
                 reinterpret_cast<std::uint8_t*>(target),
                 n_blocks * block_bytes,
                 first,
                 total_blocks};
  return start(launch, spread_kernel, dim3(launch.n_sms * 8), dim3(256), 0, s);
}

cudaError_t widen_floats(const Launch& launch, DType type, const std::byte* stored,
                         std::int64_t count, float* target) {
  if (count == 0) return cudaSuccess;
  return start(launch, widen_kernel, dim3(launch.n_sms), dim3(256), 0,
               reinterpret_cast<const std::uint16_t*>(stored), type == DType::bf16, count, target);
}

}  // namespace ebb::cuda
