#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

// Small floating-point formats, and the two rounding simulations built on them.
//
// All formats are handled by one rule: sign, `exponent_bits`, `mantissa_bits`, bias
// 2^(exponent_bits-1)-1, and exponent field 0 means subnormal. What differs is the top exponent:
// f16 and bf16 keep it for infinities and NaN, E4M3 ("fn") has only one NaN code, E2M1 has none.

namespace ebb::reference {

/// Value of a code, the top exponent treated as an ordinary one.
inline double decode_small_float(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

/// Nearest value of a format with `mantissa_bits` and smallest normal exponent `min_exponent`, ties
/// to the even mantissa. The range is not limited.
inline double round_small_float(double x, int mantissa_bits, int min_exponent) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double step = std::ldexp(1.0, exponent - mantissa_bits);
  return std::nearbyint(x / step) * step;
}

/// Code of a finite value that the format holds exactly.
inline std::uint32_t encode_small_float(double x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t sign = std::signbit(x) ? 1u << (exponent_bits + mantissa_bits) : 0;
  if (x == 0) return sign;
  const int exponent = std::max(std::ilogb(x), 1 - bias);
  const auto steps = static_cast<std::uint32_t>(std::ldexp(std::fabs(x), mantissa_bits - exponent));
  // A normal value's leading one adds the missing 1 to the exponent field.
  return sign + (static_cast<std::uint32_t>(exponent + bias - 1) << mantissa_bits) + steps;
}

inline double f16_to_double(std::uint16_t bits) {
  if ((bits & 0x7C00) != 0x7C00) return decode_small_float(bits, 5, 10);
  if ((bits & 0x3FF) != 0) return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return (bits & 0x8000) != 0 ? -infinity : infinity;
}

/// Nearest f16, ties to even, overflow to infinity.
inline std::uint16_t double_to_f16(double x) {
  if (std::isnan(x)) return 0x7E00;
  const double rounded = round_small_float(x, 10, -14);
  if (std::fabs(rounded) > 65504) return x < 0 ? 0xFC00 : 0x7C00;
  return static_cast<std::uint16_t>(encode_small_float(rounded, 5, 10));
}

inline double bf16_to_double(std::uint16_t bits) {
  if ((bits & 0x7F80) != 0x7F80) return decode_small_float(bits, 8, 7);
  if ((bits & 0x7F) != 0) return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return (bits & 0x8000) != 0 ? -infinity : infinity;
}

/// Nearest bf16, ties to even, overflow to infinity.
inline std::uint16_t double_to_bf16(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const double rounded = round_small_float(x, 7, -126);
  if (std::fabs(rounded) >= std::ldexp(1.0, 128)) return x < 0 ? 0xFF80 : 0x7F80;
  return static_cast<std::uint16_t>(encode_small_float(rounded, 8, 7));
}

/// FP8 E4M3 "fn": up to 448, no infinity, NaN only at 0x7F and 0xFF.
inline double e4m3_to_double(std::uint8_t code) {
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  return decode_small_float(code, 4, 3);
}

/// Nearest E4M3 value, ties to even; values beyond +-448 are clamped.
inline double round_e4m3(double x) {
  return round_small_float(std::clamp(x, -448.0, 448.0), 3, -6);
}
inline std::uint8_t double_to_e4m3(double x) {
  return static_cast<std::uint8_t>(encode_small_float(round_e4m3(x), 4, 3));
}

/// FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, with bit 3 set, their negatives.
inline double e2m1_to_double(std::uint32_t code) { return decode_small_float(code & 15, 2, 1); }

/// Nearest E2M1 value, ties to the even code; values beyond +-6 are clamped.
inline double round_e2m1(double x) { return round_small_float(std::clamp(x, -6.0, 6.0), 1, 0); }
inline std::uint8_t double_to_e2m1(double x) {
  return static_cast<std::uint8_t>(encode_small_float(round_e2m1(x), 2, 1));
}

/// E8M0 block scale: 2^(code - 127) for every code, 255 included.
inline double e8m0_to_double(std::uint8_t code) { return std::ldexp(1.0, code - 127); }

/// Unsigned E4M3 block scale of NVFP4: the top bit counts for nothing, 0x7F stands for 0.
inline double ue4m3_to_double(std::uint8_t code) {
  return code == 0x7F ? 0.0 : decode_small_float(code & 0x7F, 4, 3);
}

/// Smallest power of two that is at least x > 0.
inline double power_of_two_at_least(double x) {
  const double power = std::ldexp(1.0, std::ilogb(x));
  return power == x ? power : 2 * power;
}

inline double max_abs(std::span<const double> x) {
  double result = 0;
  for (const double value : x) result = std::max(result, std::fabs(value));
  return result;
}

/// Rounds each run of `block` values (the last may be shorter) as an FP8 cache would: a shared
/// power-of-two scale, then E4M3.
inline void simulate_fp8(std::span<double> x, std::size_t block = 64) {
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    const std::span<double> part = x.subspan(begin, std::min(block, x.size() - begin));
    const double scale = power_of_two_at_least(std::max(max_abs(part), 1e-4) / 448);
    for (double& value : part) value = scale * round_e4m3(value / scale);
  }
}

/// Rounds each run of `block` values to FP4 with a shared power-of-two scale.
inline void simulate_fp4(std::span<double> x, std::size_t block = 32) {
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    const std::span<double> part = x.subspan(begin, std::min(block, x.size() - begin));
    const double smallest = std::ldexp(6.0, -126);
    const double scale = power_of_two_at_least(std::max(max_abs(part), smallest) / 6);
    for (double& value : part) value = scale * round_e2m1(value / scale);
  }
}

}  // namespace ebb::reference
