#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/scoring.h"

namespace ebb::cuda {

cudaError_t pick_rows(const Launch& launch, const PickRowsArgs& args);
cudaError_t keep_rows(const Launch& launch, const KeepRowsArgs& args);
/// d and n_heads as select has them.
cudaError_t score(const Launch& launch, const ScoreArgs& args, std::int32_t n_rot);

}  // namespace ebb::cuda
