#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// Workspace of hc_pre and hc_head.
std::size_t hyper_workspace(std::int32_t max_rows, std::int32_t n_streams, std::int64_t d);

/// With `post`, streams are first mixed as hc_post does; its streams are those of `args`.
cudaError_t hc_pre(const Launch& launch, const HcPreArgs& args, const HcPostArgs* post);
cudaError_t hc_post(const Launch& launch, const HcPostArgs& args);
cudaError_t hc_head(const Launch& launch, const HcHeadArgs& args);

}  // namespace ebb::cuda
