// Vector loops compiled once per instruction set; Highway picks one at run time. Whole vectors come
// first, in lanes that are folded at the end in a fixed order; what is left over is padded with
// zeros and treated as one more vector, so no byte behind an array is touched.

#include "kernels/cpu/vector.h"

#include <cmath>
#include <cstring>

#include "kernels/hyper.h"
#include "kernels/numeric.h"
#include "kernels/rope.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

Vector load_part(const float* x, std::int64_t n) {
  const Tag tag;
  HWY_ALIGN float lanes[hn::MaxLanes(tag)] = {};
  std::memcpy(lanes, x, static_cast<std::size_t>(n) * sizeof(float));
  return hn::Load(tag, lanes);
}

void store_part(Vector v, float* y, std::int64_t n) {
  const Tag tag;
  HWY_ALIGN float lanes[hn::MaxLanes(tag)];
  hn::Store(v, tag, lanes);
  std::memcpy(y, lanes, static_cast<std::size_t>(n) * sizeof(float));
}

float InverseRms(const float* x, std::int64_t n, float eps) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  Vector sums[4] = {hn::Zero(tag), hn::Zero(tag), hn::Zero(tag), hn::Zero(tag)};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) {
      const Vector v = hn::LoadU(tag, x + i + k * lanes);
      sums[k] = hn::MulAdd(v, v, sums[k]);
    }
  }
  for (; i + lanes <= n; i += lanes) {
    const Vector v = hn::LoadU(tag, x + i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  if (i < n) {
    const Vector v = load_part(x + i, n - i);
    sums[1] = hn::MulAdd(v, v, sums[1]);
  }
  const Vector sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  const float mean = hn::GetLane(hn::SumOfLanes(tag, sum)) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

void RmsNorm(const float* x, const float* weight, float* y, std::int64_t n, float eps) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const Vector scale = hn::Set(tag, InverseRms(x, n, eps));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    Vector v = hn::Mul(hn::LoadU(tag, x + i), scale);
    if (weight != nullptr) v = hn::Mul(v, hn::LoadU(tag, weight + i));
    hn::StoreU(v, tag, y + i);
  }
  if (i < n) {
    Vector v = hn::Mul(load_part(x + i, n - i), scale);
    if (weight != nullptr) v = hn::Mul(v, load_part(weight + i, n - i));
    store_part(v, y + i, n - i);
  }
}

void WeightedStreams(const float* x, std::int64_t stride, const float* weight,
                     std::int32_t n_streams, float* y, std::int64_t n) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t i = 0; i < n; i += lanes) {
    const bool whole = i + lanes <= n;
    Vector sum = hn::Zero(tag);
    for (std::int32_t s = 0; s < n_streams; ++s) {
      const float* const at = x + s * stride + i;
      sum = hn::MulAdd(hn::Set(tag, weight[s]), whole ? hn::LoadU(tag, at) : load_part(at, n - i),
                       sum);
    }
    if (whole) {
      hn::StoreU(sum, tag, y + i);
    } else {
      store_part(sum, y + i, n - i);
    }
  }
}

void MixStreams(const float* o, const float* post, const float* comb, float* streams,
                std::int32_t n_streams, std::int64_t n) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t i = 0; i < n; i += lanes) {
    const bool whole = i + lanes <= n;
    const std::int64_t left = n - i;
    const Vector add = whole ? hn::LoadU(tag, o + i) : load_part(o + i, left);
    Vector old[kMaxStreams];
    for (std::int32_t j = 0; j < n_streams; ++j) {
      const float* const at = streams + j * n + i;
      old[j] = whole ? hn::LoadU(tag, at) : load_part(at, left);
    }
    for (std::int32_t k = 0; k < n_streams; ++k) {
      Vector sum = hn::Mul(hn::Set(tag, post[k]), add);
      for (std::int32_t j = 0; j < n_streams; ++j) {
        sum = hn::MulAdd(hn::Set(tag, comb[j * n_streams + k]), old[j], sum);
      }
      if (whole) {
        hn::StoreU(sum, tag, streams + k * n + i);
      } else {
        store_part(sum, streams + k * n + i, left);
      }
    }
  }
}

std::int64_t Argmax(const float* x, std::int64_t n) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const Vector lowest = hn::Set(tag, -INFINITY);
  Vector best = lowest;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vector v = hn::LoadU(tag, x + i);
    best = hn::Max(best, hn::IfThenElse(hn::IsNaN(v), lowest, v));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(tag, best));
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  const Vector target = hn::Set(tag, largest);
  for (i = 0; i + lanes <= n; i += lanes) {
    if (!hn::AllFalse(tag, hn::Eq(hn::LoadU(tag, x + i), target))) break;
  }
  for (; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

/// Butterflies over distances 1, 2, 4, ..., the widest vectors that a distance fills.
void Hadamard(float* x, std::int32_t n) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(n));
  const auto pass = [&](const auto tag, std::int32_t half) {
    const std::int32_t lanes = static_cast<std::int32_t>(hn::Lanes(tag));
    for (std::int32_t begin = 0; begin < n; begin += 2 * half) {
      for (std::int32_t i = begin; i < begin + half; i += lanes) {
        const auto a = hn::LoadU(tag, x + i), b = hn::LoadU(tag, x + i + half);
        hn::StoreU(hn::Add(a, b), tag, x + i);
        hn::StoreU(hn::Sub(a, b), tag, x + i + half);
      }
    }
  };
  std::int32_t half = 1;
