#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace ebb::cuda {

/// Workspace of hc_pre and hc_head.
std::size_t hyper_workspace(std::int32_t max_rows, std::int32_t n_streams, std::int64_t d);

/// With `post`, streams are first mixed as hc_post does; its streams are those of `args`.
cudaError_t hc_pre(const Launch& launch, const HcPreArgs& args, const HcPostArgs* post);
cudaError_t hc_post(const Launch& launch, const HcPostArgs& args);
cudaError_t hc_head(const Launch& launch, const HcHeadArgs& args);

/// True if clusters of blocks can do hc_pre of this shape.
bool hc_fits_clusters(const HcPreArgs& args);
/// hc_pre by a cluster of blocks to a row. With `experts`, post->o is taken to be the sum that
/// those would write to their y, which stays unwritten.
/// Only on devices of compute capability 9 and later, and if hc_fits_clusters.
cudaError_t hc_pre_clusters(const Launch& launch, const HcPreArgs& args, const HcPostArgs* post,
                            const ExpertsArgs* experts);

}  // namespace ebb::cuda
