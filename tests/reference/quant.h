#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/api/types.h"
#include "kernels/quant_grids.h"
#include "tests/reference/numeric.h"

// Dequantisation of every stored type, one value at a time: each function returns value n of the
// block at b. Fields are little-endian without padding; `d` is a block's f16 scale.

namespace ebb::reference {

using Byte = std::uint8_t;

inline std::uint32_t read_u16(const Byte* b) {
  return b[0] | static_cast<std::uint32_t>(b[1]) << 8;
}
inline std::uint32_t read_u32(const Byte* b) { return read_u16(b) | read_u16(b + 2) << 16; }
inline double read_f16(const Byte* b) {
  return f16_to_double(static_cast<std::uint16_t>(read_u16(b)));
}
inline double read_f32(const Byte* b) { return std::bit_cast<float>(read_u32(b)); }
inline int read_s8(Byte b) { return static_cast<std::int8_t>(b); }

/// Low (0) or high (1) half of a byte.
inline int nibble(Byte b, int half) { return b >> (4 * half) & 15; }

/// Sign of value i under a sign byte: a set bit is a minus.
inline double sign_of(std::uint32_t signs, int i) { return (signs >> i & 1) != 0 ? -1 : 1; }

/// The eight signs that a 7-bit field stands for: the eighth makes the number of minuses even.
inline std::uint32_t even_signs(std::uint32_t field) {
  return field | static_cast<std::uint32_t>(std::popcount(field) & 1) << 7;
}

/// Byte i of a codeword, signed.
inline double grid_value(std::uint64_t codeword, int i) {
  return read_s8(static_cast<Byte>(codeword >> (8 * i)));
}

inline double q8_0(const Byte* b, int n) { return read_f16(b) * read_s8(b[2 + n]); }

/// Two-bit field of the types that store 128 values as 32 bytes of four fields each.
inline int two_bits(const Byte* b, int n) {
  return b[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3;
}

inline double q2_k(const Byte* b, int n) {
  const Byte scales = b[n / 16];
  return read_f16(b + 80) * (scales & 15) * two_bits(b + 16, n) - read_f16(b + 82) * (scales >> 4);
}

inline double q3_k(const Byte* b, int n) {
  const Byte* const packed = b + 96;
  const int high_bit = 4 * (n / 128) + n % 128 / 32;
  const int q = two_bits(b + 32, n) - ((b[n % 32] >> high_bit & 1) != 0 ? 0 : 4);
  const int j = n / 16;
  const int low = nibble(packed[j % 8], j / 8);
  const int high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
  return read_f16(b + 108) * ((low | high << 4) - 32) * q;
}

/// Scale and minimum j (0..7) of Q4_K and Q5_K: six bits each in twelve bytes.
struct ScaleMin {
  int scale, min;
};
inline ScaleMin scale_min(const Byte* sc, int j) {
  if (j < 4) return {sc[j] & 63, sc[j + 4] & 63};
  return {(sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4, (sc[j + 4] >> 4) | (sc[j] >> 6) << 4};
}

inline double q4_k(const Byte* b, int n) {
  const int j = n / 32;
  const int q = nibble(b[16 + 32 * (j / 2) + n % 32], j & 1);
  const ScaleMin s = scale_min(b + 4, j);
  return read_f16(b) * s.scale * q - read_f16(b + 2) * s.min;
}

inline double q5_k(const Byte* b, int n) {
  const int j = n / 32;
  const int q = nibble(b[48 + 32 * (j / 2) + n % 32], j & 1) | (b[16 + n % 32] >> j & 1) << 4;
  const ScaleMin s = scale_min(b + 4, j);
  return read_f16(b) * s.scale * q - read_f16(b + 2) * s.min;
}

inline double q6_k(const Byte* b, int n) {
  const int half = n / 128, group = n % 128 / 32, lane = n % 32;
  const int low = nibble(b[64 * half + 32 * (group & 1) + lane], group >> 1);
  const int high = b[128 + 32 * half + lane] >> (2 * group) & 3;
  return read_f16(b + 208) * read_s8(b[192 + n / 16]) * ((low | high << 4) - 32);
}

inline double q8_k(const Byte* b, int n) { return read_f32(b) * read_s8(b[4 + n]); }

// In the IQ types below, `group` is a run of 32 values and `octet` one of its four runs of eight.

inline double iq2_xxs(const Byte* b, int n) {
  const int group = n / 32, octet = n % 32 / 8, i = n % 8;
  const Byte* const g = b + 2 + 8 * group;
  const std::uint32_t word = read_u32(g + 4);
  const double scale = read_f16(b) * (0.5 + (word >> 28)) * 0.25;
  return scale * sign_of(even_signs(word >> (7 * octet) & 127), i) *
         grid_value(kernels::kGridIq2Xxs[g[octet]], i);
}

inline double iq2_xs(const Byte* b, int n) {
  const int octet = n / 8, i = n % 8;
  const std::uint32_t q = read_u16(b + 2 + 2 * octet);
  const int scale = nibble(b[66 + octet / 4], octet % 4 / 2);
  return read_f16(b) * (0.5 + scale) * 0.25 * sign_of(even_signs(q >> 9), i) *
         grid_value(kernels::kGridIq2Xs[q & 511], i);
}

inline double iq2_s(const Byte* b, int n) {
  const int octet = n / 8, group = n / 32, i = n % 8;
  const std::uint32_t high = b[66 + group] >> (2 * (octet % 4)) & 3u;
  const int scale = nibble(b[74 + group], octet % 4 / 2);
  return read_f16(b) * (0.5 + scale) * 0.25 * sign_of(b[34 + octet], i) *
         grid_value(kernels::kGridIq2S[b[2 + octet] | high << 8], i);
}

inline double iq3_xxs(const Byte* b, int n) {
  const int group = n / 32, octet = n % 32 / 8, i = n % 8;
  const std::uint32_t word = read_u32(b + 66 + 4 * group);
  const double scale = read_f16(b) * (0.5 + (word >> 28)) * 0.5;
  return scale * sign_of(even_signs(word >> (7 * octet) & 127), i) *
         grid_value(kernels::kGridIq3Xxs[b[2 + n / 4]], i % 4);
}

inline double iq3_s(const Byte* b, int n) {
  const int group = n / 32, i = n % 8;
  const std::uint32_t high = b[66 + group] >> (n % 32 / 4) & 1u;
  const double scale = read_f16(b) * (1 + 2 * nibble(b[106 + group / 2], group & 1));
  return scale * sign_of(b[74 + n / 8], i) *
         grid_value(kernels::kGridIq3S[b[2 + n / 4] | high << 8], i % 4);
}

inline double iq1_s(const Byte* b, int n) {
  const int group = n / 32, octet = n % 32 / 8;
  const std::uint32_t high = read_u16(b + 34 + 2 * group);
  const double scale = read_f16(b) * (2 * (high >> 12 & 7) + 1);
  const double shift = (high & 0x8000) != 0 ? -0.125 : 0.125;
  const std::uint32_t index = b[2 + n / 8] | (high >> (3 * octet) & 7) << 8;
  return scale * (grid_value(kernels::kGridIq1S[index], n % 8) + shift);
}

inline double iq1_m(const Byte* b, int n) {
  const int group = n / 32, octet = n % 32 / 8;
  // The block's f16 scale is spread over the top four bits of the four scale words.
  std::uint32_t d_bits = 0;
  for (int word = 0; word < 4; ++word) d_bits |= (read_u16(b + 48 + 2 * word) >> 12) << (4 * word);
  const double d = f16_to_double(static_cast<std::uint16_t>(d_bits));
  const std::uint32_t word = read_u16(b + 48 + 2 * (group / 2));
  const std::uint32_t scale = word >> (6 * (group % 2) + 3 * (octet / 2)) & 7;
  const int high = nibble(b[32 + 2 * group + octet / 2], octet & 1);
  const double shift = (high & 8) != 0 ? -0.125 : 0.125;
  const std::uint32_t index = b[n / 8] | static_cast<std::uint32_t>(high & 7) << 8;
  return d * (2 * scale + 1) * (grid_value(kernels::kGridIq1S[index], n % 8) + shift);
}

inline constexpr int kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

inline double iq4_nl(const Byte* b, int n) {
  return read_f16(b) * kIq4Values[nibble(b[2 + n % 16], n / 16)];
}

inline double iq4_xs(const Byte* b, int n) {
  const int group = n / 32;
  const int low = nibble(b[4 + group / 2], group & 1);
  const int high = static_cast<int>(read_u16(b + 2) >> (2 * group) & 3);
  const int value = kIq4Values[nibble(b[8 + 16 * group + n % 16], n % 32 / 16)];
  return read_f16(b) * ((low | high << 4) - 32) * value;
}

inline double mxfp4(const Byte* b, int n) {
  return e8m0_to_double(b[0]) *
         e2m1_to_double(static_cast<std::uint32_t>(nibble(b[1 + n % 16], n / 16)));
}

inline double nvfp4(const Byte* b, int n) {
  const int part = n / 16;
  return ue4m3_to_double(b[part]) *
         e2m1_to_double(static_cast<std::uint32_t>(nibble(b[4 + 8 * part + n % 8], n % 16 / 8)));
}

/// Value n of the block of `type` at b.
inline double block_value(DType type, const Byte* b, int n) {
  switch (type) {
    case DType::f32:
      return read_f32(b);
    case DType::f16:
      return read_f16(b);
    case DType::bf16:
      return bf16_to_double(static_cast<std::uint16_t>(read_u16(b)));
    case DType::i32:
      return static_cast<std::int32_t>(read_u32(b));
    case DType::q8_0:
      return q8_0(b, n);
    case DType::q2_k:
      return q2_k(b, n);
    case DType::q3_k:
      return q3_k(b, n);
    case DType::q4_k:
      return q4_k(b, n);
    case DType::q5_k:
      return q5_k(b, n);
    case DType::q6_k:
      return q6_k(b, n);
    case DType::q8_k:
      return q8_k(b, n);
    case DType::iq2_xxs:
      return iq2_xxs(b, n);
    case DType::iq2_xs:
      return iq2_xs(b, n);
    case DType::iq2_s:
      return iq2_s(b, n);
    case DType::iq3_xxs:
      return iq3_xxs(b, n);
    case DType::iq3_s:
      return iq3_s(b, n);
    case DType::iq1_s:
      return iq1_s(b, n);
    case DType::iq1_m:
      return iq1_m(b, n);
    case DType::iq4_nl:
      return iq4_nl(b, n);
    case DType::iq4_xs:
      return iq4_xs(b, n);
    case DType::mxfp4:
      return mxfp4(b, n);
    case DType::nvfp4:
      return nvfp4(b, n);
  }
  throw std::invalid_argument("unknown tensor type");
}

/// All values of whole blocks; `bytes` must be a multiple of the block's size.
inline std::vector<double> dequantise(DType type, std::span<const std::byte> bytes) {
  const DTypeTraits* const traits = dtype_traits(type);
  if (traits == nullptr || bytes.size() % static_cast<std::size_t>(traits->block_bytes) != 0) {
    throw std::invalid_argument("not whole blocks of a known type");
  }
  const auto* const begin = reinterpret_cast<const Byte*>(bytes.data());
  const std::size_t n_blocks = bytes.size() / static_cast<std::size_t>(traits->block_bytes);
  std::vector<double> values;
  values.reserve(n_blocks * static_cast<std::size_t>(traits->block_values));
  for (std::size_t block = 0; block < n_blocks; ++block) {
    const Byte* const b = begin + block * static_cast<std::size_t>(traits->block_bytes);
    for (int n = 0; n < traits->block_values; ++n) values.push_back(block_value(type, b, n));
  }
  return values;
}

}  // namespace ebb::reference
