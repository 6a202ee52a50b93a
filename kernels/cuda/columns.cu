#include <algorithm>

#include "kernels/cuda/columns.cuh"

namespace ebb::cuda {
namespace {

constexpr int kSplitThreads = 256;

struct Splits {
  Split of[2];
};

/// Blocks take vectors in turn, those of the second split after those of the first.
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const float* x, int n_in, const std::int32_t* n_rows,
                 const __grid_constant__ Splits splits) {
  __shared__ float memory[2][32];
  const std::int64_t rows = of_step(n_rows);
  const std::int64_t n_first = rows * splits.of[0].vectors.n;
  const std::int64_t n = n_first + rows * splits.of[1].vectors.n;
  wait_for_inputs();
  int turn = 0;
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const Split& split = splits.of[i < n_first ? 0 : 1];
    const std::int64_t at = i < n_first ? i : i - n_first;
    const RowVectors& vectors = split.vectors;
    const Columns& columns = split.columns;
    const std::int64_t v = at / vectors.n * vectors.stride + vectors.first + at % vectors.n;
    const std::int64_t column = v * columns.per_vector;
    // Two pieces of memory in turn: a thread may still read the one of the vector before.
    const float inverse = split_vector(
        x + v * n_in, n_in, split.order, columns.per_vector, columns.values + column * n_in,
        columns.sums == nullptr ? nullptr : columns.sums + column * (n_in / kSumValues),
        memory[turn]);
    if (threadIdx.x == 0) columns.inverse[v] = inverse;
    turn ^= 1;
  }
}

std::size_t rounded(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
}

}  // namespace

std::size_t columns_bytes(std::int64_t n, std::int64_t n_in, Precision precision) {
  const std::int64_t values = n * columns_per_vector(precision) * n_in;
  return rounded(values * 2) + rounded(values / kSumValues * 2) + rounded(n * 4);
}

Columns columns_at(std::byte* memory, std::int64_t n, std::int64_t n_in, Precision precision) {
  const std::int64_t values = n * columns_per_vector(precision) * n_in;
  Columns columns;
  columns.per_vector = columns_per_vector(precision);
  columns.values = reinterpret_cast<__half*>(memory);
  memory += rounded(values * 2);
  columns.sums = reinterpret_cast<__half*>(memory);
  memory += rounded(values / kSumValues * 2);
  columns.inverse = reinterpret_cast<float*>(memory);
  return columns;
}

cudaError_t split_columns(const Launch& launch, const float* x, std::int32_t n_in,
                          const std::int32_t* n_rows, std::int64_t max_rows, const Split* splits,
                          int n_splits) {
  Splits both;
  both.of[0] = splits[0];
  both.of[1].vectors.n = 0;
  if (n_splits == 2) both.of[1] = splits[1];
  const std::int64_t vectors = max_rows * (both.of[0].vectors.n + both.of[1].vectors.n);
  const std::int64_t blocks = std::min(vectors, std::int64_t{launch.n_sms} * 8);
  return start(launch, split_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSplitThreads), 0, x,
               n_in, n_rows, both);
}

}  // namespace ebb::cuda
