#include "kernels/cuda/experts_plain.cuh"
#include "kernels/cuda/tensor_dot.cuh"

namespace ebb::cuda {
namespace {

/// The codebook of IQ2_XXS as eight 4-bit numbers a codeword: 0, 1, 2 for magnitudes 8, 25, 43.
__device__ __forceinline__ void stage_nibbles(const std::uint64_t* grid, std::uint32_t* shared) {
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    const std::uint64_t codeword = grid[i];
    std::uint32_t nibbles = 0;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const std::uint32_t magnitude = static_cast<std::uint32_t>(codeword >> (8 * v)) & 255u;
      nibbles |= (magnitude == 8 ? 0u : magnitude == 25 ? 1u : 2u) << (4 * v);
    }
    shared[i] = nibbles;
  }
}

/// down (kMats 1) or gate and up (kMats 2) on the matrix units.
template <DType kType, int kRows, int kMats>
__device__ void tensor_block(const Product& p, int piece, int tile) {
  using C = TensorCodec<kType>;
  extern __shared__ float4 staged[];
  auto* const tensor_staged = reinterpret_cast<uint2*>(staged);
  __shared__ float memory[kTensorThreads * kMats * kTensorSets<kRows> * 4];
  __shared__ float inverse[kRows];
  __shared__ std::uint32_t grid[C::kGrid ? 256 : 1];
  const PieceRows<kRows> rows(p, piece);
  if (rows.expert < 0) return;
  if constexpr (C::kGrid) stage_nibbles(p.grid, grid);
  tensor_stage<kType, kRows>(rows.in, p.n_in, tensor_staged, inverse, memory);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first = tile * kTensorRows + warp / kTensorSlices * 16;
  const std::int64_t matrix = static_cast<std::int64_t>(rows.expert) * p.n_out;
  Planes planes[kMats];
  planes[0] = p.a;
  if constexpr (kMats == 2) planes[1] = p.b;
  float sum[kMats][kTensorSets<kRows>][4];
  tensor_sums<kType, kRows, kMats>(planes, matrix + min(first + lane / 4, p.n_out - 1),
                                   matrix + min(first + lane / 4 + 8, p.n_out - 1), p.n_in / 256,
                                   warp % kTensorSlices, tensor_staged, grid, sum);
  __syncthreads();
  tensor_finish<kRows, kMats>(sum, memory, inverse,
                              [&](int row, int r, const float(&values)[kMats]) {
#pragma unroll
                                for (int i = 0; i < kRows; ++i) {
                                  // A constant index keeps the pointers in registers.
                                  if (i != r || rows.in[i] == nullptr || first + row >= p.n_out) {
                                    continue;
                                  }
                                  if constexpr (kMats == 2) {
                                    rows.out[i][first + row] = gated(values[0], values[1], p.clamp);
                                  } else {
                                    rows.out[i][first + row] = values[0];
                                  }
                                }
                              });
}

template <DType kType, int kRows, int kMats>
__global__ void __launch_bounds__(kTensorThreads) tensor_kernel(Product p) {
  wait_for_inputs();
  tensor_block<kType, kRows, kMats>(p, blockIdx.y, blockIdx.x);
}

template <DType kType, int kRows, int kMats>
cudaError_t launch_tensor(const Launch& launch, const Product& p, std::int64_t pieces) {
  const std::size_t bytes = tensor_staged_bytes<kRows>(p.n_in);
  const auto kernel = tensor_kernel<kType, kRows, kMats>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  return start(launch, kernel,
               dim3(static_cast<unsigned>((p.n_out + kTensorRows - 1) / kTensorRows),
                    static_cast<unsigned>(pieces)),
               dim3(kTensorThreads), bytes, p);
}

