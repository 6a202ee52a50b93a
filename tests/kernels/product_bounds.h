#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/api/types.h"
#include "tests/reference/quant.h"

namespace ebb::test {

/// A double-precision product of one weight row and one activation row, and how far a kernel may be
/// from it.
struct Expected {
  double value = 0;
  double float_margin = 0;  ///< of float products
  double int8_margin = 0;   ///< of activations rounded to int8 in groups of 16
};

/// Float margin: with 16 lanes every term passes through at most n/16 additions in its lane (twice
/// that where offsets are summed apart), 4 to join the lanes, and a few roundings of its own; each
/// errs by 2^-24 of a partial sum, which the sum of magnitudes bounds. A type with offsets sums
/// scale * q and the offset apart, whose magnitudes may exceed the value's; the group's largest
/// value, twice, stands for both (q = 0 occurs in nearly every group of random blocks).
/// Int8 margin: a rounded activation is off by half a step, the group's largest / 254.
inline Expected expect_product(std::span<const double> w, std::span<const float> x) {
  Expected e;
  double magnitudes = 0;
  for (std::size_t first = 0; first < w.size(); first += 16) {
    const std::size_t n = std::min<std::size_t>(16, w.size() - first);
    double largest_w = 0;
    double largest_x = 0;
    double sum_w = 0;
    for (std::size_t i = first; i < first + n; ++i) {
      e.value += w[i] * static_cast<double>(x[i]);
      largest_w = std::max(largest_w, std::abs(w[i]));
      largest_x = std::max(largest_x, std::abs(static_cast<double>(x[i])));
      sum_w += std::abs(w[i]);
    }
    magnitudes += 3 * 16 * largest_w * largest_x;
    e.int8_margin += sum_w * largest_x / 254;
  }
  const double roundings = 2 * static_cast<double>(w.size()) / 16 + 10;
  // Rounding errors of both signs add up like a random walk; three times its length is generous.
  e.float_margin = 3 * std::sqrt(roundings) * std::ldexp(1.0, -24) * magnitudes + 1e-30;
  e.int8_margin = 1.001 * e.int8_margin + e.float_margin;
  return e;
}

}  // namespace ebb::test
