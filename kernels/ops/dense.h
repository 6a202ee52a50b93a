#pragma once

#include <array>
#include <cstdint>

#include "core/api/session.h"
#include "core/api/types.h"

namespace ebb {

// Arguments of the ops on whole rows. All pointers are compute memory, borrowed for as long as the
// plan lives; activations are f32, row-major, without aliasing unless a line says "in place".
// "rows" is the count behind step.n_rows (or n_rows), at most the stated maximum.

/// streams[r][s][:] = table[token[r]][:] for every stream s.
struct EmbedArgs {
  StepView step;
  Weight table;              ///< [vocab, d]
  float* streams = nullptr;  ///< [rows, n_streams, d] out
  std::int32_t n_streams = 1;
};

/// One product that shares its input with others: y = W x, row by row.
struct MatmulPart {
  Weight weight;
  float* y = nullptr;  ///< [rows, weight.n_out] out
};

/// y_p[r] = W_p x[r] for every part p. With n_groups > 1 the products are block-diagonal: output
/// rows [g*n_out/n_groups, ...) see x[r][g*n_in .. (g+1)*n_in), g < n_groups.
/// An element's value does not depend on the other rows of the batch: bits are the same for a batch
/// of one and of many.
struct MatmulArgs {
  const std::int32_t* n_rows = nullptr;
  std::int32_t max_rows = 0;
  const float* x = nullptr;  ///< [rows, n_groups * n_in]
  std::int32_t n_groups = 1;
  bool exact = false;  ///< f32 products whatever the backend's precision (router, mixing)
  std::int32_t n_parts = 0;
  std::array<MatmulPart, 6> parts{};
};

/// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight.   Source: model reference 3.0
struct RmsNormArgs {
  const std::int32_t* n_rows = nullptr;
  std::int32_t max_rows = 0;
  const float* x = nullptr;       ///< [rows, d]
  const float* weight = nullptr;  ///< [d]
  float* y = nullptr;             ///< [rows, d] out; may be x
  std::int64_t d = 0;
  float eps = 0;
};

/// Weights of one hyper-connection: mix = fn * RMS(flatten(streams)), S streams.
struct HyperWeights {
  Weight fn;                     ///< [(2+S)*S, S*d]; the head's: [S, S*d]
  const float* base = nullptr;   ///< [(2+S)*S] or [S]
  const float* scale = nullptr;  ///< [3] or [1]
  float rms_eps = 0;
  float hc_eps = 0;
  std::int32_t sinkhorn_iterations = 0;
};

/// Takes the input of a sub-layer out of the streams and norms it.
///   x = sum_s pre[s] * streams[s];  y = RMS(x) * norm_weight;  post and comb are kept for HcPost.
/// Source: model reference 3.2
struct HcPreArgs {
  StepView step;
  const float* streams = nullptr;  ///< [rows, S, d]
  HyperWeights hyper;
  const float* norm_weight = nullptr;  ///< [d]
  float* mix = nullptr;                ///< [rows, (2+S)*S] scratch
  float* y = nullptr;                  ///< [rows, d] out
  float* post = nullptr;               ///< [rows, S] out
  float* comb = nullptr;               ///< [rows, S, S] out, [source][destination]
  std::int32_t n_streams = 0;
  std::int64_t d = 0;
};

/// streams'[k] = post[k] * o + sum_j comb[j][k] * streams[j], in place.   Source: 3.2
struct HcPostArgs {
  StepView step;
  const float* o = nullptr;     ///< [rows, d]; holds nothing of use afterwards
  const float* post = nullptr;  ///< [rows, S]
  const float* comb = nullptr;  ///< [rows, S, S]
  float* streams = nullptr;     ///< [rows, S, d] in place
  std::int32_t n_streams = 0;
  std::int64_t d = 0;
};

/// For the out rows only: y[i] = RMS(sum_s pre[s] * streams[out_row[i]][s]) * norm_weight.
/// Source: 3.2
struct HcHeadArgs {
  StepView step;
  const float* streams = nullptr;  ///< [rows, S, d]
  HyperWeights hyper;
  const float* norm_weight = nullptr;  ///< [d]
  float* mix = nullptr;                ///< [out rows, S] scratch
  float* flat = nullptr;               ///< [out rows, S*d] scratch
  float* y = nullptr;                  ///< [out rows, d] out
  std::int32_t n_streams = 0;
  std::int64_t d = 0;
};

/// ids[i] = index of the largest of logits[i]; ties to the lower id; NaN never wins, and a row of
/// nothing but NaN gives 0.
struct ArgmaxArgs {
  const std::int32_t* n_rows = nullptr;
  std::int32_t max_rows = 0;
  const float* logits = nullptr;  ///< [rows, n]
  std::int64_t n = 0;
  std::int32_t* ids = nullptr;  ///< [rows] out
};

}  // namespace ebb
