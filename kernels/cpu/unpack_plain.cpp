#include "kernels/cpu/unpack_plain.h"

#include <cstring>

#include "kernels/numeric.h"
#include "kernels/quant_grids.h"

// One function per type turns one stored block at `b` into part of a tile on a little-endian
// machine: `q` receives the block's integers, `scale` and `minus` one float per 16 of them. Fields
// are little-endian and unpadded; the offsets below are bytes from the start of the block. A
// block's f16 scale is `d`, its f16 scale of offsets `dmin`. Products are rounded in the order of
// the format's reference: d times the small integer first, then times q.

namespace ebb::cpu {
namespace {

using Byte = std::uint8_t;
using kernels::sign_byte;

std::uint32_t read_u16(const Byte* b) { return b[0] | static_cast<std::uint32_t>(b[1]) << 8; }
std::uint32_t read_u32(const Byte* b) { return read_u16(b) | read_u16(b + 2) << 16; }
float read_f16(const Byte* b) { return f16_to_float(static_cast<std::uint16_t>(read_u16(b))); }

/// Every bit of the low byte of `bits` as a byte of 0 or 1, the lowest bit first.
std::uint64_t spread_bits(std::uint32_t bits) {
  const std::uint64_t one_each =
      static_cast<Byte>(bits) * std::uint64_t{0x0101010101010101} & 0x8040201008040201;
  return (one_each + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101;
}

/// Magnitudes of one codeword, least significant byte first, with a minus where a sign bit is set.
/// No magnitude is 0, so the negation of a byte (invert, add 1) carries into no other byte.
template <class Codeword>
void put_signed(Codeword magnitudes, std::uint32_t signs, std::int8_t* q) {
  const auto minus = static_cast<Codeword>(spread_bits(signs));
  const auto inverted = static_cast<Codeword>(minus * 255);
  const auto values = static_cast<Codeword>((magnitudes ^ inverted) + minus);
  std::memcpy(q, &values, sizeof(values));
}

void q8_0(const Byte* b, std::int8_t* q, float* scale, float*) {
  std::memcpy(q, b + 2, 32);
  scale[0] = scale[1] = read_f16(b);
}

void q2_k(const Byte* b, std::int8_t* q, float* scale, float* minus) {
  const Byte* const fields = b + 16;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      q[32 * j + i] = static_cast<std::int8_t>(fields[32 * (j / 4) + i] >> (2 * (j % 4)) & 3);
    }
  }
  const float d = read_f16(b + 80);
  const float dmin = read_f16(b + 82);
  for (int j = 0; j < 16; ++j) {
    scale[j] = d * static_cast<float>(b[j] & 15);
    minus[j] = dmin * static_cast<float>(b[j] >> 4);
  }
}

void q3_k(const Byte* b, std::int8_t* q, float* scale, float*) {
  const Byte* const fields = b + 32;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int low = fields[32 * (j / 4) + i] >> (2 * (j % 4)) & 3;
      const int high = b[i] >> j & 1;
      q[32 * j + i] = static_cast<std::int8_t>(low + 4 * high - 4);
    }
  }
  const Byte* const packed = b + 96;
  const float d = read_f16(b + 108);
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    const int high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
    scale[j] = d * static_cast<float>((low | high << 4) - 32);
  }
}

/// Scales and offsets of Q4_K and Q5_K: eight pairs of 6-bit integers in 12 bytes, one pair per 32
/// values.
void put_pairs(const Byte* b, float* scale, float* minus) {
  const float d = read_f16(b);
  const float dmin = read_f16(b + 2);
  const Byte* const s = b + 4;
  for (int j = 0; j < 8; ++j) {
    const int factor = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int offset = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    scale[2 * j] = scale[2 * j + 1] = d * static_cast<float>(factor);
    minus[2 * j] = minus[2 * j + 1] = dmin * static_cast<float>(offset);
  }
}

