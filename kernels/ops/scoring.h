#pragma once

#include <cstdint>

#include "core/api/session.h"
#include "kernels/ops/attention.h"

namespace ebb {

// Ops and views by which scorers read what attention holds, and by which a recorded choice
// replaces one.

/// y[step.keep[r]] = x[r] for the rows whose step.keep[r] is not negative.
struct KeepRowsArgs {
  StepView step;
  const float* x = nullptr;  ///< [rows, d]
  std::int64_t d = 0;
  float* y = nullptr;  ///< [max_kept, d] out
};

/// y[r] = table[step.pos[r] % n], rows of d 32-bit values.
struct PickRowsArgs {
  StepView step;
  const std::int32_t* table = nullptr;  ///< [n, d]
  std::int64_t n = 0;
  std::int64_t d = 0;
  std::int32_t* y = nullptr;  ///< [rows, d] out
};

/// logits[r][c] = sum_h weight[r][h] * weight_scale * max(0, q[r][h] . key[c]) for the chunks c
/// visible to row r; the others are not written.   Source: retriever reference 2.1 items 7, 8
struct ScoreArgs {
  StepView step;                  ///< n_rows, pos, seq
  const float* q = nullptr;       ///< [rows, n_heads, d]
  const float* weight = nullptr;  ///< [rows, n_heads], may be negative
  float weight_scale = 1;
  RowStore keys;
  std::int32_t n_heads = 0;
  std::int32_t d = 0;
  std::int32_t ratio = 0;
  float* logits = nullptr;  ///< [rows, stride] out
  std::int64_t stride = 0;
};

/// What a scorer of one layer reads: sizes at any time, pointers (compute memory) after the
/// attention was carved.
struct ScoredLayer {
  std::int64_t d_model = 0;
  const float* hidden = nullptr;  ///< [max_kept, d_model] kept inputs of the layer's attention
  RowStore keys;                  ///< row c is the index key of chunk c
  std::int32_t d = 0;             ///< of a key
  std::int32_t n_pairs = 0;       ///< rotated pairs, at the end of a key
  std::int32_t ratio = 0;
  bool transformed = false;             ///< keys went through the Hadamard transform
  const double* frequency = nullptr;    ///< [n_pairs] of the keys' rope, radians per token
  const float* index_q = nullptr;       ///< [max_kept, n_heads, d] kept index queries; if asked for
  const float* index_weight = nullptr;  ///< [max_kept, n_heads], not yet scaled; if asked for
  std::int32_t n_heads = 0;             ///< of the model's indexer
  float weight_scale = 0;
};

}  // namespace ebb
