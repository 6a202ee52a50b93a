#pragma once

#include <cstdint>
#include <string>

#include "core/api/compute.h"
#include "core/api/loader.h"
#include "kernels/ops/attention.h"
#include "modules/attention_csa/angles.h"
#include "modules/attention_csa/random_state.h"
#include "modules/deepseek4/config.h"

namespace ebb {

/// What makes the chunks of one layer, or their index keys: weights, the state that goes from token
/// to token, and where the rows go. All of it is in compute memory, and none is owned.
class Compressor {
 public:
  RowStore rows;  ///< carved by whoever knows where they stand
  Weight kv;      ///< [c * d, d_model]; c: 2 for ratio 4, else 1
  Weight gate;    ///< [c * d, d_model]

  /// Imports the tensors prefix + "kv.weight" and so on.   Thread: [startup]
  Status load(Compute& compute, const Loader& loader, std::int32_t layer,
              const std::string& prefix);
  /// Takes the state of chunks of `ratio` tokens with rows of d values.   Thread: [startup]
  void carve(Arena& arena, const SessionShape& shape, std::int32_t ratio, std::int32_t d);
  /// A random state for one sequence. May throw std::bad_alloc.
  Status fill(RandomState& random, std::int32_t sequence) const;
  /// Copies the state and the rows of what n_tokens tokens leave.
  Status copy(Compute& compute, std::int32_t from, std::int32_t to, std::int64_t n_tokens) const;
  /// The op for a step, from the products of its rows with `kv` and `gate`, [rows, c * d].
  CompressArgs args(const StepView& step, const deepseek4::Config& config, const float* kv_products,
                    const float* gate_products, const Angles& angles, Rounding rounding) const;

 private:
  /// Two series and the previous chunk's tokens for ratio 4; one series for ratio 128.
  std::int64_t state_values() const { return ratio_ == 4 ? 2 * ratio_ * 2 * d_ : ratio_ * d_; }

  std::int32_t ratio_ = 0, d_ = 0;
  const float* ape_ = nullptr;   // [ratio, c * d]
  const float* norm_ = nullptr;  // [d]
  float* state_kv_ = nullptr;    // [max_open, state_values()]
  float* state_gate_ = nullptr;  // the same
};

}  // namespace ebb
