#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hd.h"

// Rotary positions on adjacent pairs of the LAST 2 * n_pairs dims of a vector.
// Source: model reference 3.3.

namespace ebb {

/// How a layer's frequencies are made. factor 1 means plain frequencies; otherwise YaRN blends the
/// slow pairs towards frequency / factor. There is no amplitude factor.
struct RopeScaling {
  double base = 10000;
  double factor = 1;
  double original_context = 0;  ///< tokens the model was first trained for
  double beta_fast = 32;        ///< pairs that turn more often than this in that context stay
  double beta_slow = 1;         ///< pairs that turn less often than this are divided by factor
};

/// frequency[i], radians per token, i < n_pairs.
inline void rope_frequencies(const RopeScaling& scaling, std::int32_t n_pairs, double* frequency) {
  const double n_rot = 2.0 * n_pairs;
  double low = 0, high = 1;
  const bool yarn = scaling.factor != 1;
  if (yarn) {
    const double two_pi = 6.283185307179586476925286766559;
    // The (fractional) pair that turns `turns` times within the original context.
    const auto pair_of = [&](double turns) {
      return n_rot * std::log(scaling.original_context / (two_pi * turns)) /
             (2 * std::log(scaling.base));
    };
    low = std::fmax(std::floor(pair_of(scaling.beta_fast)), 0);
    high = std::fmin(std::ceil(pair_of(scaling.beta_slow)), n_rot - 1);
    if (high <= low) high = low + 0.001;  // a step instead of a ramp
  }
  for (std::int32_t i = 0; i < n_pairs; ++i) {
    const double plain = std::pow(scaling.base, -2.0 * i / n_rot);
    const double ramp = yarn ? std::fmin(std::fmax((i - low) / (high - low), 0), 1) : 0;
    frequency[i] = plain * (1 - ramp) + plain / scaling.factor * ramp;
  }
}

/// Entry of the table: cosine and sine of an angle that is formed in double, since a float product
/// of a large position and a frequency is off by whole hundredths of a radian.
EBB_HD inline void rope_entry(std::int64_t position, double frequency, float* cos_sin) {
  const double angle = static_cast<double>(position) * frequency;
  cos_sin[0] = static_cast<float>(cos(angle));
  cos_sin[1] = static_cast<float>(sin(angle));
}

/// The same as models trained with single-precision tables saw it: the angle is a rounded product.
EBB_HD inline void rope_entry_single(std::int64_t position, double frequency, float* cos_sin) {
  const float angle = static_cast<float>(position) * static_cast<float>(frequency);
  cos_sin[0] = static_cast<float>(cos(static_cast<double>(angle)));
  cos_sin[1] = static_cast<float>(sin(static_cast<double>(angle)));
}

EBB_HD inline void rotate_pair(float* pair, const float* cos_sin) {
  const float a = pair[0], b = pair[1];
  pair[0] = a * cos_sin[0] - b * cos_sin[1];
  pair[1] = a * cos_sin[1] + b * cos_sin[0];
}

/// The inverse rotation.
EBB_HD inline void rotate_pair_back(float* pair, const float* cos_sin) {
  const float a = pair[0], b = pair[1];
  pair[0] = a * cos_sin[0] + b * cos_sin[1];
  pair[1] = b * cos_sin[0] - a * cos_sin[1];
}

}  // namespace ebb
