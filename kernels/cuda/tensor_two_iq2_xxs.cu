#include "kernels/cuda/tensor_launch.cuh"

namespace ebb::cuda {

template cudaError_t launch_two<DType::iq2_xxs, 1>(const Launch&, const TensorProduct&,
                                                   std::int64_t, const TensorProduct&,
                                                   std::int64_t);
template cudaError_t launch_two<DType::iq2_xxs, 2>(const Launch&, const TensorProduct&,
                                                   std::int64_t, const TensorProduct&,
                                                   std::int64_t);

}  // namespace ebb::cuda
