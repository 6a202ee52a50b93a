#pragma once

#include <cmath>
#include <limits>

namespace ebb::test {

/// The larger of two errors; infinite if one is no number. std::max and std::fmax may return the
/// other one then, and a comparison of NaNs would pass.
inline double worse(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::infinity();
  return a < b ? b : a;
}

}  // namespace ebb::test
