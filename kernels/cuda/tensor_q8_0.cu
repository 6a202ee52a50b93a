#include "kernels/cuda/tensor_launch.cuh"

namespace ebb::cuda {

template cudaError_t launch_tensor<DType::q8_0>(const Launch&, const TensorProduct&, std::int64_t,
                                                std::int32_t);

}  // namespace ebb::cuda
