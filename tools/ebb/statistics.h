#pragma once

#include <cstdint>
#include <span>

namespace ebb::cli {

struct Interval {
  double low = 0;
  double high = 0;
};

/// Wilson's 95 % interval for a proportion of `n_right` in `n`: [0, 1] for n = 0.
/// Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209-212.
Interval wilson_interval(std::int64_t n_right, std::int64_t n);

/// The q-th quantile, 0..1, by linear interpolation between ordered values; 0 of none.
double quantile(std::span<const double> values, double q);

struct Mean {
  double value = 0;
  double half_width = 0;  ///< of the 95 % interval (Student's t); 0 for fewer than two values
};

/// Mean of independent values with its interval.
Mean mean_of(std::span<const double> values);

}  // namespace ebb::cli
