#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/hd.h"
#include "kernels/numeric.h"
#include "kernels/ops/attention.h"

// The stored form of one key-value row or index key; the layouts are described at RowFormat.
// n_rot tells the two apart: the rotating dims of a key-value row, 0 for an index key.

namespace ebb {

/// Bytes of a row. fp4 wants an even d.
EBB_HD inline std::int64_t row_bytes(RowFormat format, std::int32_t d, std::int32_t n_rot) {
  switch (format) {
    case RowFormat::f32:
      return 4 * static_cast<std::int64_t>(d);
    case RowFormat::f16:
      return 2 * static_cast<std::int64_t>(d);
    case RowFormat::fp8: {
      if (n_rot == 0) return static_cast<std::int64_t>(d) + 4;
      const std::int64_t n_still = d - n_rot;
      return (n_still + 2 * n_rot + (n_still + kFp8Block - 1) / kFp8Block + 7) / 8 * 8;
    }
    case RowFormat::fp4:
      return d / 2 + (d + kFp4Block - 1) / kFp4Block;
  }
  return 0;
}

EBB_HD inline void encode_row(RowFormat format, std::int32_t d, std::int32_t n_rot, const float* x,
                              std::byte* row) {
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(row);
  if (format == RowFormat::f32) {
    std::memcpy(row, x, static_cast<std::size_t>(d) * sizeof(float));
  } else if (format == RowFormat::f16) {
    for (std::int32_t i = 0; i < d; ++i) {
      const std::uint16_t half = float_to_f16(x[i]);
      std::memcpy(row + 2 * static_cast<std::int64_t>(i), &half, sizeof(half));
    }
  } else if (format == RowFormat::fp8 && n_rot == 0) {
    const float scale = fp8_scale(largest_magnitude(x, d));
    const float inverse = 1.0f / scale;
    for (std::int32_t i = 0; i < d; ++i) bytes[i] = float_to_e4m3(x[i] * inverse);
    std::memcpy(row + d, &scale, sizeof(scale));
  } else if (format == RowFormat::fp8) {
    const std::int32_t n_still = d - n_rot;
    for (std::int32_t i = 0; i < n_rot; ++i) {
      const std::uint16_t half = float_to_bf16(x[n_still + i]);
      std::memcpy(row + n_still + 2 * static_cast<std::int64_t>(i), &half, sizeof(half));
    }
    std::uint8_t* scales = bytes + n_still + 2 * static_cast<std::int64_t>(n_rot);
    for (std::int32_t begin = 0; begin < n_still; begin += kFp8Block) {
      const std::int32_t n = n_still - begin < kFp8Block ? n_still - begin : kFp8Block;
      const float scale = fp8_scale(largest_magnitude(x + begin, n));
      const float inverse = 1.0f / scale;
      for (std::int32_t i = begin; i < begin + n; ++i) bytes[i] = float_to_e4m3(x[i] * inverse);
      *scales++ = power_of_two_to_e8m0(scale);
    }
    std::uint8_t* const end = bytes + row_bytes(format, d, n_rot);
    while (scales < end) *scales++ = 0;
  } else {
    for (std::int32_t begin = 0; begin < d; begin += kFp4Block) {
      const std::int32_t n = d - begin < kFp4Block ? d - begin : kFp4Block;
      const float scale = fp4_scale(largest_magnitude(x + begin, n));
      for (std::int32_t i = begin; i < begin + n; i += 2) {
        bytes[i / 2] = static_cast<std::uint8_t>(float_to_e2m1(x[i] / scale) |
                                                 (float_to_e2m1(x[i + 1] / scale) << 4));
      }
      bytes[d / 2 + begin / kFp4Block] = power_of_two_to_e8m0(scale);
    }
  }
}

/// Value i of a stored row.
EBB_HD inline float decode_value(RowFormat format, std::int32_t d, std::int32_t n_rot,
                                 const std::byte* row, std::int32_t i) {
  const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(row);
  if (format == RowFormat::f32) {
    float value;
    std::memcpy(&value, row + 4 * static_cast<std::int64_t>(i), sizeof(value));
    return value;
  }
  if (format == RowFormat::f16) {
    std::uint16_t half;
    std::memcpy(&half, row + 2 * static_cast<std::int64_t>(i), sizeof(half));
    return f16_to_float(half);
  }
  if (format == RowFormat::fp8 && n_rot == 0) {
    float scale;
    std::memcpy(&scale, row + d, sizeof(scale));
    return scale * e4m3_to_float(bytes[i]);
  }
  if (format == RowFormat::fp8) {
    const std::int32_t n_still = d - n_rot;
    if (i >= n_still) {
      std::uint16_t half;
      std::memcpy(&half, row + n_still + 2 * static_cast<std::int64_t>(i - n_still), sizeof(half));
      return bf16_to_float(half);
    }
    const float scale = e8m0_to_float(bytes[n_still + 2 * n_rot + i / kFp8Block]);
    return scale * e4m3_to_float(bytes[i]);
  }
  const float scale = e8m0_to_float(bytes[d / 2 + i / kFp4Block]);
  const int code = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
  return scale * e2m1_to_float(static_cast<std::uint8_t>(code));
}

EBB_HD inline void decode_row(RowFormat format, std::int32_t d, std::int32_t n_rot,
                              const std::byte* row, float* x) {
  for (std::int32_t i = 0; i < d; ++i) x[i] = decode_value(format, d, n_rot, row, i);
}

/// Address of row `row` of sequence `seq`.
EBB_HD inline std::byte* row_at(const RowStore& store, std::int32_t seq, std::int64_t row) {
  return store.data + seq * store.sequence_bytes + row * store.row_bytes;
}

/// Address of the row's slot, nullptr if it has none.
EBB_HD inline std::byte* slot_at(const RowStore& store, const SlotStore& slots, std::int32_t seq,
                                 std::int64_t row) {
  if (slots.slot_of == nullptr) return nullptr;
  const std::int32_t slot = slots.slot_of[seq * store.n_rows + row];
  return slot < 0 ? nullptr : slots.slots + seq * slots.sequence_bytes + slot * store.row_bytes;
}

}  // namespace ebb
