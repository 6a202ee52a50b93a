// A warp takes a move at a time: copies the row, then sets the entry. The list and the rows it
// copies from are host memory that the host has written since the last run, so they are read past
// the caches that could hold an older state.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/staging.h"

namespace ebb::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxBlocks = 64;

/// Whole units of T; both addresses and `bytes` are multiples of sizeof(T).
template <class T>
__device__ void copy_row(std::byte* to, const std::byte* from, int bytes, int lane) {
  const int n = bytes / static_cast<int>(sizeof(T));
  for (int i = lane; i < n; i += kWarp) {
    reinterpret_cast<T*>(to)[i] = __ldcv(reinterpret_cast<const T*>(from) + i);
  }
}

__global__ void __launch_bounds__(kThreads) move_rows_kernel(SlotMoves list) {
  wait_for_inputs();
  const int lane = threadIdx.x % kWarp;
  const int n_warps = static_cast<int>(gridDim.x * blockDim.x) / kWarp;
  const int count = min(__ldcv(list.count), list.max_moves);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp; i < count;
       i += n_warps) {
    const auto* words = reinterpret_cast<const unsigned long long*>(list.moves + i);
    auto* const entry = reinterpret_cast<std::int32_t*>(__ldcv(words));
    const auto* const from = reinterpret_cast<const std::byte*>(__ldcv(words + 1));
    auto* const to = reinterpret_cast<std::byte*>(__ldcv(words + 2));
    const unsigned long long last = __ldcv(words + 3);
    const int value = static_cast<int>(last & 0xffffffffu), bytes = static_cast<int>(last >> 32);
    if (from != nullptr) {
      const auto unit = reinterpret_cast<unsigned long long>(from) |
                        reinterpret_cast<unsigned long long>(to) |
                        static_cast<unsigned long long>(bytes);
      if (unit % 16 == 0) {
        copy_row<uint4>(to, from, bytes, lane);
      } else if (unit % 8 == 0) {
        copy_row<uint2>(to, from, bytes, lane);
      } else {
        copy_row<unsigned char>(to, from, bytes, lane);
      }
    }
    if (lane == 0) *entry = value;
  }
}

static_assert(sizeof(SlotMove) == 32 && offsetof(SlotMove, from) == 8 &&
              offsetof(SlotMove, to) == 16 && offsetof(SlotMove, value) == 24);

}  // namespace

cudaError_t move_rows(const Launch& launch, const MoveRowsArgs& args) {
  const int wanted = (args.moves.max_moves * kWarp + kThreads - 1) / kThreads;
  const int blocks = wanted < kMaxBlocks ? wanted : kMaxBlocks;
  return start(launch, move_rows_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
               args.moves);
}

}  // namespace ebb::cuda
