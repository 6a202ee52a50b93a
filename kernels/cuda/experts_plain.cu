#include "kernels/cuda/experts_plain.cuh"

namespace ebb::cuda {
namespace {

constexpr int kDownWeights = 2;
constexpr int kPairs = 1;

/// Rows of a piece of sorted entries; of others there are never more than kRows.
__device__ int rows_of_piece(const Product& p, int piece) {
  if (p.ids == nullptr || p.groups.entries == nullptr) return 1;
  return piece < *p.groups.n_pieces ? p.groups.pieces[piece].n : 0;
}

template <class C, int kRows>
__global__ void __launch_bounds__(kThreads) down_kernel(Product p) {
  wait_for_inputs();
  const int n = rows_of_piece(p, blockIdx.y);
  for (int skip = 0; skip < n; skip += kRows) {
    if (skip > 0) __syncthreads();
    down_block<C, kRows, kDownWeights>(p, blockIdx.y, skip, blockIdx.x);
  }
}

template <class C, int kRows>
__global__ void __launch_bounds__(kThreads) gate_up_kernel(Product p) {
  wait_for_inputs();
  const int n = rows_of_piece(p, blockIdx.y);
  for (int skip = 0; skip < n; skip += kRows) {
    if (skip > 0) __syncthreads();
    gate_up_block<C, kRows, kPairs>(p, blockIdx.y, skip, blockIdx.x);
  }
}

template <class C, int kRows>
cudaError_t launch_product(const Launch& launch, const Product& p, std::int64_t pieces,
                           bool gate_up) {
  const std::size_t bytes = staged_bytes<C, kRows>(p.n_in);
  const auto kernel = gate_up ? gate_up_kernel<C, kRows> : down_kernel<C, kRows>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  const int tile = kWarps / p.n_slices * (gate_up ? kPairs : kDownWeights);
  return start(
      launch, kernel,
      dim3(static_cast<unsigned>((p.n_out + tile - 1) / tile), static_cast<unsigned>(pieces)),
      dim3(kThreads), bytes, p);
}

}  // namespace

cudaError_t plain_product(const Launch& launch, DType type, const Product& p, const PieceGrid& grid,
                          bool gate_up) {
  cudaError_t error = cudaErrorInvalidValue;
  with_codec(type, [&]<class C>(C) {
    error = grid.grouped ? launch_product<C, kGroupRows>(launch, p, grid.n, gate_up)
                         : launch_product<C, 1>(launch, p, grid.n, gate_up);
  });
  return error;
}

}  // namespace ebb::cuda
