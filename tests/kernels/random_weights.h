#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/numeric.h"
#include "kernels/ops/dense.h"

namespace ebb::test {

/// Types that hold weights.
inline constexpr DType kWeightTypes[] = {
    DType::f32,    DType::f16,    DType::bf16,    DType::q8_0,  DType::q2_k,
    DType::q3_k,   DType::q4_k,   DType::q5_k,    DType::q6_k,  DType::iq2_xxs,
    DType::iq2_xs, DType::iq2_s,  DType::iq3_xxs, DType::iq3_s, DType::iq1_s,
    DType::iq1_m,  DType::iq4_nl, DType::iq4_xs,  DType::mxfp4, DType::nvfp4,
};

inline void put_u16(std::byte* at, std::uint32_t value) {
  at[0] = static_cast<std::byte>(value & 255);
  at[1] = static_cast<std::byte>(value >> 8);
}

/// Makes the scale fields of a block of random bytes ordinary numbers.
inline void put_scales(DType type, std::byte* block, std::mt19937& random) {
  std::uniform_real_distribution<float> magnitude(0.002f, 0.02f);
  const auto half = [&] {
    const float value = magnitude(random);
    return static_cast<std::uint32_t>(float_to_f16((random() & 1) != 0 ? -value : value));
  };
  switch (type) {
    case DType::q2_k:
      put_u16(block + 80, half());
      put_u16(block + 82, half());
      break;
    case DType::q3_k:
      put_u16(block + 108, half());
      break;
    case DType::q4_k:
    case DType::q5_k:
      put_u16(block, half());
      put_u16(block + 2, half());
      break;
    case DType::q6_k:
      put_u16(block + 208, half());
      break;
    case DType::iq1_m: {
      const std::uint32_t d = half();
      for (int i = 0; i < 4; ++i) {  // a nibble of d is on top of each of the last four words
        std::byte& top = block[49 + 2 * i];
        top = static_cast<std::byte>((static_cast<unsigned>(top) & 15) | (d >> (4 * i) & 15) << 4);
      }
      break;
    }
    case DType::mxfp4:
      block[0] = static_cast<std::byte>(120 + random() % 6);
      break;
    case DType::nvfp4:
      for (int i = 0; i < 4; ++i) block[i] = static_cast<std::byte>(24 + random() % 24);
      break;
    default:
      put_u16(block, half());
      break;
  }
}

/// Random weights of a type with values around 1; owns the bytes that `weight` points to.
struct RandomWeight {
  RandomWeight(DType type, std::int64_t n_out, std::int64_t n_in, std::uint32_t seed,
               std::int64_t n_mats = 1) {
    const DTypeTraits& traits = *dtype_traits(type);
    std::mt19937 random(seed);
    bytes.resize(static_cast<std::size_t>(row_bytes(type, n_in) * n_out * n_mats));
    const auto block_bytes = static_cast<std::size_t>(traits.block_bytes);
    std::normal_distribution<float> normal;
    for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
      std::byte* const block = bytes.data() + at;
      if (type == DType::f32) {
        const float value = normal(random);
        std::memcpy(block, &value, 4);
      } else if (type == DType::f16) {
        put_u16(block, float_to_f16(normal(random)));
      } else if (type == DType::bf16) {
        put_u16(block, float_to_bf16(normal(random)));
      } else {
        for (std::size_t i = 0; i < block_bytes; ++i) block[i] = static_cast<std::byte>(random());
        put_scales(type, block, random);
      }
    }
    weight = Weight{bytes.data(), type, n_in, n_out, n_mats};
  }
  RandomWeight(const RandomWeight&) = delete;
  RandomWeight& operator=(const RandomWeight&) = delete;

  std::vector<std::byte> bytes;
  Weight weight;
};

inline std::vector<float> random_floats(std::int64_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace ebb::test
