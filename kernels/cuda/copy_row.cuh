#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace ebb::cuda {

/// Whole units of T by one warp, read past the caches that could hold an older state of host
/// memory; both addresses and `bytes` are multiples of sizeof(T).
template <class T>
__device__ __forceinline__ void copy_units(std::byte* to, const std::byte* from, int bytes,
                                           int lane) {
  const int n = bytes / static_cast<int>(sizeof(T));
  for (int i = lane; i < n; i += kWarp) {
    reinterpret_cast<T*>(to)[i] = __ldcv(reinterpret_cast<const T*>(from) + i);
  }
}

/// Copies a stored row by one warp, in the largest units that fit.
__device__ __forceinline__ void copy_row(std::byte* to, const std::byte* from, int bytes,
                                         int lane) {
  const auto unit = reinterpret_cast<unsigned long long>(from) |
                    reinterpret_cast<unsigned long long>(to) |
                    static_cast<unsigned long long>(bytes);
  if (unit % 16 == 0) {
    copy_units<uint4>(to, from, bytes, lane);
  } else if (unit % 8 == 0) {
    copy_units<uint2>(to, from, bytes, lane);
  } else {
    copy_units<unsigned char>(to, from, bytes, lane);
  }
}

}  // namespace ebb::cuda
