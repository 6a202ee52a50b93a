#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/hd.h"
#include "kernels/ops/dense.h"

// Stored blocks have odd sizes (34, 66, 84 bytes), so that wide loads from them are not aligned. On
// the device the same bytes are kept as planes: field 0 of all blocks, then field 1 of all blocks,
// and so on, each field aligned to its size's largest power of two up to 16. A matrix takes as many
// bytes as before. Blocks are numbered matrix by matrix, row by row.

namespace ebb::cuda {

inline constexpr int kMaxFields = 4;

struct Field {
  std::int32_t offset = 0;  ///< in the stored block
  std::int32_t bytes = 0;
};

struct BlockFields {
  std::int32_t n_fields = 0;  ///< 0: the type cannot be used here
  std::array<Field, kMaxFields> fields{};
};

/// Fields of a stored type, largest first.
constexpr BlockFields block_fields(DType type) noexcept {
  switch (type) {
    case DType::f32:
      return {1, {{{0, 4}}}};
    case DType::f16:
    case DType::bf16:
      return {1, {{{0, 2}}}};
    case DType::q8_0:  // quants, d
      return {2, {{{2, 32}, {0, 2}}}};
    case DType::mxfp4:  // quants, e
      return {2, {{{1, 16}, {0, 1}}}};
    case DType::iq2_xxs:  // codes, d
      return {2, {{{2, 64}, {0, 2}}}};
    case DType::q2_k:  // quants, scales, d and dmin
      return {3, {{{16, 64}, {0, 16}, {80, 4}}}};
    case DType::q4_k:  // quants; d, dmin and scales
      return {2, {{{16, 128}, {0, 16}}}};
    case DType::q6_k:  // low bits, high bits, scales, d
      return {4, {{{0, 128}, {128, 64}, {192, 16}, {208, 2}}}};
    default:
      return {};
  }
}

/// Where the planes of a matrix begin.
struct Planes {
  const std::uint8_t* plane[kMaxFields] = {};
};

inline Planes planes_of(const Weight& weight) noexcept {
  const BlockFields fields = block_fields(weight.type);
  const std::int64_t blocks =
      weight.n_mats * weight.n_out * (weight.n_in / dtype_traits(weight.type)->block_values);
  Planes planes;
  const auto* at = reinterpret_cast<const std::uint8_t*>(weight.data);
  for (std::int32_t i = 0; i < fields.n_fields; ++i) {
    planes.plane[i] = at;
    at += blocks * fields.fields[static_cast<std::size_t>(i)].bytes;
  }
  return planes;
}

/// Spreads `n_blocks` stored blocks at `stored` over the planes of a matrix of `total_blocks` at
/// `target`; the first of them is block `first`.
cudaError_t spread_blocks(const Launch& launch, DType type, const std::byte* stored,
                          std::int64_t n_blocks, std::byte* target, std::int64_t first,
                          std::int64_t total_blocks);

/// F16 or BF16 to f32.
cudaError_t widen_floats(const Launch& launch, DType type, const std::byte* stored,
                         std::int64_t count, float* target);

}  // namespace ebb::cuda
