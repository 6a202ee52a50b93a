#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "tests/reference/linear.h"

// The model's own selector of chunks: several small heads score every visible chunk, and the best
// `top_k` of them are attended.

namespace ebb::reference {

/// Orthonormal Hadamard transform in Sylvester order, in place; the size must be a power of two.
inline void hadamard(std::span<double> x) {
  const std::size_t n = x.size();
  for (std::size_t half = 1; half < n; half *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * half) {
      for (std::size_t i = begin; i < begin + half; ++i) {
        const double a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  for (double& value : x) value /= std::sqrt(static_cast<double>(n));
}

/// Sum over heads of weight[h] * max(0, q[h] . key); queries [n_heads, d], key [d], the weights
/// already scaled. Negative where negative weights win.
inline double index_score(const Vector& queries, const Vector& weights, const Vector& key) {
  double score = 0;
  for (std::size_t h = 0; h < weights.size(); ++h) {
    const auto d = static_cast<std::int64_t>(key.size());
    score += weights[h] * std::max(0.0, dot(piece(queries, static_cast<std::int64_t>(h), d), key));
  }
  return score;
}

/// Ids of the k highest scores (all of them if there are fewer), ascending. Of equal scores the
/// lower id wins; NaN counts as minus infinity.
inline std::vector<std::int32_t> top_k(std::span<const double> scores, std::int64_t k) {
  const auto score = [&](std::int32_t id) {
    const double value = scores[static_cast<std::size_t>(id)];
    return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value;
  };
  std::vector<std::int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
  if (static_cast<std::int64_t>(ids.size()) > k) ids.resize(static_cast<std::size_t>(k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace ebb::reference
