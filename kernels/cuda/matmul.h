#pragma once

#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"

namespace ebb::cuda {

/// Bytes that matmul may want.
std::size_t matmul_workspace(const MatmulArgs& args, Precision precision);

/// Products of every part, one or two launches per stored type. Arguments are checked by the
/// caller: the types have a codec, widths are whole chunks. `norm`, if there is one, makes args.x
/// out of its own x first; matmul_norms holds.
cudaError_t matmul(const Launch& launch, const MatmulArgs& args, Precision precision,
                   const RmsNormArgs* norm = nullptr);

/// Whether matmul can do the norm with its own launch. The bits are those of the two ops.
bool matmul_norms(const MatmulArgs& args, const RmsNormArgs& norm);

/// Whether matmul_pair can do both: they share one row of x, the first has weights of Q8_0 and the
/// second of F16, on a device with tensor units.
bool matmul_pairs(const MatmulArgs& first, const MatmulArgs& second);

/// Both at once, with the bits of each alone. Needs no workspace.
cudaError_t matmul_pair(const Launch& launch, const MatmulArgs& first, const MatmulArgs& second,
                        Precision precision);

}  // namespace ebb::cuda