template <DType kType>
cudaError_t launch_any(const Launch& launch, const Product& p, const PieceGrid& grid,
                       bool gate_up) {
  if (grid.grouped) {
    return gate_up ? launch_tensor<kType, kGroupRows, 2>(launch, p, grid.n)
                   : launch_tensor<kType, kGroupRows, 1>(launch, p, grid.n);
  }
  return gate_up ? launch_tensor<kType, 1, 2>(launch, p, grid.n)
                 : launch_tensor<kType, 1, 1>(launch, p, grid.n);
}

// The shared expert's tiles come first: they are the longest, and their weights are known before
// the choice of experts is.
using SharedCodec = Codec<DType::q8_0>;
constexpr int kSharedWeights = 2;

static_assert(kTensorThreads == kThreads);

template <DType kType, int kMats>
__global__ void __launch_bounds__(kThreads)
    both_kernel(Product routed, Product shared, int shared_tiles, int n_shared) {
  const int block = blockIdx.x;
  if (block < n_shared) {
    const int rows = kWarps / shared.n_slices * (kMats == 2 ? 1 : kSharedWeights);
    const std::int64_t row_bytes = shared.n_in;
    const std::int64_t n = min(rows, shared.n_out - block % shared_tiles * rows) * row_bytes;
    const std::int64_t first = block % shared_tiles * rows * row_bytes;
    for (std::int64_t i = threadIdx.x * 128; i < n; i += kThreads * 128) {
      prefetch(shared.a.plane[0] + first + i);
      if constexpr (kMats == 2) prefetch(shared.b.plane[0] + first + i);
    }
  }
  wait_for_inputs();
  if (block < n_shared) {
    const int piece = block / shared_tiles, tile = block % shared_tiles;
    if constexpr (kMats == 2) {
      gate_up_block<SharedCodec, 1, 1>(shared, piece, tile);
    } else {
      down_block<SharedCodec, 1, kSharedWeights>(shared, piece, tile);
    }
    return;
  }
  const int tiles = (routed.n_out + kTensorRows - 1) / kTensorRows;
  tensor_block<kType, 1, kMats>(routed, (block - n_shared) / tiles, (block - n_shared) % tiles);
}

template <DType kType, int kMats>
cudaError_t launch_both(const Launch& launch, const Product& routed, std::int64_t routed_pieces,
                        const Product& shared, std::int64_t shared_pieces) {
  const std::size_t bytes =
      std::max(tensor_staged_bytes<1>(routed.n_in), staged_bytes<SharedCodec, 1>(shared.n_in));
  const auto kernel = both_kernel<kType, kMats>;
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  const int rows = kWarps / shared.n_slices * (kMats == 2 ? 1 : kSharedWeights);
  const int shared_tiles = (shared.n_out + rows - 1) / rows;
  const int n_shared = static_cast<int>(shared_tiles * shared_pieces);
  const std::int64_t tiles = (routed.n_out + kTensorRows - 1) / kTensorRows;
  return start(launch, kernel, dim3(static_cast<unsigned>(n_shared + tiles * routed_pieces)),
               dim3(kThreads), bytes, routed, shared, shared_tiles, n_shared);
}

}  // namespace

cudaError_t tensor_product(const Launch& launch, DType type, const Product& p,
                           const PieceGrid& grid, bool gate_up) {
  return type == DType::iq2_xxs ? launch_any<DType::iq2_xxs>(launch, p, grid, gate_up)
                                : launch_any<DType::q2_k>(launch, p, grid, gate_up);
}

cudaError_t both_products(const Launch& launch, DType routed_type, const Product& routed,
                          std::int64_t routed_pieces, const Product& shared,
                          std::int64_t shared_pieces, bool gate_up) {
  const auto run = [&]<DType kType>() {
    return gate_up ? launch_both<kType, 2>(launch, routed, routed_pieces, shared, shared_pieces)
                   : launch_both<kType, 1>(launch, routed, routed_pieces, shared, shared_pieces);
  };
  return routed_type == DType::iq2_xxs ? run.template operator()<DType::iq2_xxs>()
                                       : run.template operator()<DType::q2_k>();
}

}  // namespace ebb::cuda
