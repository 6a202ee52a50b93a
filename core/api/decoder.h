#pragma once

#include <cstdint>

#include "core/api/attention.h"

namespace ebb {

struct ModelShape {
  std::int32_t vocab_size = 0;
  std::int32_t n_layers = 0;
  std::int64_t context_length = 0;  ///< tokens the model was made for
};

/// Where a step's results are; compute memory.
struct StepResults {
  const float* logits = nullptr;         ///< [out rows, vocab_size]
  const std::int32_t* argmax = nullptr;  ///< [out rows]
};

/// The layer recipe of a model: embedding, mixing, norms, projections, experts, head. Calls the
/// attention module for what lies between query and output projection.
class Decoder : public Module {
 public:
  static constexpr const char* kKind = "decoder";

  virtual ModelShape shape() const noexcept = 0;
  /// Imports weights, the attention's too.   Thread: [startup]
  virtual Status load() noexcept = 0;
  /// Takes buffers for `shape` from the arena, the attention's too.   Thread: [startup]
  virtual void carve(Arena& arena, const SessionShape& shape) noexcept = 0;
  /// Records one whole step: rows in `step` to logits and argmax.   Thread: [startup]
  virtual Status plan(Ops& ops, const StepView& step) noexcept = 0;
  virtual StepResults results() const noexcept = 0;
  /// Bytes of stored weights that a decode step of `n_rows` rows reads: exact for one row; for
  /// more, an expectation, that of rows which choose their experts evenly and independently.
  virtual double weight_bytes(std::int64_t n_rows) const noexcept = 0;
};

}  // namespace ebb
