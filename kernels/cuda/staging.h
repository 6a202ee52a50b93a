#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/staging.h"

namespace ebb::cuda {

cudaError_t move_rows(const Launch& launch, const MoveRowsArgs& args);

}  // namespace ebb::cuda
