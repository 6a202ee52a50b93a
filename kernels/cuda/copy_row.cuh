#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace ebb::cuda {

/// Whole units of T by one warp; both addresses and `bytes` are multiples of sizeof(T). Plain
/// loads: those that go past the caches (__ldcv) reach host memory in small pieces, at a fraction
/// of the rate. A row is written before the kernel that copies it, so no cache holds an older one.
template <class T>
__device__ __forceinline__ void copy_units(std::byte* to, const std::byte* from, int bytes,
                                           int lane) {
  const int n = bytes / static_cast<int>(sizeof(T));
  for (int i = lane; i < n; i += kWarp) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
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
