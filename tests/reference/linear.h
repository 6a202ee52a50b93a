#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

// The double-precision reference: every file here is written from the model's formulas alone and
// shares no arithmetic with kernels/ or modules/ (only the codebooks of the IQ types, which are
// data), so that a mistake in a formula cannot hide in both. Plain loops; clarity before speed.

namespace ebb::reference {

using Vector = std::vector<double>;

/// Row-major matrix [rows, cols]; one row is one output.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Vector values;

  std::span<const double> row(std::int64_t i) const {
    return std::span(values).subspan(static_cast<std::size_t>(i * cols),
                                     static_cast<std::size_t>(cols));
  }
};

/// Sum of a[i] * b[i]. Four partial sums let the processor overlap the additions.
inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum[4] = {0, 0, 0, 0};
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < a.size(); ++i) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// Rows [first, first + n) of `m` times x.
inline Vector product_rows(const Matrix& m, std::int64_t first, std::int64_t n,
                           std::span<const double> x) {
  Vector y(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) y[static_cast<std::size_t>(i)] = dot(m.row(first + i), x);
  return y;
}

/// m times x.
inline Vector product(const Matrix& m, std::span<const double> x) {
  return product_rows(m, 0, m.rows, x);
}

/// Piece `i` of a vector cut into pieces of `width` values, e.g. one head of all heads.
inline std::span<double> piece(Vector& v, std::int64_t i, std::int64_t width) {
  return std::span(v).subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
}
inline std::span<const double> piece(const Vector& v, std::int64_t i, std::int64_t width) {
  return std::span(v).subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
}

}  // namespace ebb::reference