#if HWY_TARGET != HWY_SCALAR
  if (n >= 4) {
    // Distances 1 and 2 inside vectors of 4: the partner comes by a shuffle, the own value turns
    // its sign in the upper place.
    const hn::FixedTag<float, 4> quad;
    HWY_ALIGN static constexpr std::uint32_t kSigns[2][4] = {{0, 1u << 31, 0, 1u << 31},
                                                             {0, 0, 1u << 31, 1u << 31}};
    const hn::RebindToUnsigned<decltype(quad)> bits;
    const auto sign1 = hn::BitCast(quad, hn::Load(bits, kSigns[0]));
    const auto sign2 = hn::BitCast(quad, hn::Load(bits, kSigns[1]));
    for (std::int32_t i = 0; i < n; i += 4) {
      auto v = hn::LoadU(quad, x + i);
      v = hn::Add(hn::Shuffle2301(v), hn::Xor(v, sign1));
      v = hn::Add(hn::Shuffle1032(v), hn::Xor(v, sign2));
      hn::StoreU(v, quad, x + i);
    }
    for (half = 4; half < n && half < 16; half *= 2) {
      if (half == 8) {
        pass(hn::CappedTag<float, 8>(), half);
      } else {
        pass(quad, half);
      }
    }
  }
#endif
  for (; half < n; half *= 2) {
    if (half >= 16) {
      pass(hn::CappedTag<float, 16>(), half);
    } else {
      pass(hn::CappedTag<float, 1>(), half);
    }
  }
  const hn::CappedTag<float, 16> tag;
  const std::int32_t lanes = static_cast<std::int32_t>(hn::Lanes(tag));
  std::int32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, scale)), tag, x + i);
  }
  for (; i < n; ++i) x[i] *= scale;
}

/// rotate_pair or rotate_pair_back for n_pairs adjacent pairs, with the same bits.
void Rotate(float* x, const float* cos_sin, std::int32_t n_pairs, bool back) {
  std::int32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 16> tag;
  const hn::RebindToUnsigned<decltype(tag)> bits;
  const std::int32_t lanes = static_cast<std::int32_t>(hn::Lanes(tag));
  // (a, b) becomes (a cos - b sin, b cos + a sin); back, the other sign.
  const auto first = hn::BitCast(tag, hn::OddEven(hn::Zero(bits), hn::Set(bits, 1u << 31)));
  const auto second = hn::BitCast(tag, hn::OddEven(hn::Set(bits, 1u << 31), hn::Zero(bits)));
  const auto sign = back ? second : first;
  for (; i + lanes <= 2 * n_pairs; i += lanes) {
    const auto v = hn::LoadU(tag, x + i), angle = hn::LoadU(tag, cos_sin + i);
    const auto other = hn::Mul(hn::Shuffle2301(v), hn::DupOdd(angle));
    hn::StoreU(hn::Add(hn::Mul(v, hn::DupEven(angle)), hn::Xor(other, sign)), tag, x + i);
  }
#endif
  for (; i < 2 * n_pairs; i += 2) {
    if (back) {
      rotate_pair_back(x + i, cos_sin + i);
    } else {
      rotate_pair(x + i, cos_sin + i);
    }
  }
}

/// Largest magnitude of n values, a multiple of the lanes; NaNs are passed over.
float LargestMagnitude(const float* x, std::int32_t n) {
  const hn::CappedTag<float, 16> tag;
  auto best = hn::Zero(tag);
  for (std::int32_t i = 0; i < n; i += static_cast<std::int32_t>(hn::Lanes(tag))) {
    const auto v = hn::Abs(hn::LoadU(tag, x + i));
    best = hn::IfThenElse(hn::Lt(best, v), v, best);
  }
  return hn::GetLane(hn::MaxOfLanes(tag, best));
}

