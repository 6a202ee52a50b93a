#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/embed.h"

namespace ebb::cuda {
namespace {

template <class C>
__global__ void embed_kernel(EmbedArgs a, Planes planes, const std::uint64_t* grid) {
  wait_for_inputs();
  const int row = blockIdx.x;
  if (row >= *a.step.n_rows) return;
  const std::int64_t d = a.table.n_in;
  float* const out = a.streams + static_cast<std::int64_t>(row) * a.n_streams * d;
  const std::int32_t token = a.step.token[row];
  const bool known = token >= 0 && token < a.table.n_out;
  const int n_chunks = static_cast<int>(d / (C::kQuads * 4));
  for (int chunk = blockIdx.y * blockDim.x + threadIdx.x; chunk < n_chunks;
       chunk += gridDim.y * blockDim.x) {
    typename C::Raw raw{};
    if (known) C::load(planes, static_cast<std::int64_t>(token) * n_chunks + chunk, raw);
#pragma unroll
    for (int j = 0; j < C::kQuads; ++j) {
      float4 v = C::quad(raw, j, grid);
      if constexpr (C::kScaled) {
        const float scale = C::scale(raw, j / C::kGroupQuads);
        v = make_float4(scale * v.x, scale * v.y, scale * v.z, scale * v.w);
      }
      if constexpr (C::kMinus) {
        const float minus = C::minus(raw, j / C::kGroupQuads);
        v = make_float4(v.x - minus, v.y - minus, v.z - minus, v.w - minus);
      }
      if (!known) v.x = v.y = v.z = v.w = __int_as_float(0x7fc00000);
      for (int s = 0; s < a.n_streams; ++s) {
        *reinterpret_cast<float4*>(out + s * d + C::position(chunk, j)) = v;
      }
    }
  }
}

}  // namespace

cudaError_t embed(const Launch& launch, const EmbedArgs& args) {
  cudaError_t error = cudaErrorInvalidValue;
  with_codec(args.table.type, [&]<class C>(C) {
    error = start(launch, embed_kernel<C>, dim3(static_cast<unsigned>(args.step.max_rows), 4),
                  dim3(128), 0, args, planes_of(args.table), launch.grid_iq2);
  });
  return error;
}

}  // namespace ebb::cuda
