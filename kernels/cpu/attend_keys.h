#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/chunks.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/attention.h"
#include "kernels/row_format.h"

// The part of attend that is not arithmetic: which keys a row reads, where they lie, and the
// scratch of a task. Only attend.cpp includes this.

namespace ebb::cpu {

inline constexpr std::int32_t kMaxTile = 64;   // most keys per pass
inline constexpr std::int32_t kHeadGroup = 4;  // heads in registers at a time
inline constexpr std::int32_t kMaxLanes = 16;  // widths are padded to this many floats

inline std::int32_t round_up(std::int32_t value, std::int32_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct AttendPlan {
  AttendArgs args;
  std::int32_t ring_rot = 0;  // n_rot of row_format.h
  std::int32_t chunk_rot = 0;
  std::int32_t d_padded = 0;
  std::int32_t tile = 0;  // keys per pass
};

/// Keys per pass: as many as leave the rows in the first-level cache. Part of the result's bits,
/// hence a matter of the width alone.
inline std::int32_t tile_keys(std::int32_t d_padded) {
  return std::clamp(8192 / d_padded / 16 * 16, 16, kMaxTile);
}

/// A task's scratch, carved in this order; widths padded with zeros.
struct AttendScratch {
  float* q;        // [heads, d_padded]
  float* sum;      // [heads, d_padded] running weighted sums
  float* tile;     // [tile, d_padded] decoded rows
  float* weight;   // [heads, tile] scores, then softmax weights
  float* largest;  // [heads] running maximum
  float* total;    // [heads] running denominator
  float* rescale;  // [heads] what the sums are multiplied by in this tile

  static std::size_t bytes(std::int32_t heads, const AttendPlan& plan) {
    return sizeof(float) * (static_cast<std::size_t>(2 * heads + plan.tile) *
                                static_cast<std::size_t>(plan.d_padded) +
                            static_cast<std::size_t>(heads) * static_cast<std::size_t>(plan.tile) +
                            3 * static_cast<std::size_t>(round_up(heads, kMaxLanes)));
  }
  AttendScratch(std::byte* memory, std::int32_t heads, const AttendPlan& plan) {
    float* at = reinterpret_cast<float*>(memory);
    const auto take = [&](std::int32_t count, std::int32_t width) {
      float* const place = at;
      at += static_cast<std::int64_t>(count) * width;
      return place;
    };
    q = take(heads, plan.d_padded);
    sum = take(heads, plan.d_padded);
    tile = take(plan.tile, plan.d_padded);
    weight = take(heads, plan.tile);
    largest = take(round_up(heads, kMaxLanes), 1);
    total = take(round_up(heads, kMaxLanes), 1);
    rescale = take(round_up(heads, kMaxLanes), 1);
  }
};

/// The keys of one row, in order: window, then chunks.
struct KeyList {
  std::int32_t window_first;
  std::int32_t n_window;
  std::int32_t n_keys;
  const std::int32_t* ids;

  KeyList(const AttendArgs& a, std::int32_t row) {
    const std::int32_t pos = a.step.pos[row];
    window_first = window_begin(pos, a.window);
    n_window = pos - window_first + 1;
    n_keys = n_window;
    ids = nullptr;
    if (a.chunks.data == nullptr) return;
    if (a.ids != nullptr) {
      ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
      n_keys += a.count[row];
    } else {
      n_keys += visible_chunks(pos, a.ratio);
    }
  }
};

/// A key's stored row.
inline const std::byte* key_row(const AttendArgs& a, std::int32_t seq, const KeyList& keys,
                                std::int32_t key) {
  if (key < keys.n_window) {
    return row_at(a.ring, seq, ring_index(keys.window_first + key, a.ring.n_rows));
  }
  const std::int32_t at = key - keys.n_window;
  const std::int32_t chunk = keys.ids != nullptr ? keys.ids[at] : at;
  const std::byte* const slot = slot_at(a.chunks, a.slots, seq, chunk);
  return slot != nullptr ? slot : row_at(a.chunks, seq, chunk);
}

/// Points `rows` at the keys [first, first + n) of the list, decoding where needed.
inline void load_tile(const AttendPlan& plan, std::int32_t row, const KeyList& keys,
                      std::int32_t first, std::int32_t n, float* tile, const float** rows) {
  const AttendArgs& a = plan.args;
  const std::int32_t seq = a.step.seq[row];
  for (std::int32_t j = 0; j < n; ++j) {
    const bool in_window = first + j < keys.n_window;
    const RowFormat format = in_window ? a.ring.format : a.chunks.format;
    const std::byte* const stored = key_row(a, seq, keys, first + j);
    if (format == RowFormat::f32 && a.d == plan.d_padded) {
      rows[j] = reinterpret_cast<const float*>(stored);
    } else {
      float* const decoded = tile + static_cast<std::int64_t>(j) * plan.d_padded;
      decode_row_fast(format, a.d, in_window ? plan.ring_rot : plan.chunk_rot, stored, decoded);
      rows[j] = decoded;
    }
  }
  // The score loop takes keys in groups: let the last group be whole.
  for (std::int32_t j = n; j % 4 != 0; ++j) rows[j] = rows[n - 1];
  // Chosen chunks lie anywhere: ask for the next tile's while this one is worked on.
  const std::int32_t end = std::min(first + n + plan.tile, keys.n_keys);
  for (std::int32_t key = std::max(first + n, keys.n_window); key < end; ++key) {
    const std::byte* const stored = key_row(a, seq, keys, key);
    for (std::int64_t at = 0; at < a.chunks.row_bytes; at += 64) __builtin_prefetch(stored + at);
  }
}

}  // namespace ebb::cpu
