#include "kernels/cuda/tensor_launch.cuh"

namespace ebb::cuda {

cudaError_t tensor_products(const Launch& launch, const TensorProduct& f16,
                            const TensorProduct& q8_0) {
  using First = TensorCodec<DType::f16>;
  using Second = TensorCodec<DType::q8_0>;
  const auto kernel = two_streams_kernel<First, Second>;
  const int threads = Stream<First, 1, 1, true>::kThreads;
  const auto resident = resident_blocks(launch, kernel);
  const auto bytes_of = [](const TensorProduct& p, DType type) {
    double bytes = 0;
    for (std::int32_t i = 0; i < p.n_parts; ++i) {
      bytes += static_cast<double>(p.parts[i].n_out) * static_cast<double>(row_bytes(type, p.n_in));
    }
    return bytes;
  };
  // Blocks are shared out by the bytes that have to be read.
  const double a = bytes_of(f16, DType::f16), b = bytes_of(q8_0, DType::q8_0);
  const StreamPlan one = plan_stream<First, 1, 1, true, false>(
      f16, threads / kWarp, 1, f16.columns.per_vector, a / (a + b), resident);
  const StreamPlan two = plan_stream<Second, 1, 1, true, false>(
      q8_0, threads / kWarp, 1, q8_0.columns.per_vector, b / (a + b), resident);
  if (one.bytes == 0 || two.bytes == 0) return cudaErrorInvalidConfiguration;
  return start(launch, kernel, dim3(static_cast<unsigned>(one.shape.n_blocks + two.shape.n_blocks)),
               dim3(static_cast<unsigned>(threads)), std::max(one.bytes, two.bytes), one.p,
               one.shape, two.p, two.shape);
}

}  // namespace ebb::cuda
