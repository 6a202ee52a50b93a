// A block makes one vector: a head's query, a token's row, a chunk's row.

#include "kernels/compress.h"
#include "kernels/cuda/row_block.cuh"
#include "kernels/cuda/rows.h"

namespace ebb::cuda {
namespace {

constexpr int kRowThreads = 128;
constexpr int kCompressThreads = 256;

__global__ void rope_table_kernel(RopeTableArgs a) {
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const std::int64_t position = static_cast<std::int64_t>(a.step.pos[row]) + a.offset;
  if (position < 0) return;
  float* const out = a.cos_sin + static_cast<std::int64_t>(row) * a.n_pairs * 2;
  for (int i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
    rope_entry(position, a.frequency[i], out + 2 * i);
  }
}

__global__ void __launch_bounds__(kRowThreads) heads_kernel(HeadsArgs a) {
  extern __shared__ float x[];
  __shared__ float memory[kWarp];
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  float* const out = a.x + (row * a.n_heads + blockIdx.x) * a.d;
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = out[i];
  __syncthreads();
  if (a.normalise) normalise_block(x, a.d, nullptr, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + row * a.n_pairs * 2, a.n_pairs);
  round_block(x, a.d, a.n_pairs, a.rounding);
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) out[i] = x[i];
}

__global__ void __launch_bounds__(kRowThreads) append_kernel(AppendArgs a, int n_rot) {
  extern __shared__ float x[];
  __shared__ float memory[kWarp];
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = a.kv[row * a.d + i];
  __syncthreads();
  normalise_block(x, a.d, a.norm_weight, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + row * a.n_pairs * 2, a.n_pairs);
  round_block(x, a.d, a.n_pairs, a.rounding);
  encode_block(a.ring.format, a.d, n_rot, x,
               row_at(a.ring, a.step.seq[row], ring_index(a.step.pos[row], a.ring.n_rows)));
}

/// The row of the chunk that ends in `row`.
__device__ void emit_chunk(const CompressArgs& a, int n_rot, int row, float* x, float* memory) {
  for (int i = threadIdx.x; i < a.d; i += blockDim.x) x[i] = compress_pool(a, row, i);
  __syncthreads();
  normalise_block(x, a.d, a.norm_weight, a.eps, memory);
  rope_block(x, a.d, a.cos_sin + static_cast<std::int64_t>(row) * a.n_pairs * 2, a.n_pairs);
  round_block(x, a.d, a.n_pairs, a.rounding);
  encode_block(a.rows.format, a.d, n_rot, x,
               row_at(a.rows, a.step.seq[row], a.step.pos[row] / a.ratio));
}

__device__ void keep_state(const CompressArgs& a, std::int64_t row) {
  const std::int64_t width = compress_width(a);
  const int state_rows = compress_state_rows(a.ratio, a.overlap);
  const std::int32_t pos = a.step.pos[row];
  const std::int64_t at =
      (static_cast<std::int64_t>(a.step.seq[row]) * state_rows + pos % state_rows) * width;
  const float* const ape = a.ape + pos % a.ratio * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    a.state_kv[at + i] = a.kv[row * width + i];
    a.state_gate[at + i] = a.gate[row * width + i] + ape[i];
  }
}

/// Emission reads the state and the batch; only the next kernel overwrites the state, so that an
/// emitting row never meets state of its own step.
__global__ void __launch_bounds__(kCompressThreads) compress_kernel(CompressArgs a, int n_rot) {
  extern __shared__ float x[];
  __shared__ float memory[kWarp];
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows || !ends_chunk(a.step.pos[row], a.ratio)) return;
  emit_chunk(a, n_rot, row, x, memory);
}

__global__ void __launch_bounds__(kCompressThreads) compress_state_kernel(CompressArgs a) {
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows || !compress_keeps(a, row)) return;
  keep_state(a, row);
}

/// Both for a step of one row: the block is alone, so a barrier stands for the kernel's end.
__global__ void __launch_bounds__(kCompressThreads) compress_one_kernel(CompressArgs a, int n_rot) {
  extern __shared__ float x[];
  __shared__ float memory[kWarp];
  wait_for_inputs();
  if (*a.step.n_rows < 1) return;
  if (ends_chunk(a.step.pos[0], a.ratio)) emit_chunk(a, n_rot, 0, x, memory);
  __syncthreads();
  keep_state(a, 0);
}

}  // namespace

cudaError_t rope_table(const Launch& launch, const RopeTableArgs& args) {
  return start(launch, rope_table_kernel, dim3(static_cast<unsigned>(args.step.max_rows)), dim3(32),
               0, args);
}

cudaError_t heads(const Launch& launch, const HeadsArgs& args) {
  const std::size_t bytes = static_cast<std::size_t>(args.d) * sizeof(float);
  if (const cudaError_t error = allow_shared(heads_kernel, bytes)) return error;
  return start(launch, heads_kernel,
               dim3(static_cast<unsigned>(args.n_heads), static_cast<unsigned>(args.step.max_rows)),
               dim3(kRowThreads), bytes, args);
}

cudaError_t append(const Launch& launch, const AppendArgs& args, std::int32_t n_rot) {
  const std::size_t bytes = static_cast<std::size_t>(args.d) * sizeof(float);
  if (const cudaError_t error = allow_shared(append_kernel, bytes)) return error;
  return start(launch, append_kernel, dim3(static_cast<unsigned>(args.step.max_rows)),
               dim3(kRowThreads), bytes, args, n_rot);
}

cudaError_t compress(const Launch& launch, const CompressArgs& args, std::int32_t n_rot) {
  const std::size_t bytes = static_cast<std::size_t>(args.d) * sizeof(float);
  const dim3 rows(static_cast<unsigned>(args.step.max_rows)), threads(kCompressThreads);
  if (args.step.max_rows == 1) {
    if (const cudaError_t error = allow_shared(compress_one_kernel, bytes)) return error;
    return start(launch, compress_one_kernel, rows, threads, bytes, args, n_rot);
  }
  if (const cudaError_t error = allow_shared(compress_kernel, bytes)) return error;
  const cudaError_t error = start(launch, compress_kernel, rows, threads, bytes, args, n_rot);
  if (error != cudaSuccess) return error;
  return start(launch, compress_state_kernel, rows, threads, 0, args);
}

}  // namespace ebb::cuda
