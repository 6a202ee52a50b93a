#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/attention.h"

namespace ebb::cpu {

/// What happens to a vector between its projection and its place in a store.
struct RowFinish {
  const float* norm_weight = nullptr;
  float eps = 0;
  std::int32_t d = 0;
  std::int32_t n_pairs = 0;
  std::int32_t n_rot = 0;  ///< as in row_format.h: 0 for index keys
  Rounding rounding = Rounding::none;
  RowFormat format = RowFormat::f32;
};

/// Norms, ropes and rounds `x` into `work` [d] (which may be x), and stores it in `row`.
void finish_row(const RowFinish& finish, const float* x, const float* cos_sin, float* work,
                std::byte* row);

/// Decodes a stored row to d floats.
void decode_row_fast(RowFormat format, std::int32_t d, std::int32_t n_rot, const std::byte* row,
                     float* x);

/// Appends the write of window rows to a plan.
/// Errors: invalid_argument; incompatible for a store or rounding that does not suit the width.
Status add_append(PhaseList& list, const AppendArgs& args);

}  // namespace ebb::cpu
