#pragma once

#include <cstdint>

#include "core/api/compute.h"
#include "core/api/session.h"
#include "core/api/staging.h"

namespace ebb {

/// Where the layers of a session put what they select, in compute memory: scratch that all share,
/// or, in decode steps of staged layers, a log that the host gets to read: layer by layer where it
/// decides within the step (demand), at once behind the last layer where it learns from it later
/// (zero_copy).
class Selections {
 public:
  /// Of steps of up to `rows` rows. `staging` is borrowed; nullptr: no layer is staged.
  /// Thread: [startup]
  void carve(Arena& arena, std::int64_t rows, std::int32_t top_k, Staging* staging,
             std::int32_t n_staged);
  /// Where a layer's selections of a step stand: ids [rows, top_k], count [rows]. `staged`: the
  /// layer's number among the staged ones, or -1.
  SelectionLog of(std::int32_t staged, const StepView& step) const;
  /// Records that the host gets them, if they are logged.   Thread: [startup]
  Status plan_log(Ops& ops, const StepView& step, std::int32_t staged) const;

 private:
  /// int32 values of one layer's log: ids, then counts.
  std::int64_t log_values() const {
    return std::int64_t{staging_->max_log_rows()} * (std::int64_t{top_k_} + 1);
  }
  bool is_logged(std::int32_t staged, const StepView& step) const {
    return staged >= 0 && step.max_rows <= staging_->max_log_rows();
  }

  std::int32_t top_k_ = 0;
  Staging* staging_ = nullptr;
  std::int32_t n_staged_ = 0;
  std::int32_t* ids_ = nullptr;    // [rows, top_k]
  std::int32_t* count_ = nullptr;  // [rows]
  std::int32_t* log_ = nullptr;    // [n_staged, log_values()]: ids [log rows, top_k], counts
};

}  // namespace ebb
