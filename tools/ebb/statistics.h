#pragma once

#include <cstdint>
#include <optional>
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
/// The same of values that are in ascending order.
double sorted_quantile(std::span<const double> sorted, double q);

struct Mean {
  double value = 0;
  double half_width = 0;  ///< of the 95 % interval (Student's t); 0 for fewer than two values
};

/// Mean of independent values with its interval.
Mean mean_of(std::span<const double> values);
/// The same with an interval of another confidence, 0..1.
Mean mean_of(std::span<const double> values, double confidence);

/// What each of n intervals has to be of for all of them to hold the truth in 95 % of cases or
/// more, however they depend on each other: 1 - 0.05 / n. Source: O. J. Dunn, J. Am. Stat. Assoc.
/// 56 (1961), 52-64 (Bonferroni's inequality).
double confidence_of_each(std::size_t n_intervals);

/// -ln softmax(logits)[token], in nats; NaN if a logit is.
double nll(std::span<const float> logits, std::int32_t token);

/// A ratio of speeds from the logarithms of independent ratios: exp of their mean and, of two or
/// more, exp of the interval of the mean (Student's t); `n_together` such intervals hold in 95 % of
/// cases or more all at once.
struct Ratio {
  double value = 1;
  std::optional<Interval> interval;
};
Ratio ratio_of(std::span<const double> logarithms, std::size_t n_together);

/// Whether a run of values, in order of time, has a trend: each of the first half is compared with
/// the one as far into the second half (the middle one of an odd number is left out), and the signs
/// are judged by the exact binomial distribution of 1/2, both sides.
/// Source: D. R. Cox, A. Stuart, Biometrika 42 (1955), 80-95.
struct SignTest {
  std::int64_t n_up = 0,
               n_down = 0;  ///< pairs whose later value is higher, lower; ties count in none
  double p = 1;             ///< probability of signs at least as uneven, without a trend
  /// The least p that so many pairs could give.
  double least_p = 1;
};
SignTest trend_test(std::span<const double> values);

}  // namespace ebb::cli
