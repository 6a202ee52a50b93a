#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "tests/reference/linear.h"
#include "tests/reference/norm_rope.h"

// Compression of `ratio` consecutive tokens into one row of width d, fed token by token.
//
// Each token gives values kv = W_kv a and scores gate = W_gate a + ape[pos mod ratio]. A row is,
// for every dim on its own, the softmax-weighted sum of the values of its slots. At ratio 128 the
// slots are the chunk's own tokens. At ratio 4 kv and gate are 2d wide and chunks overlap: the
// slots are the four tokens of the previous chunk with columns [0, d) and the four of this chunk
// with columns [d, 2d); chunk 0 has no previous one. The row is then RMS-normalised and rotated to
// the position of the chunk's first token.
//
// This reference keeps the kv and gate of every token, so there is no ring whose upkeep could fail.

namespace ebb::reference {

/// kv and gate [c*d, D], ape [ratio, c*d], norm [d]; c = 2 at ratio 4, else 1.
struct CompressorWeights {
  Matrix kv;
  Matrix gate;
  Matrix ape;
  Vector norm;
};

/// Per-dim softmax over slots, weighted sum of their values. All slots have the same width.
struct CompressorSlot {
  std::span<const double> value;
  std::span<const double> score;
};
inline Vector pool_slots(const std::vector<CompressorSlot>& slots) {
  const std::size_t d = slots.front().value.size();
  Vector row(d);
  for (std::size_t i = 0; i < d; ++i) {
    double highest = -std::numeric_limits<double>::infinity();
    for (const CompressorSlot& slot : slots) highest = std::max(highest, slot.score[i]);
    double total = 0, sum = 0;
    for (const CompressorSlot& slot : slots) {
      const double weight = std::exp(slot.score[i] - highest);
      total += weight;
      sum += weight * slot.value[i];
    }
    row[i] = sum / total;
  }
  return row;
}

class Compressor {
 public:
  /// Borrows both for its lifetime. `frequencies` are the layer's.
  Compressor(const CompressorWeights& weights, const Vector& frequencies, double eps)
      : weights_(weights), frequencies_(frequencies), eps_(eps) {}

  /// Takes the next token's layer input a [D]; returns the row [d] of the chunk it completes, if
  /// any.
  std::optional<Vector> push(std::span<const double> a) {
    const std::int64_t ratio = weights_.ape.rows;
    const auto pos = static_cast<std::int64_t>(kv_.size());
    kv_.push_back(product(weights_.kv, a));
    gate_.push_back(product(weights_.gate, a));
    const std::span<const double> ape = weights_.ape.row(pos % ratio);
    for (std::size_t i = 0; i < ape.size(); ++i) gate_.back()[i] += ape[i];
    if (pos % ratio != ratio - 1) return std::nullopt;

    const std::int64_t first = pos - ratio + 1;
    const auto d = static_cast<std::int64_t>(weights_.norm.size());
    const bool overlaps = weights_.kv.rows == 2 * d;
    std::vector<CompressorSlot> slots;
    for (std::int64_t t = first - ratio; overlaps && t < first; ++t) {
      if (t >= 0) slots.push_back(slot(t, 0, d));
    }
    for (std::int64_t t = first; t <= pos; ++t) slots.push_back(slot(t, overlaps ? 1 : 0, d));
    Vector row = rms_norm(pool_slots(slots), weights_.norm, eps_);
    rotate(row, frequencies_, first);
    return row;
  }

 private:
  CompressorSlot slot(std::int64_t t, std::int64_t series, std::int64_t d) const {
    const auto at = static_cast<std::size_t>(t);
    return {piece(kv_[at], series, d), piece(gate_[at], series, d)};
  }

  const CompressorWeights& weights_;
  const Vector& frequencies_;
  double eps_;
  std::vector<Vector> kv_;    ///< per token, [c*d]
  std::vector<Vector> gate_;  ///< per token, [c*d], ape included
};

}  // namespace ebb::reference
