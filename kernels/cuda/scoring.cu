// What scorers read of a step, and the scores of all chunks: select without the choice.

#include "kernels/cuda/score_block.cuh"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/select.h"

namespace ebb::cuda {
namespace {

constexpr int kKeepThreads = 256;

/// A block copies a row.
__global__ void __launch_bounds__(kKeepThreads)
    keep_rows_kernel(const __grid_constant__ KeepRowsArgs a) {
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const std::int32_t to = a.step.keep[row];
  if (to < 0) return;
  const float* const x = a.x + row * a.d;
  float* const y = a.y + to * a.d;
  if (a.d % 4 == 0) {
    for (std::int64_t i = threadIdx.x; i < a.d / 4; i += kKeepThreads) {
      reinterpret_cast<float4*>(y)[i] = reinterpret_cast<const float4*>(x)[i];
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < a.d; i += kKeepThreads) y[i] = x[i];
  }
}

/// A block copies a row.
__global__ void __launch_bounds__(kKeepThreads)
    pick_rows_kernel(const __grid_constant__ PickRowsArgs a) {
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const std::int32_t* const from = a.table + a.step.pos[row] % a.n * a.d;
  for (std::int64_t i = threadIdx.x; i < a.d; i += kKeepThreads) a.y[row * a.d + i] = from[i];
}

template <int kWidth>
__global__ void __launch_bounds__(kScoreThreads, kWidth <= 128 ? 2 : 1)
    score_all_kernel(const __grid_constant__ ScoreArgs a, const __grid_constant__ RowReader reader,
                     int block_rows) {
  extern __shared__ __half memory[];
  wait_for_inputs();
  const int first = blockIdx.y * block_rows, begin = blockIdx.x * kBlockChunks;
  score_block<kWidth>(
      a, reader, memory, first, min(first + block_rows, *a.step.n_rows), begin,
      [&](int, int visible) { return visible > begin; },
      [&](int row, int chunk, float score) { a.logits[row * a.stride + chunk] = score; });
}

template <int kWidth>
cudaError_t score_all(const Launch& launch, const ScoreArgs& a, std::int32_t n_rot) {
  const std::size_t bytes = score_bytes<kWidth>(a.n_heads);
  if (const cudaError_t error = allow_shared(score_all_kernel<kWidth>, bytes)) return error;
  const int rows = a.step.max_rows, block_rows = rows > kFewRows ? kBlockRows : 1;
  return start(launch, score_all_kernel<kWidth>,
               dim3(static_cast<unsigned>((a.keys.n_rows + kBlockChunks - 1) / kBlockChunks),
                    static_cast<unsigned>((rows + block_rows - 1) / block_rows)),
               dim3(kScoreThreads), bytes, a, row_reader(a.keys, a.d, n_rot), block_rows);
}

}  // namespace

std::int32_t max_index_heads(std::int32_t d, std::uint64_t largest_shared) {
  // Heads come in sixteens.
  const std::size_t sixteen = d <= 64    ? score_bytes<64>(16)
                              : d <= 128 ? score_bytes<128>(16)
                                         : score_bytes<256>(16);
  return static_cast<std::int32_t>(largest_shared / sixteen * 16);
}

cudaError_t keep_rows(const Launch& launch, const KeepRowsArgs& args) {
  return start(launch, keep_rows_kernel, dim3(static_cast<unsigned>(args.step.max_rows)),
               dim3(kKeepThreads), 0, args);
}

cudaError_t pick_rows(const Launch& launch, const PickRowsArgs& args) {
  return start(launch, pick_rows_kernel, dim3(static_cast<unsigned>(args.step.max_rows)),
               dim3(kKeepThreads), 0, args);
}

cudaError_t score(const Launch& launch, const ScoreArgs& args, std::int32_t n_rot) {
  return args.d <= 64    ? score_all<64>(launch, args, n_rot)
         : args.d <= 128 ? score_all<128>(launch, args, n_rot)
                         : score_all<256>(launch, args, n_rot);
}

}  // namespace ebb::cuda
