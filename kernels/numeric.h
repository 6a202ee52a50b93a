#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/hd.h"

// Small number formats, bit by bit: the same code on every device, so the same bits everywhere.
// Conversions round to nearest, ties to even.

namespace ebb {

EBB_HD inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

EBB_HD inline float bits_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// 2^exponent for -126 <= exponent <= 127.
EBB_HD inline float power_of_two(int exponent) {
  return bits_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}

EBB_HD inline float bf16_to_float(std::uint16_t h) {
  return bits_float(static_cast<std::uint32_t>(h) << 16);
}

EBB_HD inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it one although the low half is cut off
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

EBB_HD inline float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 31u;
  const std::uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * power_of_two(-24);
    return bits_float(sign | float_bits(magnitude));
  }
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

EBB_HD inline std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {  // infinity or NaN
    return static_cast<std::uint16_t>(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 puts the 24th fractional bit last, and the hardware rounds.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_bits(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// E4M3 without infinity ("fn"): largest 448, smallest step 2^-9, NaN 0x7f.
EBB_HD inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t exponent = (code >> 3) & 15u;
  const std::uint32_t mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return bits_float(sign | 0x7fc00000u);
  if (exponent == 0) {
    return bits_float(sign | float_bits(static_cast<float>(mantissa) * power_of_two(-9)));
  }
  return bits_float(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

/// Values beyond 448 become 448.
EBB_HD inline std::uint8_t float_to_e4m3(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {  // < 2^-6: adding 2^14 puts the bit worth 2^-9 last
    const float shifted = bits_float(magnitude) + 16384.0f;
    return static_cast<std::uint8_t>(sign | (float_bits(shifted) - 0x46800000u));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

/// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; bit 3 is the sign.
EBB_HD inline float e2m1_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 8u) << 28;
  const std::uint32_t exponent = (code >> 1) & 3u;
  const std::uint32_t mantissa = code & 1u;
  if (exponent == 0) return bits_float(sign | (mantissa != 0 ? 0x3f000000u : 0u));
  return bits_float(sign | ((exponent + 126) << 23) | (mantissa << 22));
}

/// Ties go to the even code: 0.25 to 0, 0.75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 and 5 to 4.
/// NaN becomes 0: the format has none.
EBB_HD inline std::uint8_t float_to_e2m1(float value) {
  const std::uint8_t sign = static_cast<std::uint8_t>((float_bits(value) >> 28) & 8u);
  const float x = bits_float(float_bits(value) & 0x7fffffffu);
  const int code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) +
                   (x >= 3.5f) + (x > 5.0f);
  return static_cast<std::uint8_t>(sign | code);
}

/// E8M0: 2^(code - 127). Code 0 would be 2^-127, below the normal floats; 255 is NaN.
EBB_HD inline float e8m0_to_float(std::uint8_t code) {
  if (code == 0) return bits_float(0x00400000u);
  if (code == 255) return bits_float(0x7fc00000u);
  return bits_float(static_cast<std::uint32_t>(code) << 23);
}

/// Code of a power of two between 2^-126 and 2^127.
EBB_HD inline std::uint8_t power_of_two_to_e8m0(float scale) {
  return static_cast<std::uint8_t>((float_bits(scale) >> 23) & 255u);
}

/// The least power of two s with amax <= s * limit, for a positive normal amax and limit; read from
/// the bits, since a logarithm is not exact where it matters, at powers of two.
EBB_HD inline float ceil_power_of_two_scale(float amax, float limit) {
  const std::uint32_t a = float_bits(amax);
  const std::uint32_t l = float_bits(limit);
  const int exponent = static_cast<int>(a >> 23) - static_cast<int>(l >> 23) +
                       ((a & 0x7fffffu) > (l & 0x7fffffu) ? 1 : 0);
  return power_of_two(exponent < -126 ? -126 : exponent);
}

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;
inline constexpr int kFp8Block = 64;  ///< values that share a scale in FP8 rows and simulation
inline constexpr int kFp4Block = 32;  ///< the same for FP4

/// Scale of an FP8 block whose largest magnitude is amax.   Source: model reference 3.9
EBB_HD inline float fp8_scale(float amax) {
  return ceil_power_of_two_scale(amax > 1e-4f ? amax : 1e-4f, kE4m3Max);
}

/// Scale of an FP4 block.   Source: model reference 3.9
EBB_HD inline float fp4_scale(float amax) {
  const float floor = kE2m1Max * power_of_two(-126);
  return ceil_power_of_two_scale(amax > floor ? amax : floor, kE2m1Max);
}

/// Largest magnitude; NaNs are passed over.
EBB_HD inline float largest_magnitude(const float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    const float magnitude = bits_float(float_bits(x[i]) & 0x7fffffffu);
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

/// Rounds one block, in place, to what FP8 storage would keep. Dividing by a power of two is exact,
/// so it is done by the reciprocal.
EBB_HD inline void simulate_fp8_block(float* x, int n) {
  const float scale = fp8_scale(largest_magnitude(x, n));
  const float inverse = 1.0f / scale;
  for (int i = 0; i < n; ++i) x[i] = scale * e4m3_to_float(float_to_e4m3(x[i] * inverse));
}

/// The same for FP4.
EBB_HD inline void simulate_fp4_block(float* x, int n) {
  const float scale = fp4_scale(largest_magnitude(x, n));
  // 1 / 2^127 is not a normal float, hence the division; it is exact for powers of two.
  for (int i = 0; i < n; ++i) x[i] = scale * e2m1_to_float(float_to_e2m1(x[i] / scale));
}

}  // namespace ebb
