#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/api/session.h"
#include "kernels/ops/attention.h"
#include "kernels/row_format.h"

namespace ebb::test {

/// The rows of one step.
struct Step {
  std::int32_t n_rows = 0, n_out = 0;
  std::vector<std::int32_t> token, pos, seq, run_start, out_row, keep;

  /// Appends positions [first, first + n) of a sequence.
  void add_run(std::int32_t sequence, std::int32_t first, std::int32_t n) {
    const std::int32_t start = n_rows;
    for (std::int32_t i = 0; i < n; ++i) {
      token.push_back(0);
      pos.push_back(first + i);
      seq.push_back(sequence);
      run_start.push_back(start);
    }
    n_rows += n;
  }
  StepView view() const {
    StepView v;
    v.n_rows = &n_rows;
    v.n_out = &n_out;
    v.token = token.data();
    v.pos = pos.data();
    v.seq = seq.data();
    v.run_start = run_start.data();
    v.out_row = out_row.data();
    v.keep = keep.data();
    v.max_rows = n_rows;
    v.max_out = n_out;
    return v;
  }
};

using Floats = std::vector<float>;
using Random = std::mt19937;

inline Floats normal_floats(Random& random, std::int64_t n, float deviation = 1, float mean = 0) {
  std::normal_distribution<float> normal(mean, deviation);
  Floats x(static_cast<std::size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

inline Floats nan_floats(std::int64_t n) {
  return Floats(static_cast<std::size_t>(n), std::numeric_limits<float>::quiet_NaN());
}

inline std::vector<double> to_double(const float* x, std::int64_t n) {
  return std::vector<double>(x, x + n);
}
inline std::vector<double> to_double(const Floats& x) {
  return std::vector<double>(x.begin(), x.end());
}

/// A store with its memory, every byte 0xff: NaN in f32, f16, bf16, e4m3 and e8m0.
struct OwnedStore {
  std::vector<std::byte> memory;
  RowStore store;

  OwnedStore(RowFormat format, std::int32_t d, std::int32_t n_rot, std::int64_t n_rows,
             std::int64_t n_sequences = 1) {
    store.format = format;
    store.row_bytes = row_bytes(format, d, n_rot);
    store.n_rows = n_rows;
    // Sequences stand apart, so that a row too far shows.
    store.sequence_bytes = (n_rows + 1) * store.row_bytes;
    memory.assign(static_cast<std::size_t>(n_sequences * store.sequence_bytes), std::byte{0xff});
    store.data = memory.data();
  }
  OwnedStore(const OwnedStore& other) : memory(other.memory), store(other.store) {
    store.data = memory.data();
  }
  OwnedStore& operator=(const OwnedStore&) = delete;

  std::byte* row(std::int64_t sequence, std::int64_t i) {
    return store.data + sequence * store.sequence_bytes + i * store.row_bytes;
  }
};

/// Largest |got - want| / (1 + |want|); infinite if a value is not finite.
inline double largest_error(const float* got, const std::vector<double>& want) {
  double largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
    if (!(error <= largest)) {
      largest = std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
    }
  }
  return largest;
}

}  // namespace ebb::test
