#pragma once

#include <cstdint>
#include <vector>

#include "core/api/compute.h"
#include "core/api/session.h"
#include "kernels/ops/ops.h"
#include "modules/deepseek4/config.h"

namespace ebb {

/// A table of angles for every row of a step, at a fixed distance from the row's own position.
struct Angles {
  const double* frequency = nullptr;  ///< [n_rot / 2] radians per token; compute memory
  std::int32_t offset = 0;            ///< tokens
  float* cos_sin = nullptr;           ///< [rows, n_rot / 2, 2] compute memory
};

/// The angles by which a step's rows and the chunks that they end are rotated: one table for each
/// kind of layer, filled at the beginning of the step.
class AngleTables {
 public:
  explicit AngleTables(const deepseek4::Config& config);

  /// For steps of up to `rows` rows.   Thread: [startup]
  void carve(Arena& arena, std::int64_t rows);
  /// Writes what the tables are computed from.   Thread: [startup]
  Status upload(Compute& compute) const;
  /// Records that they are filled.   Thread: [startup]
  Status plan(Ops& ops, const StepView& step) const;

  /// At the row's own position, in layers of `ratio`.
  const Angles& of_rows(std::int32_t ratio) const { return ratio == 0 ? window_ : query_; }
  /// At the first token of the chunk that the row ends, in layers of `ratio`: 4 or 128.
  const Angles& of_chunks(std::int32_t ratio) const { return ratio == 4 ? csa_ : hca_; }

 private:
  std::int32_t n_pairs() const { return static_cast<std::int32_t>(window_frequency_.size()); }

  const std::vector<double> window_frequency_;  // [n_rot / 2]
  const std::vector<double> chunk_frequency_;   // [n_rot / 2], of layers with chunks

  // Compute memory, carved per session.
  double* window_frequency_memory_ = nullptr;
  double* chunk_frequency_memory_ = nullptr;
  Angles window_, query_, csa_, hca_;
};

}  // namespace ebb
