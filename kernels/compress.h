#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/chunks.h"
#include "kernels/hd.h"
#include "kernels/ops/attention.h"

// The compressor: where a token's values are, and the pooling of one dim.
// Source: model reference 3.6.

namespace ebb {

EBB_HD inline std::int32_t compress_state_rows(std::int32_t ratio, std::int32_t overlap) {
  return overlap != 0 ? 2 * ratio : ratio;
}

/// Values per token: d, or 2 d with two series.
EBB_HD inline std::int64_t compress_width(const CompressArgs& a) {
  return static_cast<std::int64_t>(a.overlap != 0 ? 2 : 1) * a.d;
}

/// The two rows of token values that one slot of a chunk reads, at the columns of the slot's
/// series. `ape` is nullptr for rows of the state, which holds scores with ape added.
struct CompressSlot {
  const float* kv = nullptr;
  const float* gate = nullptr;
  const float* ape = nullptr;
};

/// Slots of a chunk: the tokens it pools, in order of position; with overlap the previous chunk's
/// tokens first.
EBB_HD inline std::int32_t compress_slots(const CompressArgs& a) {
  return compress_state_rows(a.ratio, a.overlap);
}

/// Slots to skip because they stand before position 0, for the chunk that ends at `pos`.
EBB_HD inline std::int32_t compress_first_slot(const CompressArgs& a, std::int32_t pos) {
  const std::int32_t first_position = pos + 1 - compress_slots(a);
  return first_position < 0 ? -first_position : 0;
}

/// Slot `slot` of the chunk that ends in row `row` (its position ends a chunk). A token of this
/// step is read from the batch, an older one from the state ring.
EBB_HD inline CompressSlot compress_slot(const CompressArgs& a, std::int32_t row,
                                         std::int32_t slot) {
  const std::int64_t width = compress_width(a);
  const std::int32_t n_slots = compress_slots(a);
  const std::int32_t q = a.step.pos[row] + 1 - n_slots + slot;
  const std::int32_t start = a.step.run_start[row];
  // Previous chunk's place: columns [0, d); own place: [d, 2d).
  const std::int64_t column = a.overlap != 0 && slot >= a.ratio ? a.d : 0;
  const std::int32_t ahead = q - a.step.pos[start];
  if (ahead >= 0) {
    const std::int64_t at = (static_cast<std::int64_t>(start) + ahead) * width + column;
    return {a.kv + at, a.gate + at,
            a.ape + static_cast<std::int64_t>(q % a.ratio) * width + column};
  }
  const std::int64_t at =
      (static_cast<std::int64_t>(a.step.seq[row]) * n_slots + q % n_slots) * width + column;
  return {a.state_kv + at, a.state_gate + at, nullptr};
}

EBB_HD inline float compress_score(const CompressSlot& slot, std::int64_t i) {
  return slot.ape != nullptr ? slot.gate[i] + slot.ape[i] : slot.gate[i];
}

/// Softmax-weighted mean over a chunk's slots of dim `i`.
EBB_HD inline float compress_pool(const CompressArgs& a, std::int32_t row, std::int32_t i) {
  const std::int32_t n_slots = compress_slots(a);
  const std::int32_t first = compress_first_slot(a, a.step.pos[row]);
  float largest = -INFINITY;
  for (std::int32_t s = first; s < n_slots; ++s) {
    const float score = compress_score(compress_slot(a, row, s), i);
    largest = score > largest ? score : largest;
  }
  float sum = 0, weighted = 0;
  for (std::int32_t s = first; s < n_slots; ++s) {
    const CompressSlot slot = compress_slot(a, row, s);
    const float weight = expf(compress_score(slot, i) - largest);
    sum += weight;
    weighted += weight * slot.kv[i];
  }
  return weighted / sum;
}

/// True if row `row` is among the last of its run that the state keeps: no later row of the run
/// takes its place in the ring.
EBB_HD inline bool compress_keeps(const CompressArgs& a, std::int32_t row) {
  const std::int32_t next = row + compress_state_rows(a.ratio, a.overlap);
  return next >= *a.step.n_rows || a.step.run_start[next] != a.step.run_start[row];
}

}  // namespace ebb