void q4_k(const Byte* b, std::int8_t* q, float* scale, float* minus) {
  const Byte* const nibbles = b + 16;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      q[32 * j + i] = static_cast<std::int8_t>(nibbles[32 * (j / 2) + i] >> (4 * (j & 1)) & 15);
    }
  }
  put_pairs(b, scale, minus);
}

void q5_k(const Byte* b, std::int8_t* q, float* scale, float* minus) {
  const Byte* const nibbles = b + 48;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int low = nibbles[32 * (j / 2) + i] >> (4 * (j & 1)) & 15;
      const int high = b[16 + i] >> j & 1;
      q[32 * j + i] = static_cast<std::int8_t>(low | high << 4);
    }
  }
  put_pairs(b, scale, minus);
}

void q6_k(const Byte* b, std::int8_t* q, float* scale, float*) {
  const Byte* const nibbles = b;
  const Byte* const pairs = b + 128;
  for (int j = 0; j < 8; ++j) {
    const int half = j / 4;
    const int quarter = j % 4;
    for (int i = 0; i < 32; ++i) {
      const int low = nibbles[64 * half + 32 * (quarter & 1) + i] >> (4 * (quarter >> 1)) & 15;
      const int high = pairs[32 * half + i] >> (2 * quarter) & 3;
      q[32 * j + i] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
  }
  const float d = read_f16(b + 208);
  for (int j = 0; j < 16; ++j) {
    scale[j] = d * static_cast<float>(static_cast<std::int8_t>(b[192 + j]));
  }
}

void iq2_xxs(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int group = 0; group < 8; ++group) {
    const Byte* const g = b + 2 + 8 * group;
    const std::uint32_t packed = read_u32(g + 4);
    for (int octet = 0; octet < 4; ++octet) {
      put_signed(kernels::kGridIq2Xxs[g[octet]], sign_byte(packed >> (7 * octet) & 127),
                 q + 32 * group + 8 * octet);
    }
    const float factor = 0.5f + static_cast<float>(packed >> 28);
    scale[2 * group] = scale[2 * group + 1] = d * factor * 0.25f;
  }
}

void iq2_xs(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int octet = 0; octet < 32; ++octet) {
    const std::uint32_t code = read_u16(b + 2 + 2 * octet);
    put_signed(kernels::kGridIq2Xs[code & 511], sign_byte(code >> 9), q + 8 * octet);
  }
  for (int j = 0; j < 16; ++j) {
    const int nibble = b[66 + j / 2] >> (4 * (j & 1)) & 15;
    scale[j] = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
  }
}

void iq2_s(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int octet = 0; octet < 32; ++octet) {
    const std::uint32_t high = static_cast<std::uint32_t>(b[66 + octet / 4]) >> (2 * (octet % 4));
    put_signed(kernels::kGridIq2S[b[2 + octet] | (high & 3) << 8], b[34 + octet], q + 8 * octet);
  }
  for (int j = 0; j < 16; ++j) {
    const int nibble = b[74 + j / 2] >> (4 * (j & 1)) & 15;
    scale[j] = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
  }
}

void iq3_xxs(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int group = 0; group < 8; ++group) {
    const std::uint32_t packed = read_u32(b + 66 + 4 * group);
    for (int half = 0; half < 8; ++half) {  // four values each; two share a sign byte
      const std::uint32_t signs = sign_byte(packed >> (7 * (half / 2)) & 127);
      put_signed(kernels::kGridIq3Xxs[b[2 + 8 * group + half]], signs >> (4 * (half & 1)),
                 q + 32 * group + 4 * half);
    }
    const float factor = 0.5f + static_cast<float>(packed >> 28);
    scale[2 * group] = scale[2 * group + 1] = d * factor * 0.5f;
  }
}

