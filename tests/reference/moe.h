#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/reference/hyper.h"
#include "tests/reference/indexer.h"
#include "tests/reference/linear.h"

// Mixture of experts: a router picks n_used experts per token (in the first layers a table keyed by
// the token id does), and a shared expert always runs.

namespace ebb::reference {

/// gate and up [E*F, D], down [E*D, F]: expert e owns the e-th run of rows. The shared expert has
/// the same shapes with E = 1.
struct ExpertWeights {
  Matrix gate;
  Matrix up;
  Matrix down;
};

struct MoeWeights {
  Matrix router;                    ///< [E, D]
  Vector bias;                      ///< [E], counts for the choice only; empty in hash layers
  std::vector<std::int32_t> table;  ///< [vocab, n_used] expert ids; empty in routed layers
  ExpertWeights experts;
  ExpertWeights shared;
  double clamp_routed = 10;
  double clamp_shared = 10;
};

struct MoeRoute {
  Vector probs;                   ///< [E] sqrt(softplus(logit))
  std::vector<std::int32_t> ids;  ///< chosen experts; table order, or ascending if routed
  Vector weights;                 ///< of the chosen, summing to the scale
};

inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

/// x * sigmoid(x) * up with the gate limited from above only and up on both sides.
inline double clamped_swiglu(double gate, double up, double limit) {
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate * sigmoid(gate) * up;
}

/// Which experts see input f [D] of `token`, and with what weight.
inline MoeRoute route(const MoeWeights& w, std::span<const double> f, std::int32_t token,
                      int n_used, double scale) {
  MoeRoute r;
  r.probs = product(w.router, f);
  for (double& p : r.probs) p = std::sqrt(softplus(p));
  if (!w.table.empty()) {
    const auto begin = w.table.begin() + static_cast<std::ptrdiff_t>(token) * n_used;
    r.ids.assign(begin, begin + n_used);
  } else {
    Vector biased = r.probs;
    for (std::size_t e = 0; e < biased.size(); ++e) biased[e] += w.bias[e];
    r.ids = top_k(biased, n_used);
  }
  double sum = 0;
  for (const std::int32_t e : r.ids) sum += r.probs[static_cast<std::size_t>(e)];
  // The smallest normal f16: keeps a router that underflows everywhere from dividing by zero.
  sum = std::max(sum, std::ldexp(1.0, -14));
  for (const std::int32_t e : r.ids) {
    r.weights.push_back(r.probs[static_cast<std::size_t>(e)] / sum * scale);
  }
  return r;
}

/// Adds weight * expert_e(f) to y [D].
inline void add_expert(const ExpertWeights& w, std::int64_t e, std::span<const double> f,
                       double weight, double limit, Vector& y) {
  const std::int64_t width = w.down.cols;
  const auto d = static_cast<std::int64_t>(y.size());
  const Vector gate = product_rows(w.gate, e * width, width, f);
  const Vector up = product_rows(w.up, e * width, width, f);
  Vector inner;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    inner.push_back(weight * clamped_swiglu(gate[i], up[i], limit));
  }
  const Vector out = product_rows(w.down, e * d, d, inner);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += out[i];
}

/// Weighted routed experts plus the shared one, whose weight is 1.
inline Vector run_experts(const MoeWeights& w, const MoeRoute& r, std::span<const double> f) {
  Vector y(f.size(), 0.0);
  for (std::size_t i = 0; i < r.ids.size(); ++i) {
    add_expert(w.experts, r.ids[i], f, r.weights[i], w.clamp_routed, y);
  }
  add_expert(w.shared, 0, f, 1.0, w.clamp_shared, y);
  return y;
}

}  // namespace ebb::reference
