#pragma once

#include <cmath>
#include <cstdint>

#include "tests/reference/linear.h"
#include "tests/reference/norm_rope.h"

// Hyper-connections: the residual stream is S parallel streams h[S][D]. Before a sub-layer they are
// mixed into one vector; after it, its output is added to each of them and the streams themselves
// are mixed by an S x S matrix that Sinkhorn's iteration makes (nearly) doubly stochastic. That
// mixing is the residual path: there is no other addition.

namespace ebb::reference {

/// fn [n_mix, S*D], base [n_mix]; before a sub-layer n_mix = 2S + S*S and scale has 3 values (input
/// mix, output mix, stream mix), at the head n_mix = S and scale has 1.
struct HyperWeights {
  Matrix fn;
  Vector scale;
  Vector base;
};

struct HyperParams {
  int n_streams = 4;
  int iterations = 20;
  double eps = 1e-6;      ///< of the mixes and of Sinkhorn's divisions
  double rms_eps = 1e-6;  ///< of the norm over all streams
};

struct HyperMix {
  Vector x;     ///< [D] input of the sub-layer
  Vector post;  ///< [S] how much of the output each stream takes
  Vector comb;  ///< [S, S] from stream j (row) to stream k (column)
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Turns logits [n, n] into the mixing matrix: softmax over each row, plus eps, then columns; after
/// that rows and columns in turn, ending with columns. `iterations` counts column passes.
inline Vector sinkhorn(Vector c, int n, int iterations, double eps) {
  const auto at = [&](int row, int column) -> double& {
    return c[static_cast<std::size_t>(row * n + column)];
  };
  const auto divide_rows = [&] {
    for (int j = 0; j < n; ++j) {
      double sum = eps;
      for (int k = 0; k < n; ++k) sum += at(j, k);
      for (int k = 0; k < n; ++k) at(j, k) /= sum;
    }
  };
  const auto divide_columns = [&] {
    for (int k = 0; k < n; ++k) {
      double sum = eps;
      for (int j = 0; j < n; ++j) sum += at(j, k);
      for (int j = 0; j < n; ++j) at(j, k) /= sum;
    }
  };
  for (int j = 0; j < n; ++j) {
    double highest = at(j, 0), sum = 0;
    for (int k = 1; k < n; ++k) highest = std::max(highest, at(j, k));
    for (int k = 0; k < n; ++k) sum += at(j, k) = std::exp(at(j, k) - highest);
    for (int k = 0; k < n; ++k) at(j, k) = at(j, k) / sum + eps;
  }
  divide_columns();
  for (int i = 1; i < iterations; ++i) {
    divide_rows();
    divide_columns();
  }
  return c;
}

/// fn times the streams, RMS-normalised as one vector of S*D values.
inline Vector hyper_logits(const HyperWeights& w, Vector streams, double rms_eps) {
  rms_normalise(streams, rms_eps);
  return product(w.fn, streams);
}

/// Sum over s of pre[s] * h[s].
inline Vector mix_streams(const Vector& streams, const Vector& pre) {
  const std::size_t d = streams.size() / pre.size();
  Vector x(d, 0.0);
  for (std::size_t s = 0; s < pre.size(); ++s) {
    for (std::size_t i = 0; i < d; ++i) x[i] += pre[s] * streams[s * d + i];
  }
  return x;
}

/// What comes before a sub-layer; streams [S, D].
inline HyperMix hyper_pre(const HyperWeights& w, const Vector& streams, const HyperParams& p) {
  const Vector mix = hyper_logits(w, streams, p.rms_eps);
  const auto n = static_cast<std::size_t>(p.n_streams);
  HyperMix result;
  Vector pre, comb;
  for (std::size_t s = 0; s < n; ++s) {
    pre.push_back(sigmoid(mix[s] * w.scale[0] + w.base[s]) + p.eps);
    result.post.push_back(2 * sigmoid(mix[n + s] * w.scale[1] + w.base[n + s]));
  }
  for (std::size_t i = 2 * n; i < 2 * n + n * n; ++i)
    comb.push_back(mix[i] * w.scale[2] + w.base[i]);
  result.comb = sinkhorn(std::move(comb), p.n_streams, p.iterations, p.eps);
  result.x = mix_streams(streams, pre);
  return result;
}

/// Streams after a sub-layer whose output is o [D]: h'[k] = post[k] o + sum over j of comb[j][k]
/// h[j].
inline Vector hyper_post(const Vector& o, const Vector& streams, const HyperMix& mix) {
  const std::size_t n = mix.post.size(), d = o.size();
  Vector result(streams.size());
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < d; ++i) {
      double sum = mix.post[k] * o[i];
      for (std::size_t j = 0; j < n; ++j) sum += mix.comb[j * n + k] * streams[j * d + i];
      result[k * d + i] = sum;
    }
  }
  return result;
}

/// One vector [D] out of the final streams.
inline Vector hyper_head(const HyperWeights& w, const Vector& streams, const HyperParams& p) {
  Vector pre = hyper_logits(w, streams, p.rms_eps);
  for (std::size_t s = 0; s < pre.size(); ++s) {
    pre[s] = sigmoid(pre[s] * w.scale[0] + w.base[s]) + p.eps;
  }
  return mix_streams(streams, pre);
}

}  // namespace ebb::reference