void iq3_s(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int group = 0; group < 8; ++group) {
    for (int half = 0; half < 8; ++half) {
      const std::uint32_t high = static_cast<std::uint32_t>(b[66 + group]) >> half & 1;
      const std::uint32_t signs = b[74 + 4 * group + half / 2];
      put_signed(kernels::kGridIq3S[b[2 + 8 * group + half] | high << 8], signs >> (4 * (half & 1)),
                 q + 32 * group + 4 * half);
    }
    const int nibble = b[106 + group / 2] >> (4 * (group & 1)) & 15;
    scale[2 * group] = scale[2 * group + 1] = d * static_cast<float>(1 + 2 * nibble);
  }
}

/// IQ1: values are grid + delta with grid in -1, 0, 1 and delta = +-1/8, so eighths are integers.
/// With 128 added to each byte, adding and subtracting 1 carries into no other byte.
void put_eighths(std::uint64_t codeword, bool minus_delta, std::int8_t* q) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t shifted = (codeword << 3 & 0xf8 * kOnes) ^ 0x80 * kOnes;
  const std::uint64_t values = (minus_delta ? shifted - kOnes : shifted + kOnes) ^ 0x80 * kOnes;
  std::memcpy(q, &values, sizeof(values));
}

void iq1_s(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  for (int group = 0; group < 8; ++group) {
    const std::uint32_t high = read_u16(b + 34 + 2 * group);
    for (int octet = 0; octet < 4; ++octet) {
      const std::uint32_t index = b[2 + 4 * group + octet] | (high >> (3 * octet) & 7) << 8;
      put_eighths(kernels::kGridIq1S[index], (high & 0x8000) != 0, q + 32 * group + 8 * octet);
    }
    const float factor = static_cast<float>(2 * (high >> 12 & 7) + 1);
    scale[2 * group] = scale[2 * group + 1] = d * factor * 0.125f;
  }
}

void iq1_m(const Byte* b, std::int8_t* q, float* scale, float*) {
  std::uint32_t packed[4];
  for (int i = 0; i < 4; ++i) packed[i] = read_u16(b + 48 + 2 * i);
  const float d = f16_to_float(static_cast<std::uint16_t>(
      packed[0] >> 12 | (packed[1] >> 8 & 0xf0) | (packed[2] >> 4 & 0xf00) | (packed[3] & 0xf000)));
  for (int octet = 0; octet < 32; ++octet) {
    const std::uint32_t nibble = b[32 + octet / 2] >> (4 * (octet & 1)) & 15;
    put_eighths(kernels::kGridIq1S[b[octet] | (nibble & 7) << 8], (nibble & 8) != 0, q + 8 * octet);
  }
  for (int j = 0; j < 16; ++j) {
    const std::uint32_t s = packed[j / 4] >> (3 * (j % 4)) & 7;
    scale[j] = d * static_cast<float>(2 * s + 1) * 0.125f;
  }
}

/// Low nibbles are the first half of the values, high nibbles the second.
template <int kBytes>
void put_nibbles(const Byte* b, const std::int8_t* table, std::int8_t* q) {
  for (int i = 0; i < kBytes; ++i) {
    q[i] = table[b[i] & 15];
    q[kBytes + i] = table[b[i] >> 4];
  }
}

void iq4_nl(const Byte* b, std::int8_t* q, float* scale, float*) {
  put_nibbles<16>(b + 2, kIq4Values, q);
  scale[0] = scale[1] = read_f16(b);
}

void iq4_xs(const Byte* b, std::int8_t* q, float* scale, float*) {
  const float d = read_f16(b);
  const std::uint32_t high = read_u16(b + 2);
  for (int group = 0; group < 8; ++group) {
    put_nibbles<16>(b + 8 + 16 * group, kIq4Values, q + 32 * group);
    const int low = b[4 + group / 2] >> (4 * (group & 1)) & 15;
    const int s = low | static_cast<int>(high >> (2 * group) & 3) << 4;
    scale[2 * group] = scale[2 * group + 1] = d * static_cast<float>(s - 32);
  }
}

