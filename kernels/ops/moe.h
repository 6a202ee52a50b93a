#pragma once

#include <cstdint>

#include "kernels/ops/dense.h"

namespace ebb {

/// Chooses the experts of every row and their weights.
///   p_e = sqrt(softplus(logit_e)); chosen: the n_used largest p_e + bias_e (ties to the lower id),
///   or table[token]; weight = p_e / max(sum of chosen p, 2^-14) * scale.
/// Source: model reference 3.8
struct RouteArgs {
  StepView step;
  const float* logits = nullptr;        ///< [rows, n_experts]
  const float* bias = nullptr;          ///< [n_experts], or nullptr for a hash layer
  const std::int32_t* table = nullptr;  ///< [vocab, n_used], or nullptr for a scored layer
  std::int32_t n_experts = 0;
  std::int32_t n_used = 0;
  bool normalise = true;  ///< false: weight = p_e * scale
  float scale = 1;
  std::int32_t* ids = nullptr;  ///< [rows, n_used] out, in order of choice
  float* weights = nullptr;     ///< [rows, n_used] out
};

/// One gated feed-forward: y = down * (min(g, clamp) * sigmoid(g) * clamp(u, -clamp, clamp)),
/// g = gate * x, u = up * x. The gate has no lower clamp.
struct ExpertWeights {
  Weight gate;  ///< [f, d] per expert
  Weight up;    ///< [f, d]
  Weight down;  ///< [d, f]
  float clamp = 0;
};

/// y[r] = sum over used experts of weight * expert(x[r]), in the order of ids, plus shared(x[r]).
/// The order of summation is fixed, so grouping rows by expert does not change a bit.
/// Source: model reference 3.8
struct ExpertsArgs {
  StepView step;
  const float* x = nullptr;           ///< [rows, d]
  const std::int32_t* ids = nullptr;  ///< [rows, n_used]
  const float* weights = nullptr;     ///< [rows, n_used]
  ExpertWeights routed;               ///< n_mats = n_experts
  ExpertWeights shared;               ///< n_mats = 1
  std::int32_t n_used = 0;
  float* hidden = nullptr;   ///< [rows, n_used + 1, f] scratch
  float* partial = nullptr;  ///< [rows, n_used + 1, d] scratch
  float* y = nullptr;        ///< [rows, d] out
};

}  // namespace ebb
