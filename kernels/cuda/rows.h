#pragma once

#include <array>

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxRopeTables = 4;

/// Tables of one step, in one launch.
struct RopeTables {
  std::array<RopeTableArgs, kMaxRopeTables> tables{};
  std::int32_t n = 0;
};
cudaError_t rope_tables(const Launch& launch, const RopeTables& args);

/// Ops of one step that do not depend on each other, in one launch. Each may be absent.
struct RowGroup {
  bool has_append = false;
  bool has_heads = false;
  std::int32_t n_compressions = 0;
  AppendArgs append;
  std::array<CompressArgs, 2> compress{};
  HeadsArgs heads;
  // n_rot of row_format.h for the stores that are written.
  std::int32_t append_rot = 0;
  std::array<std::int32_t, 2> compress_rot{};

  bool empty() const { return !has_append && !has_heads && n_compressions == 0; }
};
cudaError_t row_group(const Launch& launch, const RowGroup& group);

}  // namespace ebb::cuda