void mxfp4(const Byte* b, std::int8_t* q, float* scale, float*) {
  put_nibbles<16>(b + 1, kE2m1Doubled, q);
  // 2^(e - 128): half of 2^(e - 127), since the integers are doubled. The least two are subnormal.
  const std::uint32_t e = b[0];
  scale[0] = scale[1] = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

void nvfp4(const Byte* b, std::int8_t* q, float* scale, float*) {
  for (int j = 0; j < 4; ++j) {
    put_nibbles<8>(b + 4 + 8 * j, kE2m1Doubled, q + 16 * j);
    const std::uint32_t exponent = b[j] >> 3 & 15;
    const std::uint32_t mantissa = b[j] & 7;
    float value = 0;  // of codes 0 and 0x7f
    if (b[j] != 0x7f) {
      value = exponent == 0 ? static_cast<float>(mantissa) * power_of_two(-9)
                            : bits_float((exponent + 120) << 23 | mantissa << 20);
    }
    scale[j] = 0.5f * value;
  }
}

using UnpackBlock = void (*)(const Byte*, std::int8_t*, float*, float*);

template <DType kType, UnpackBlock kUnpack>
void unpack_tiles(const std::byte* blocks, std::int64_t n_values, Tile* tiles) {
  constexpr std::int64_t kValues = dtype_traits(kType)->block_values;
  constexpr std::int64_t kBytes = dtype_traits(kType)->block_bytes;
  const Byte* b = reinterpret_cast<const Byte*>(blocks);
  for (std::int64_t first = 0; first < n_values; first += kTileValues, ++tiles) {
    if (n_values - first < kTileValues) std::memset(tiles, 0, sizeof(*tiles));
    for (std::int64_t i = 0; i < kTileValues && first + i < n_values; i += kValues, b += kBytes) {
      kUnpack(b, tiles->q + i, tiles->scale + i / kGroupValues, tiles->minus + i / kGroupValues);
    }
  }
}

}  // namespace

UnpackTiles find_plain_tiles(DType type) {
  switch (type) {
    case DType::q8_0:
      return unpack_tiles<DType::q8_0, q8_0>;
    case DType::q2_k:
      return unpack_tiles<DType::q2_k, q2_k>;
    case DType::q3_k:
      return unpack_tiles<DType::q3_k, q3_k>;
    case DType::q4_k:
      return unpack_tiles<DType::q4_k, q4_k>;
    case DType::q5_k:
      return unpack_tiles<DType::q5_k, q5_k>;
    case DType::q6_k:
      return unpack_tiles<DType::q6_k, q6_k>;
    case DType::iq2_xxs:
      return unpack_tiles<DType::iq2_xxs, iq2_xxs>;
    case DType::iq2_xs:
      return unpack_tiles<DType::iq2_xs, iq2_xs>;
    case DType::iq2_s:
      return unpack_tiles<DType::iq2_s, iq2_s>;
    case DType::iq3_xxs:
      return unpack_tiles<DType::iq3_xxs, iq3_xxs>;
    case DType::iq3_s:
      return unpack_tiles<DType::iq3_s, iq3_s>;
    case DType::iq1_s:
      return unpack_tiles<DType::iq1_s, iq1_s>;
    case DType::iq1_m:
      return unpack_tiles<DType::iq1_m, iq1_m>;
    case DType::iq4_nl:
      return unpack_tiles<DType::iq4_nl, iq4_nl>;
    case DType::iq4_xs:
      return unpack_tiles<DType::iq4_xs, iq4_xs>;
    case DType::mxfp4:
      return unpack_tiles<DType::mxfp4, mxfp4>;
    case DType::nvfp4:
      return unpack_tiles<DType::nvfp4, nvfp4>;
    default:
      return nullptr;
  }
}

}  // namespace ebb::cpu
