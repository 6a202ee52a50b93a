#pragma once

#include <cstdint>

#include "kernels/ops/attention.h"

// Operations on one vector, in the widest instructions of the machine. Each sums in an order that
// depends on n alone.

namespace ebb::cpu {

/// 1 / sqrt(mean(x^2) + eps).
float inverse_rms(const float* x, std::int64_t n, float eps);

/// y = x * inverse_rms(x) * weight; without weight if it is nullptr. y may be x.
void rms_norm_vector(const float* x, const float* weight, float* y, std::int64_t n, float eps);

/// y = sum_s weight[s] * x[s * stride + i], the streams in order.
void weighted_streams(const float* x, std::int64_t stride, const float* weight,
                      std::int32_t n_streams, float* y, std::int64_t n);

/// streams[k] = post[k] * o + sum_j comb[j][k] * streams[j], in place.
void mix_streams(const float* o, const float* post, const float* comb, float* streams,
                 std::int32_t n_streams, std::int64_t n);

/// Index of the largest value; ties to the lower index, NaN never wins (0 if all are NaN).
std::int64_t argmax_vector(const float* x, std::int64_t n);

/// Orthonormal Hadamard transform (Sylvester order) in place; n is a power of two.
void hadamard_vector(float* x, std::int32_t n);

/// Rotates n_pairs adjacent pairs back by the angles of a rope table row.
void rotate_back(float* x, const float* cos_sin, std::int32_t n_pairs);

/// Ropes the last 2 * n_pairs dims, then applies the rounding.
void rope_and_round(float* x, std::int32_t d, const float* cos_sin, std::int32_t n_pairs,
                    Rounding rounding);

}  // namespace ebb::cpu
