// A warp takes a move at a time: copies the row, then sets the entry. The list is host memory that
// the host has written since the last run, so it is read past the caches that could hold an older
// state; each such read is a transaction on the bus, so there is one per block and one per move.

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/staging.h"

namespace ebb::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 128;

__global__ void __launch_bounds__(kThreads) move_rows_kernel(SlotMoves list) {
  __shared__ int n_moves;
  wait_for_inputs();
  if (threadIdx.x == 0) n_moves = min(__ldcv(list.count), list.max_moves);
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const int n_warps = static_cast<int>(gridDim.x * blockDim.x) / kWarp;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp; i < n_moves;
       i += n_warps) {
    constexpr int kWords = sizeof(SlotMove) / sizeof(unsigned long long);
    const auto* const words = reinterpret_cast<const unsigned long long*>(list.moves + i);
    const unsigned long long own = lane < kWords ? __ldcv(words + lane) : 0;
    const auto word = [own](int of) { return __shfl_sync(kAllLanes, own, of); };
    auto* const entry = reinterpret_cast<std::int32_t*>(word(0));
    const auto* const from = reinterpret_cast<const std::byte*>(word(1));
    auto* const to = reinterpret_cast<std::byte*>(word(2));
    const unsigned long long last = word(3);
    if (from != nullptr) copy_row(to, from, static_cast<int>(last >> 32), lane);
    if (lane == 0) *entry = static_cast<int>(last & 0xffffffffu);
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