/// simulate_fp8_block for a whole block of kFp8Block values, with the same bits.
void SimulateFp8Block(float* x) {
  const hn::CappedTag<float, 16> tag;
  const hn::RebindToUnsigned<decltype(tag)> bits;
  const float scale = fp8_scale(LargestMagnitude(x, kFp8Block));
  const auto factor = hn::Set(tag, scale), inverse = hn::Set(tag, 1.0f / scale);
  const auto shift = hn::Set(tag, 16384.0f);  // its last bit is worth 2^-9
  for (int i = 0; i < kFp8Block; i += static_cast<int>(hn::Lanes(tag))) {
    const auto v = hn::Mul(hn::LoadU(tag, x + i), inverse);
    const auto magnitude = hn::Min(hn::Abs(v), hn::Set(tag, kE4m3Max));
    const auto b = hn::BitCast(bits, magnitude);
    const auto odd = hn::And(hn::ShiftRight<20>(b), hn::Set(bits, 1));
    const auto rounded =
        hn::AndNot(hn::Set(bits, 0xfffffu), hn::Add(hn::Add(b, hn::Set(bits, 0x7ffffu)), odd));
    auto result =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 0.015625f)),
                       hn::Sub(hn::Add(magnitude, shift), shift), hn::BitCast(tag, rounded));
    result = hn::IfThenElse(hn::IsNaN(v), v, result);
    hn::StoreU(hn::Mul(factor, hn::CopySign(result, v)), tag, x + i);
  }
}

/// simulate_fp4_block for a whole block of kFp4Block values, with the same bits.
void SimulateFp4Block(float* x) {
  const hn::CappedTag<float, 16> tag;
  const float scale = fp4_scale(LargestMagnitude(x, kFp4Block));
  const auto factor = hn::Set(tag, scale), inverse = hn::Set(tag, 1.0f / scale);
  for (int i = 0; i < kFp4Block; i += static_cast<int>(hn::Lanes(tag))) {
    const auto v = hn::Mul(hn::LoadU(tag, x + i), inverse);
    const auto magnitude = hn::Abs(v);
    // Adding 2^22 leaves steps of 1/2, as below 2; 2^23 steps of 1, below 4; 2^24 steps of 2.
    const auto shift =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 2.0f)), hn::Set(tag, 4194304.0f),
                       hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 4.0f)),
                                      hn::Set(tag, 8388608.0f), hn::Set(tag, 16777216.0f)));
    auto result = hn::Sub(hn::Add(magnitude, shift), shift);
    result = hn::IfThenZeroElse(hn::IsNaN(v), result);
    hn::StoreU(hn::Mul(factor, hn::CopySign(result, v)), tag, x + i);
  }
}

void round_to_bf16(float* x, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
}

void RopeAndRound(float* x, std::int32_t d, const float* cos_sin, std::int32_t n_pairs,
                  Rounding rounding) {
  const std::int32_t n_still = d - 2 * n_pairs;
  if (rounds_to_bf16(rounding)) round_to_bf16(x, d);
  Rotate(x + n_still, cos_sin, n_pairs, false);
  switch (rounding) {
    case Rounding::none:
      break;
    case Rounding::bf16:
      round_to_bf16(x + n_still, 2 * n_pairs);
      break;
    case Rounding::bf16_hadamard:
      round_to_bf16(x + n_still, 2 * n_pairs);
      Hadamard(x, d);
      break;
    case Rounding::fp8_nope:
      for (std::int32_t i = 0; i < n_still; i += kFp8Block) {
        if (i + kFp8Block <= n_still) {
          SimulateFp8Block(x + i);
        } else {
          simulate_fp8_block(x + i, n_still - i);
        }
      }
      break;
    case Rounding::hadamard:
      Hadamard(x, d);
      break;
    case Rounding::hadamard_fp4:
      Hadamard(x, d);
      for (std::int32_t i = 0; i < d; i += kFp4Block) {
        if (i + kFp4Block <= d) {
          SimulateFp4Block(x + i);
        } else {
          simulate_fp4_block(x + i, d - i);
        }
      }
      break;
  }
}

}  // namespace
}  // namespace ebb::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

HWY_EXPORT(InverseRms);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(WeightedStreams);
HWY_EXPORT(MixStreams);
HWY_EXPORT(Argmax);
HWY_EXPORT(Hadamard);
HWY_EXPORT(Rotate);
HWY_EXPORT(RopeAndRound);

float inverse_rms(const float* x, std::int64_t n, float eps) {
  return HWY_DYNAMIC_DISPATCH(InverseRms)(x, n, eps);
}
void rms_norm_vector(const float* x, const float* weight, float* y, std::int64_t n, float eps) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, y, n, eps);
}
void weighted_streams(const float* x, std::int64_t stride, const float* weight,
                      std::int32_t n_streams, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(WeightedStreams)(x, stride, weight, n_streams, y, n);
}
void mix_streams(const float* o, const float* post, const float* comb, float* streams,
                 std::int32_t n_streams, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(MixStreams)(o, post, comb, streams, n_streams, n);
}
std::int64_t argmax_vector(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Argmax)(x, n);
}
void hadamard_vector(float* x, std::int32_t n) { HWY_DYNAMIC_DISPATCH(Hadamard)(x, n); }
void rotate_back(float* x, const float* cos_sin, std::int32_t n_pairs) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, cos_sin, n_pairs, true);
}
void rope_and_round(float* x, std::int32_t d, const float* cos_sin, std::int32_t n_pairs,
                    Rounding rounding) {
  HWY_DYNAMIC_DISPATCH(RopeAndRound)(x, d, cos_sin, n_pairs, rounding);
}

}  // namespace ebb::cpu
#endif
