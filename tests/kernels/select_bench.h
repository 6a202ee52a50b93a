#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/row_format.h"
#include "tests/kernels/step.h"
#include "tests/reference/indexer.h"

namespace ebb::test {

/// An indexer with keys of some sequences, and queries for the rows of a step. Whole numbers make
/// every score exact, with many ties; others come as they are.
struct SelectBench {
  std::int32_t n_heads, d, ratio, top_k;
  OwnedStore keys;
  Floats plain_keys;  // [n_sequences, n_chunks, d] as stored
  Floats q, weight;   // per row
  float weight_scale = 1;
  std::vector<std::uint8_t> allowed;  // [n_sequences, capacity]; empty: there is no mask
  std::vector<std::int32_t> ids, count;

  SelectBench(std::int32_t n_heads_, std::int32_t d_, std::int32_t ratio_, std::int32_t top_k_,
              RowFormat format, std::int32_t n_sequences, std::int32_t n_chunks)
      : n_heads(n_heads_),
        d(d_),
        ratio(ratio_),
        top_k(top_k_),
        keys(format, d_, 0, n_chunks, n_sequences) {}

  static Floats values(Random& random, std::int64_t n, bool whole) {
    Floats x = normal_floats(random, n);
    if (whole) {
      for (float& value : x) value = std::clamp(std::nearbyint(value), -2.0f, 2.0f);
    }
    return x;
  }
  /// Writes keys [0, n) of every sequence; those behind stay NaN.
  void write_keys(Random& random, std::int32_t n_sequences, std::int32_t n, bool whole) {
    plain_keys = values(random, std::int64_t{n_sequences} * n * d, whole);
    for (std::int32_t s = 0; s < n_sequences; ++s) {
      for (std::int32_t c = 0; c < n; ++c) {
        float* const key = &plain_keys[static_cast<std::size_t>((std::int64_t{s} * n + c) * d)];
        encode_row(keys.store.format, d, 0, key, keys.row(s, c));
        decode_row(keys.store.format, d, 0, keys.row(s, c), key);
      }
    }
  }
  void write_queries(Random& random, const Step& step, bool whole) {
    q = values(random, std::int64_t{step.n_rows} * n_heads * d, whole);
    weight = values(random, std::int64_t{step.n_rows} * n_heads, whole);
  }
  /// Arguments without pointers, and room for the answers of a step's rows.
  SelectArgs begin(const Step& step) {
    ids.assign(static_cast<std::size_t>(step.n_rows * top_k), -7);
    count.assign(static_cast<std::size_t>(step.n_rows), -7);
    SelectArgs a;
    a.weight_scale = weight_scale;
    a.n_heads = n_heads;
    a.d = d;
    a.ratio = ratio;
    a.top_k = top_k;
    return a;
  }
  std::vector<std::int32_t> chosen(std::int32_t row) const {
    const auto begin = ids.begin() + std::int64_t{row} * top_k;
    return {begin, begin + count[static_cast<std::size_t>(row)]};
  }
  std::vector<double> scores(std::int32_t row, std::int32_t sequence, std::int32_t n_chunks,
                             std::int32_t visible) const {
    const std::int64_t at = std::int64_t{row} * n_heads * d;
    const auto queries = to_double(&q[static_cast<std::size_t>(at)], std::int64_t{n_heads} * d);
    auto w = to_double(&weight[static_cast<std::size_t>(row * n_heads)], n_heads);
    for (double& value : w) value *= weight_scale;
    std::vector<double> result;
    for (std::int32_t c = 0; c < visible; ++c) {
      const std::int64_t key = (std::int64_t{sequence} * n_chunks + c) * d;
      result.push_back(reference::index_score(
          queries, w, to_double(&plain_keys[static_cast<std::size_t>(key)], d)));
    }
    return result;
  }
  /// What of `all` scores is to be chosen.
  std::vector<std::int32_t> best(const std::vector<double>& all, std::int32_t sequence) const {
    if (allowed.empty()) return reference::top_k(all, top_k);
    std::vector<double> scores;
    std::vector<std::int32_t> chunks;
    for (std::size_t c = 0; c < all.size(); ++c) {
      if (allowed[static_cast<std::size_t>(sequence * keys.store.n_rows) + c] == 0) continue;
      scores.push_back(all[c]);
      chunks.push_back(static_cast<std::int32_t>(c));
    }
    std::vector<std::int32_t> result;
    for (const std::int32_t i : reference::top_k(scores, top_k)) {
      result.push_back(chunks[static_cast<std::size_t>(i)]);
    }
    return result;
  }
};

}  // namespace ebb::test
