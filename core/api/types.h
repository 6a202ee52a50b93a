#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ebb {

/// Element types of tensors and KV rows; the numbers are GGUF's type ids.
enum class DType : std::int32_t {
  f32 = 0,
  f16 = 1,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i32 = 26,
  iq1_m = 29,
  bf16 = 30,
  mxfp4 = 39,
  nvfp4 = 40,
};

/// Size of one stored block of a type.
struct DTypeTraits {
  DType type;
  const char* name;           ///< as printed, e.g. "Q8_0"
  std::int32_t block_values;  ///< values a block holds
  std::int32_t block_bytes;   ///< bytes a block takes
};

inline constexpr std::array<DTypeTraits, 22> kDTypes{{
    {DType::f32, "F32", 1, 4},           {DType::f16, "F16", 1, 2},
    {DType::q8_0, "Q8_0", 32, 34},       {DType::q2_k, "Q2_K", 256, 84},
    {DType::q3_k, "Q3_K", 256, 110},     {DType::q4_k, "Q4_K", 256, 144},
    {DType::q5_k, "Q5_K", 256, 176},     {DType::q6_k, "Q6_K", 256, 210},
    {DType::q8_k, "Q8_K", 256, 292},     {DType::iq2_xxs, "IQ2_XXS", 256, 66},
    {DType::iq2_xs, "IQ2_XS", 256, 74},  {DType::iq3_xxs, "IQ3_XXS", 256, 98},
    {DType::iq1_s, "IQ1_S", 256, 50},    {DType::iq4_nl, "IQ4_NL", 32, 18},
    {DType::iq3_s, "IQ3_S", 256, 110},   {DType::iq2_s, "IQ2_S", 256, 82},
    {DType::iq4_xs, "IQ4_XS", 256, 136}, {DType::i32, "I32", 1, 4},
    {DType::iq1_m, "IQ1_M", 256, 56},    {DType::bf16, "BF16", 1, 2},
    {DType::mxfp4, "MXFP4", 32, 17},     {DType::nvfp4, "NVFP4", 64, 36},
}};

/// Traits of `type`, or nullptr for an id that is not in the table.
constexpr const DTypeTraits* dtype_traits(DType type) noexcept {
  for (const DTypeTraits& traits : kDTypes) {
    if (traits.type == type) return &traits;
  }
  return nullptr;
}

/// Bytes of one row of `n_values` values; n_values must be a multiple of the block.
constexpr std::int64_t row_bytes(DType type, std::int64_t n_values) noexcept {
  const DTypeTraits* traits = dtype_traits(type);
  return n_values / traits->block_values * traits->block_bytes;
}

/// A tensor in host memory as a loader holds it; borrowed until the loader is destroyed.
/// `ne[0]` is the contiguous dimension (GGUF order): a matrix [out, in] has ne = {in, out, 1, 1}.
struct TensorView {
  std::string_view name;
  DType type = DType::f32;
  std::int32_t n_dims = 1;
  std::array<std::int64_t, 4> ne{1, 1, 1, 1};
  const std::byte* data = nullptr;  ///< whole blocks, no alignment promised
  std::uint64_t n_bytes = 0;
};

/// A matrix [n_out, n_in] in stored blocks, or `n_mats` of them one after another (experts), in
/// compute memory.
struct Weight {
  const std::byte* data = nullptr;
  DType type = DType::f32;
  std::int64_t n_in = 0;
  std::int64_t n_out = 0;
  std::int64_t n_mats = 1;
};

}  // namespace ebb
