#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "tests/reference/linear.h"

// Root-mean-square norms and rotary positions.
//
// Rotation acts on adjacent pairs (2i, 2i+1) of a head's LAST n_rot dims. Window layers rotate with
// plain frequencies; layers that compress use another base and YaRN: frequencies that turn often
// within the original context stay, slow ones are divided by the factor, a linear ramp between.
// No amplitude factor goes with it.

namespace ebb::reference {

/// v / sqrt(mean(v^2) + eps), in place.
inline void rms_normalise(std::span<double> v, double eps) {
  const double mean = dot(v, v) / static_cast<double>(v.size());
  const double factor = 1 / std::sqrt(mean + eps);
  for (double& value : v) value *= factor;
}

/// RMS-normalised v, times weight per element.
inline Vector rms_norm(Vector v, std::span<const double> weight, double eps) {
  rms_normalise(v, eps);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= weight[i];
  return v;
}

struct Yarn {
  double factor = 1;
  double original_context = 0;  ///< tokens
  double beta_fast = 0;         ///< turns within the original context
  double beta_slow = 0;
};

/// Frequencies of a window layer: base^(-2i/n_rot), i < n_rot/2, in radians per position.
inline Vector rope_frequencies(int n_rot, double base) {
  Vector f;
  for (int i = 0; i < n_rot / 2; ++i) f.push_back(std::pow(base, -2.0 * i / n_rot));
  return f;
}

/// Frequencies of a compressing layer.
inline Vector rope_frequencies_yarn(int n_rot, double base, const Yarn& yarn) {
  // The (fractional) pair whose wave turns `beta` times within the original context.
  const auto pair_of = [&](double beta) {
    return n_rot * std::log(yarn.original_context / (2 * std::numbers::pi * beta)) /
           (2 * std::log(base));
  };
  const double low = std::max(std::floor(pair_of(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(yarn.beta_slow)), n_rot - 1.0);
  Vector f = rope_frequencies(n_rot, base);
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double position = (static_cast<double>(i) - low) / std::max(high - low, 0.001);
    const double ramp = std::clamp(position, 0.0, 1.0);
    f[i] = f[i] * (1 - ramp) + f[i] / yarn.factor * ramp;
  }
  return f;
}

/// Rotates the last 2 * f.size() dims of a head by the angle of `position`; `direction` -1 undoes
/// it.
inline void rotate(std::span<double> head, const Vector& f, std::int64_t position,
                   int direction = 1) {
  const std::span<double> tail = head.last(2 * f.size());
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double angle = direction * static_cast<double>(position) * f[i];
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * cosine - b * sine;
    tail[2 * i + 1] = a * sine + b * cosine;
  }
}

}  // namespace ebb::reference
