#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hd.h"

// Choice of experts.   Source: model reference 3.8.

namespace ebb {

/// log(1 + e^x) that neither overflows nor loses small results.
EBB_HD inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/// An expert's affinity from its router logit.
EBB_HD inline float route_affinity(float logit) { return sqrtf(softplus(logit)); }

/// What experts compete by: NaN loses to everything.
EBB_HD inline float route_score(float affinity, float bias) {
  const float score = affinity + bias;
  return score == score ? score : -INFINITY;
}

/// Smallest sum of affinities that weights are divided by: 2^-14.
inline constexpr float kRouteSumFloor = 6.103515625e-5f;

}  // namespace ebb
