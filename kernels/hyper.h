#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hd.h"

// Hyper-connections: the few numbers that say how streams mix.   Source: model reference 3.2.

namespace ebb {

inline constexpr int kMaxStreams = 8;

EBB_HD inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

EBB_HD inline float hc_pre_weight(float mix, float scale, float base, float eps) {
  return sigmoid(mix * scale + base) + eps;
}

EBB_HD inline float hc_post_weight(float mix, float scale, float base) {
  return 2.0f * sigmoid(mix * scale + base);
}

/// Makes a matrix of logits c[source][destination] nearly doubly stochastic, in place: softmax over
/// the destinations plus eps, then columns and rows in turn divided by (their sum + eps), ending on
/// columns. `iterations` counts column divisions; at least one is done.
template <int S>
EBB_HD inline void sinkhorn(float (&c)[S][S], int iterations, float eps) {
  for (int j = 0; j < S; ++j) {
    float largest = c[j][0];
    for (int k = 1; k < S; ++k) largest = c[j][k] > largest ? c[j][k] : largest;
    float sum = 0;
    for (int k = 0; k < S; ++k) {
      c[j][k] = expf(c[j][k] - largest);
      sum += c[j][k];
    }
    for (int k = 0; k < S; ++k) c[j][k] = c[j][k] / sum + eps;
  }
  for (int iteration = 0;; ++iteration) {
    for (int k = 0; k < S; ++k) {
      float sum = 0;
      for (int j = 0; j < S; ++j) sum += c[j][k];
      const float divisor = sum + eps;
      for (int j = 0; j < S; ++j) c[j][k] /= divisor;
    }
    if (iteration + 1 >= iterations) return;
    for (int j = 0; j < S; ++j) {
      float sum = 0;
      for (int k = 0; k < S; ++k) sum += c[j][k];
      const float divisor = sum + eps;
      for (int k = 0; k < S; ++k) c[j][k] /= divisor;
    }
  }
}

/// comb[j][k] of one row from its mixing logits (scaled and based here).
template <int S>
EBB_HD inline void hc_comb(const float* mix, float scale, const float* base, int iterations,
                           float eps, float* comb) {
  float c[S][S];
  for (int j = 0; j < S; ++j) {
    for (int k = 0; k < S; ++k) c[j][k] = mix[j * S + k] * scale + base[j * S + k];
  }
  sinkhorn<S>(c, iterations, eps);
  for (int j = 0; j < S; ++j) {
    for (int k = 0; k < S; ++k) comb[j * S + k] = c[j][k];
  }
}

/// hc_comb for a number of streams known only at run time, 1..kMaxStreams.
EBB_HD inline void hc_comb_of(int n_streams, const float* mix, float scale, const float* base,
                              int iterations, float eps, float* comb) {
  static_assert(kMaxStreams == 8);
  switch (n_streams) {
    case 1:
      return hc_comb<1>(mix, scale, base, iterations, eps, comb);
    case 2:
      return hc_comb<2>(mix, scale, base, iterations, eps, comb);
    case 3:
      return hc_comb<3>(mix, scale, base, iterations, eps, comb);
    case 4:
      return hc_comb<4>(mix, scale, base, iterations, eps, comb);
    case 5:
      return hc_comb<5>(mix, scale, base, iterations, eps, comb);
    case 6:
      return hc_comb<6>(mix, scale, base, iterations, eps, comb);
    case 7:
      return hc_comb<7>(mix, scale, base, iterations, eps, comb);
    default:
      return hc_comb<8>(mix, scale, base, iterations, eps, comb);
  }
}

}  // namespace ebb
