#include <algorithm>

#include "kernels/cuda/columns.cuh"

namespace ebb::cuda {
namespace {

constexpr int kSplitThreads = 256;

/// Blocks take vectors in turn.
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const float* x, int n_in, Order order, const std::int32_t* n_rows,
                 RowVectors vectors, Columns columns) {
  __shared__ float memory[2][32];
  const std::int64_t n = static_cast<std::int64_t>(of_step(n_rows)) * vectors.n;
  wait_for_inputs();
  int turn = 0;
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const std::int64_t v = i / vectors.n * vectors.stride + vectors.first + i % vectors.n;
    const std::int64_t first = v * columns.per_vector;
    // Two pieces of memory in turn: a thread may still read the one of the vector before.
    const float inverse =
        split_vector(x + v * n_in, n_in, order, columns.per_vector, columns.values + first * n_in,
                     columns.sums == nullptr ? nullptr : columns.sums + first * (n_in / kSumValues),
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

cudaError_t split_columns(const Launch& launch, const float* x, std::int32_t n_in, Order order,
                          const std::int32_t* n_rows, std::int64_t max_rows,
                          const RowVectors& vectors, const Columns& columns) {
  const std::int64_t blocks = std::min(max_rows * vectors.n, std::int64_t{launch.n_sms} * 8);
  return start(launch, split_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSplitThreads), 0, x,
               n_in, order, n_rows, vectors, columns);
}

}  // namespace ebb::cuda
