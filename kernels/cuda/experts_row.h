#pragma once

#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/moe.h"

namespace ebb::cuda {

/// Whether experts_row can do the op on a device with tensor units whose blocks may have so much
/// shared memory: one row, weights of IQ2_XXS, Q2_K and Q8_0.
bool experts_row_suits(const ExpertsArgs& args, std::size_t largest_shared);

/// The op for a step of one row. The bits are those of the other ways. `x_settled`: in front
/// of the op is the route, and x was there before the kernel in front of that began; so it may be
/// read before either has ended.
cudaError_t experts_row(const Launch& launch, const ExpertsArgs& args, Precision precision,
                        bool x_settled);

}  // namespace ebb::cuda
