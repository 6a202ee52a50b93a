#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/api/compute.h"
#include "core/api/result.h"
#include "core/api/session.h"

namespace ebb {

/// Selections of a run, to be used in place of the indexer's in decode steps: random weights choose
/// at random, and what is measured with them is the worst case. What is generated means nothing
/// then. `ebb replay TRACE --selections FILE` makes such files.
///
/// File, little-endian: magic "EBBSELS1", u32 n_layers, u32 n_steps, u32 top_k, then i32
/// ids[n_layers][n_steps][top_k] (ascending; behind the count: 0), i32 count[n_layers][n_steps].
/// CSA layer i of a model uses layer i % n_layers, a row at position p step p % n_steps.
class RecordedSelections {
 public:
  RecordedSelections() = default;  ///< none
  /// Errors: not_found; invalid_argument for what is no such file; incompatible for another top_k.
  static Result<RecordedSelections> read(const std::string& path, std::int32_t top_k);

  bool empty() const { return n_layers_ == 0; }
  void carve(Arena& arena);
  /// Errors: a chunk beyond n_chunks; device.   Thread: [startup], after carve
  Status upload(Compute& compute, std::int64_t n_chunks) const;
  /// Records: overwrites what `layer` (among the CSA layers) has selected, ids [rows, top_k] and
  /// count [rows] in compute memory.   Thread: [startup]
  Status plan(Ops& ops, const StepView& step, std::int32_t layer, std::int32_t* ids,
              std::int32_t* count) const;

 private:
  std::string shown_path_;
  std::int32_t n_layers_ = 0, n_steps_ = 0, top_k_ = 0;
  std::vector<std::int32_t> values_;  // of the file, behind the header
  std::int32_t* memory_ = nullptr;    // the same in compute memory
};

}  // namespace ebb
