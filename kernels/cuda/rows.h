#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

cudaError_t rope_table(const Launch& launch, const RopeTableArgs& args);
cudaError_t heads(const Launch& launch, const HeadsArgs& args);
/// `n_rot` here and below is that of row_format.h for the store that is written.
cudaError_t append(const Launch& launch, const AppendArgs& args, std::int32_t n_rot);
cudaError_t compress(const Launch& launch, const CompressArgs& args, std::int32_t n_rot);

}  // namespace ebb::cuda
