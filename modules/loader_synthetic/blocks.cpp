// Random blocks. The payload of a block is uniform over its codes; the scale that turns a payload
// of known mean square into the wanted one follows from the type's formula (model reference section
// 6). Types with minima get a minimum that centres them.

#include "modules/loader_synthetic/blocks.h"

#include <cmath>
#include <cstring>

#include "kernels/numeric.h"
#include "kernels/quant_grids.h"

namespace ebb::synthetic {
namespace {

void put_f16(std::byte* at, float value) {
  const std::uint16_t half = float_to_f16(value);
  std::memcpy(at, &half, 2);
}

void fill_random(Random& random, std::byte* at, std::size_t n) {
  for (; n >= 8; n -= 8, at += 8) {
    const std::uint64_t value = random.next();
    std::memcpy(at, &value, 8);
  }
  for (; n > 0; --n, ++at) *at = static_cast<std::byte>(random.next() >> 56);
}

void q8_0(std::byte* block, float rms, Random& random) {
  put_f16(block, rms / 73.6F);  // rms of -127..127
  for (int i = 0; i < 32; ++i) {
    block[2 + i] = static_cast<std::byte>(static_cast<int>(random.below(255)) - 127);
  }
}

void q2_k(std::byte* block, float rms, Random& random) {
  // value = d * s * (q - 1.5) with the minimum 1.5 * d * s: rms 10.17 d for s in 1..15.
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t s = 1 + random.below(15);
    block[i] = static_cast<std::byte>(s | s << 4);
  }
  fill_random(random, block + 16, 64);
  put_f16(block + 80, rms / 10.17F);
  put_f16(block + 82, 1.5F * rms / 10.17F);
}

void q4_k(std::byte* block, float rms, Random& random) {
  // value = d * s * (q - 7.5) with the minimum 7.5 * d * s: rms 169.7 d for s in 1..63.
  put_f16(block, rms / 169.7F);
  put_f16(block + 2, 7.5F * rms / 169.7F);
  std::uint32_t s[8];
  for (std::uint32_t& scale : s) scale = 1 + random.below(63);
  for (int j = 0; j < 4; ++j) {
    // Six bits of scale j and of minimum j; the high bits of scale and minimum j + 4 on top.
    block[4 + j] = static_cast<std::byte>(s[j] | (s[j + 4] >> 4) << 6);
    block[8 + j] = static_cast<std::byte>(s[j] | (s[j + 4] >> 4) << 6);
    block[12 + j] = static_cast<std::byte>((s[j + 4] & 15) | (s[j + 4] & 15) << 4);
  }
  fill_random(random, block + 16, 128);
}

void q6_k(std::byte* block, float rms, Random& random) {
  fill_random(random, block, 192);
  for (int i = 0; i < 16; ++i) {
    const int s = 1 + static_cast<int>(random.below(32));
    block[192 + i] = static_cast<std::byte>((random.next() >> 63) != 0 ? s : -s);
  }
  put_f16(block + 208, rms / 349.4F);  // rms of q in -32..31 times that of s
}

void iq2_xxs(std::byte* block, float rms, Random& random, float grid_rms) {
  fill_random(random, block + 2, 64);
  put_f16(block, rms / (2.308F * grid_rms));  // rms of (0.5 + s) / 4 for s in 0..15
}

void mxfp4(std::byte* block, float rms, Random& random) {
  // The scale is a power of two; drawing it from two neighbours centres the rms on the wanted one.
  const int exponent = static_cast<int>(std::floor(std::log2(rms / 2.926F) + 0.21F));
  block[0] = static_cast<std::byte>(127 + exponent - static_cast<int>(random.next() >> 63));
  fill_random(random, block + 1, 16);
}

float iq2_xxs_grid_rms() {
  double sum = 0;
  for (const std::uint64_t word : kernels::kGridIq2Xxs) {
    for (int i = 0; i < 8; ++i) {
      const auto magnitude = static_cast<double>(word >> (8 * i) & 255);
      sum += magnitude * magnitude;
    }
  }
  return static_cast<float>(std::sqrt(sum / (256 * 8)));
}

}  // namespace

std::uint64_t Random::next() noexcept {
  std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::uint32_t Random::below(std::uint32_t bound) noexcept {
  return static_cast<std::uint32_t>((next() >> 32) * bound >> 32);
}

float Random::normal() noexcept {
  const std::uint64_t bits = next();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xFFFF);
  // Each term is uniform on 0..65535: mean 32767.5, standard deviation 18918.6.
  return (sum - 4 * 32767.5F) / (2 * 18918.6F);
}

bool can_fill(DType type) noexcept {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0:
    case DType::q2_k:
    case DType::q4_k:
    case DType::q6_k:
    case DType::iq2_xxs:
    case DType::mxfp4:
      return true;
    default:
      return false;
  }
}

void fill_blocks(DType type, float rms, Random& random, std::span<std::byte> bytes) noexcept {
  const auto step = static_cast<std::size_t>(dtype_traits(type)->block_bytes);
  const float grid_rms = type == DType::iq2_xxs ? iq2_xxs_grid_rms() : 0;
  for (std::size_t at = 0; at + step <= bytes.size(); at += step) {
    std::byte* const block = bytes.data() + at;
    switch (type) {
      case DType::f32: {
        const float value = rms * random.normal();
        std::memcpy(block, &value, 4);
        break;
      }
      case DType::f16:
        put_f16(block, rms * random.normal());
        break;
      case DType::bf16: {
        const std::uint16_t half = float_to_bf16(rms * random.normal());
        std::memcpy(block, &half, 2);
        break;
      }
      case DType::q8_0:
        q8_0(block, rms, random);
        break;
      case DType::q2_k:
        q2_k(block, rms, random);
        break;
      case DType::q4_k:
        q4_k(block, rms, random);
        break;
      case DType::q6_k:
        q6_k(block, rms, random);
        break;
      case DType::iq2_xxs:
        iq2_xxs(block, rms, random, grid_rms);
        break;
      case DType::mxfp4:
        mxfp4(block, rms, random);
        break;
      default:
        break;
    }
  }
}

}  // namespace ebb::synthetic
