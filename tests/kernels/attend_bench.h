#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/rope.h"
#include "kernels/row_format.h"
#include "tests/kernels/step.h"
#include "tests/reference/attention.h"
#include "tests/reference/norm_rope.h"

namespace ebb::test {

inline const float kInfinity = std::numeric_limits<float>::infinity();

enum class Chunks { none, all, chosen };

struct Shape {
  std::int32_t n_heads, d, n_pairs, window;
  Chunks chunks;
  std::int32_t ratio, top_k;
  RowFormat format;
  float size = 1;  // of keys and queries
};

/// Caches of some sequences, filled for the positions that a step may read; the rest is NaN.
struct AttendBench {
  Shape shape;
  std::vector<double> frequency;
  OwnedStore ring, chunks;
  Floats q, sink, out, table;
  std::vector<std::int32_t> ids, count;
  bool with_heads = false;  // queries are normalised and rotated by attend

  AttendBench(const Shape& s, std::int32_t n_sequences, std::int32_t ring_rows,
              std::int32_t n_chunks)
      : shape(s),
        frequency(static_cast<std::size_t>(s.n_pairs)),
        ring(s.format, s.d, 2 * s.n_pairs, ring_rows, n_sequences),
        chunks(s.format, s.d, 2 * s.n_pairs, n_chunks, n_sequences) {
    rope_frequencies({160000, 16, 65536, 32, 1}, s.n_pairs, frequency.data());
  }

  void write(Random& random, const RowStore& store, std::int32_t sequence, std::int64_t row) {
    const Floats x = normal_floats(random, shape.d, shape.size);
    encode_row(store.format, shape.d, 2 * shape.n_pairs, x.data(), row_at(store, sequence, row));
  }

  /// Fills what the step may read, and makes its queries and choices.
  void prepare(Random& random, const Step& step) {
    table.clear();
    table.reserve(1);  // a pointer even without pairs
    ids.assign(static_cast<std::size_t>(step.n_rows * shape.top_k), -7);
    count.assign(static_cast<std::size_t>(step.n_rows), 0);
    for (std::size_t r = 0; r < static_cast<std::size_t>(step.n_rows); ++r) {
      const std::int32_t pos = step.pos[r];
      const std::int32_t visible = shape.chunks == Chunks::none ? 0 : (pos + 1) / shape.ratio;
      if (step.run_start[r] == static_cast<std::int32_t>(r)) {
        for (std::int32_t p = std::max(0, pos - shape.window + 1); p < pos; ++p) {
          write(random, ring.store, step.seq[r], p % ring.store.n_rows);
        }
        for (std::int32_t c = 0; c < visible; ++c) write(random, chunks.store, step.seq[r], c);
      }
      write(random, ring.store, step.seq[r], pos % ring.store.n_rows);
      if (visible > 0 && (pos + 1) % shape.ratio == 0) {
        write(random, chunks.store, step.seq[r], visible - 1);
      }
      if (shape.chunks == Chunks::chosen) {
        std::vector<std::int32_t> order;
        for (std::int32_t c = 0; c < visible; ++c) order.push_back(c);
        std::shuffle(order.begin(), order.end(), random);
        order.resize(static_cast<std::size_t>(std::min(visible, shape.top_k)));
        std::sort(order.begin(), order.end());
        std::copy(order.begin(), order.end(),
                  ids.begin() + static_cast<std::int64_t>(r) * shape.top_k);
        count[r] = static_cast<std::int32_t>(order.size());
      }
      for (const double f : frequency) {
        float entry[2];
        rope_entry(pos, f, entry);
        table.insert(table.end(), entry, entry + 2);
      }
    }
    q = normal_floats(random, std::int64_t{step.n_rows} * shape.n_heads * shape.d, shape.size);
    sink = normal_floats(random, shape.n_heads, 1.5f);
    if (shape.n_heads > 2) sink[2] = -kInfinity;
  }

  /// Arguments without pointers, and room for the answers of a step's rows.
  AttendArgs begin(const Step& step) {
    out = nan_floats(std::int64_t{step.n_rows} * shape.n_heads * shape.d);
    AttendArgs a;
    a.top_k = shape.top_k;
    a.ratio = shape.ratio;
    a.window = shape.window;
    a.scale = 1 / std::sqrt(static_cast<float>(shape.d));
    a.n_pairs = shape.n_pairs;
    a.n_heads = shape.n_heads;
    a.d = shape.d;
    return a;
  }

  std::vector<double> reference_row(const Step& step, std::int32_t r) {
    const auto at = static_cast<std::size_t>(r);
    const std::int32_t pos = step.pos[at], n_rot = 2 * shape.n_pairs;
    std::vector<std::vector<double>> rows;
    const auto take = [&](const std::byte* stored) {
      Floats x(static_cast<std::size_t>(shape.d));
      decode_row(shape.format, shape.d, n_rot, stored, x.data());
      rows.push_back(to_double(x));
    };
    for (std::int32_t p = std::max(0, pos - shape.window + 1); p <= pos; ++p) {
      take(ring.row(step.seq[at], p % ring.store.n_rows));
    }
    if (shape.chunks == Chunks::all) {
      for (int c = 0; c < (pos + 1) / shape.ratio; ++c) take(chunks.row(step.seq[at], c));
    }
    for (std::int32_t i = 0; i < count[at]; ++i) {
      take(chunks.row(
          step.seq[at],
          ids[at * static_cast<std::size_t>(shape.top_k) + static_cast<std::size_t>(i)]));
    }
    const std::vector<std::span<const double>> spans(rows.begin(), rows.end());
    const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
    auto queries = to_double(&q[static_cast<std::size_t>(r * width)], width);
    for (std::int64_t h = 0; with_heads && h < shape.n_heads; ++h) {
      const auto head = reference::piece(queries, h, shape.d);
      reference::rms_normalise(head, 1e-6);
      reference::rotate(head, frequency, pos);
    }
    auto want = reference::attend(queries, spans, to_double(sink));
    for (std::int64_t h = 0; h < shape.n_heads; ++h) {
      reference::rotate(reference::piece(want, h, shape.d), frequency, pos, -1);
    }
    return want;
  }
};

}  // namespace ebb::test
