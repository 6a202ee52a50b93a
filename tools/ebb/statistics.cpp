#include "tools/ebb/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace ebb::cli {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % point of the normal distribution

// 97.5 % points of Student's t for 1..30 degrees of freedom; the normal one serves above.
constexpr std::array kStudent{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                              2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                              2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                              2.060,  2.056, 2.052, 2.048, 2.045, 2.042};

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

double quantile(std::span<const double> values, double q) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Mean mean_of(std::span<const double> values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  Mean mean{std::accumulate(values.begin(), values.end(), 0.0) / n, 0};
  if (values.size() < 2) return mean;
  double squares = 0;
  for (const double value : values) squares += (value - mean.value) * (value - mean.value);
  const std::size_t degrees = values.size() - 1;
  const double t = degrees <= kStudent.size() ? kStudent[degrees - 1] : kZ;
  mean.half_width = t * std::sqrt(squares / static_cast<double>(degrees) / n);
  return mean;
}

}  // namespace ebb::cli
