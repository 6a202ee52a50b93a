#include "kernels/cuda/experts_plain.cuh"
#include "kernels/cuda/tensor_dot.cuh"
#include "kernels/quant_grids.h"

namespace ebb::cuda {
namespace {

/// The tables of TensorCodec<iq2_xxs>, from the codebook.
__device__ __forceinline__ void stage_tables(const std::uint64_t* grid, std::uint32_t* shared) {
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
  for (int i = threadIdx.x; i < 128; i += blockDim.x) {
    const std::uint32_t signs = kernels::sign_byte(static_cast<std::uint32_t>(i));
    std::uint32_t nibbles = 0;
#pragma unroll
    for (int v = 0; v < 8; ++v) nibbles |= (signs >> v & 1u) << (4 * v + 2);
    shared[256 + i] = nibbles;
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
  __shared__ std::uint32_t grid[C::kGrid ? kTensorTables : 1];
  const PieceRows<kRows> rows(p, piece);
  if (rows.expert < 0) return;
  if constexpr (C::kGrid) stage_tables(p.grid, grid);
  tensor_stage<kType, kRows>(rows.in, p.n_in, tensor_staged, inverse, memory);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t matrix = static_cast<std::int64_t>(rows.expert) * p.n_out;
  Planes planes[kMats];
  planes[0] = p.a;
  if constexpr (kMats == 2) planes[1] = p.b;
  const int begin = tile * kTensorTiles * kTensorRows;
  const int end = min(begin + kTensorTiles * kTensorRows, p.n_out);
  for (int at = begin; at < end; at += kTensorRows) {
    const int first = at + warp / kTensorSlices * 16;
    float sum[kMats][kTensorSets<kRows>][4];
    tensor_sums<kType, kRows, kMats>(planes, matrix + min(first + lane / 4, p.n_out - 1),
                                     matrix + min(first + lane / 4 + 8, p.n_out - 1), p.n_in / 256,
                                     warp % kTensorSlices, tensor_staged, grid, sum);
    __syncthreads();  // `memory` has been read
    tensor_finish<kRows, kMats>(
        sum, memory, inverse, [&](int row, int r, const float(&values)[kMats]) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            // A constant index keeps the pointers in registers.
            if (i != r || rows.in[i] == nullptr || first + row >= p.n_out) continue;
            if constexpr (kMats == 2) {
              rows.out[i][first + row] = gated(values[0], values[1], p.clamp);
            } else {
              rows.out[i][first + row] = values[0];
            }
          }
        });
  }
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
               dim3(static_cast<unsigned>((p.n_out + kTensorTiles * kTensorRows - 1) /
                                          (kTensorTiles * kTensorRows)),
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

// The routed tiles come first: they take longest, and the shared expert's fill what they leave.
using SharedCodec = Codec<DType::q8_0>;
constexpr int kSharedWeights = 2;

static_assert(kTensorThreads == kThreads);

template <DType kType, int kMats>
__global__ void __launch_bounds__(kThreads)
    both_kernel(Product routed, Product shared, int tiles, int shared_tiles, int n_routed) {
  const int block =
      static_cast<int>(blockIdx.x) - n_routed;  // of the shared expert, if not below 0
  wait_for_inputs();
  if (block < 0) {
    tensor_block<kType, 1, kMats>(routed, blockIdx.x / tiles, blockIdx.x % tiles);
  } else if constexpr (kMats == 2) {
    gate_up_block<SharedCodec, 1, 1>(shared, block / shared_tiles, block % shared_tiles);
  } else {
    down_block<SharedCodec, 1, kSharedWeights>(shared, block / shared_tiles, block % shared_tiles);
  }
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
  const int rows_per_block = kTensorTiles * kTensorRows;
  const int tiles = (routed.n_out + rows_per_block - 1) / rows_per_block;
  const int n_routed = static_cast<int>(tiles * routed_pieces);
  return start(launch, kernel, dim3(static_cast<unsigned>(n_routed + shared_tiles * shared_pieces)),
               dim3(kThreads), bytes, routed, shared, tiles, shared_tiles, n_routed);
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
