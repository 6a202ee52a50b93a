#include "kernels/cuda/columns.cuh"

namespace ebb::cuda {
namespace {

/// Blocks take vectors in turn.
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const float* x, int n_in, const std::int32_t* n_rows,
                 const __grid_constant__ Splits splits) {
  split_share(x, n_in, n_rows, splits, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
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
  const Splits both(splits, n_splits);
  const std::int64_t blocks = split_blocks(launch, both, max_rows);
  return start(launch, split_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSplitThreads), 0, x,
               n_in, n_rows, both);
}

}  // namespace ebb::cuda
