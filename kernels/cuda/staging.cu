// A warp takes a move at a time: copies the row, then sets the entry. The list and the rows it
// copies from are host memory that the host has written since the last run, so they are read past
// the caches that could hold an older state.

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/staging.h"

namespace ebb::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxBlocks = 512;  // each row comes over the bus: many have to be under way at once

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
    if (from != nullptr) copy_row(to, from, bytes, lane);
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
