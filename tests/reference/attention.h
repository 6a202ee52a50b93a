#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/reference/linear.h"

// Attention over rows that are key and value at once, with one learned sink logit per head.

namespace ebb::reference {

/// Output of all heads: q [n_heads, d], rows each [d], sinks [n_heads]; result [n_heads, d].
///   score_j = q . row_j / sqrt(d);  out = sum_j exp(score_j) row_j / (sum_j exp(score_j) +
///   exp(sink))
/// The sink is not scaled and adds to the denominator only; a sink of minus infinity is none.
inline Vector attend(const Vector& q, const std::vector<std::span<const double>>& rows,
                     std::span<const double> sinks) {
  const auto n_heads = static_cast<std::int64_t>(sinks.size());
  const std::int64_t d = static_cast<std::int64_t>(q.size()) / n_heads;
  Vector out(q.size(), 0.0);
  for (std::int64_t h = 0; h < n_heads; ++h) {
    const std::span<const double> query = piece(q, h, d);
    const std::span<double> head = piece(out, h, d);
    const double sink = sinks[static_cast<std::size_t>(h)];
    Vector scores;
    double highest = sink;
    for (const std::span<const double> row : rows) {
      scores.push_back(dot(query, row) / std::sqrt(static_cast<double>(d)));
      highest = std::max(highest, scores.back());
    }
    double total = std::exp(sink - highest);
    for (std::size_t j = 0; j < rows.size(); ++j) {
      const double weight = std::exp(scores[j] - highest);
      total += weight;
      for (std::size_t i = 0; i < head.size(); ++i) head[i] += weight * rows[j][i];
    }
    for (double& value : head) value /= total;
  }
  return out;
}

/// Output projection in two steps: row block g of `a` [G*Ro, H*d/G] sees only the heads of group g;
/// `b` [D, G*Ro] joins the groups.
inline Vector project_output(const Matrix& a, const Matrix& b, const Vector& heads, int n_groups) {
  const std::int64_t rank = a.rows / n_groups;
  Vector low;
  for (std::int64_t g = 0; g < n_groups; ++g) {
    const Vector part = product_rows(a, g * rank, rank, piece(heads, g, a.cols));
    low.insert(low.end(), part.begin(), part.end());
  }
  return product(b, low);
}

}  // namespace ebb::reference
