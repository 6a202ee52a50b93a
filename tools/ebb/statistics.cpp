#include "tools/ebb/statistics.h"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>
#include <vector>

namespace ebb::cli {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % point of the normal distribution

}  // namespace

Interval wilson_interval(std::int64_t n_right, std::int64_t n) {
  if (n == 0) return {0, 1};
  const auto count = static_cast<double>(n);
  const double p = static_cast<double>(n_right) / count;
  const double scale = 1 + kZ * kZ / count;
  const double middle = (p + kZ * kZ / (2 * count)) / scale;
  const double half = kZ * std::sqrt(p * (1 - p) / count + kZ * kZ / (4 * count * count)) / scale;
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

double sorted_quantile(std::span<const double> sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double quantile(std::span<const double> values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_quantile(sorted, q);
}

double confidence_of_each(std::size_t n_intervals) {
  return 1 - 0.05 / static_cast<double>(std::max<std::size_t>(n_intervals, 1));
}

Mean mean_of(std::span<const double> values) { return mean_of(values, 0.95); }

Mean mean_of(std::span<const double> values, double confidence) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  Mean mean{std::accumulate(values.begin(), values.end(), 0.0) / n, 0};
  if (values.size() < 2) return mean;
  double squares = 0;
  for (const double value : values) squares += (value - mean.value) * (value - mean.value);
  const double degrees = n - 1;
  const double t = quantile(boost::math::students_t(degrees), (1 + confidence) / 2);
  mean.half_width = t * std::sqrt(squares / degrees / n);
  return mean;
}

double nll(std::span<const float> logits, std::int32_t token) {
  double highest = -HUGE_VAL;
  for (const float logit : logits) highest = std::max<double>(highest, logit);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return std::log(sum) + highest - logits[static_cast<std::size_t>(token)];
}

Ratio ratio_of(std::span<const double> logarithms, std::size_t n_together) {
  const Mean mean = mean_of(logarithms, confidence_of_each(n_together));
  Ratio ratio{std::exp(mean.value), std::nullopt};
  if (logarithms.size() > 1) {
    ratio.interval = {std::exp(mean.value - mean.half_width),
                      std::exp(mean.value + mean.half_width)};
  }
  return ratio;
}

SignTest trend_test(std::span<const double> values) {
  const std::size_t n_pairs = values.size() / 2;
  const std::size_t shift = values.size() - n_pairs;
  SignTest test;
  for (std::size_t i = 0; i < n_pairs; ++i) {
    test.n_up += values[i + shift] > values[i];
    test.n_down += values[i + shift] < values[i];
  }
  const std::int64_t n = test.n_up + test.n_down;
  if (n == 0) return test;
  const boost::math::binomial even(static_cast<double>(n), 0.5);
  const auto fewer = static_cast<double>(std::min(test.n_up, test.n_down));
  test.p = std::min(1.0, 2 * cdf(even, fewer));
  test.least_p = std::min(1.0, 2 * cdf(even, 0.0));
  return test;
}

}  // namespace ebb::cli
