#define BOOST_TEST_MODULE attend
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/attend.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "kernels/rope.h"
#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/attention.h"
#include "tests/reference/norm_rope.h"

using namespace ebb;
using namespace ebb::test;

namespace {

const float kInfinity = std::numeric_limits<float>::infinity();

enum class Chunks { none, all, chosen };

struct Shape {
  std::int32_t n_heads, d, n_pairs, window;
  Chunks chunks;
  std::int32_t ratio, top_k;
  RowFormat format;
};

/// Caches of some sequences, filled for the positions that a step may read; the rest is NaN.
struct Bench {
  Shape shape;
  std::vector<double> frequency;
  OwnedStore ring, chunks;
  Floats q, sink, out, table;
  std::vector<std::int32_t> ids, count;

  Bench(const Shape& s, std::int32_t n_sequences, std::int32_t ring_rows, std::int32_t n_chunks)
      : shape(s),
        frequency(static_cast<std::size_t>(s.n_pairs)),
        ring(s.format, s.d, 2 * s.n_pairs, ring_rows, n_sequences),
        chunks(s.format, s.d, 2 * s.n_pairs, n_chunks, n_sequences) {
    rope_frequencies({160000, 16, 65536, 32, 1}, s.n_pairs, frequency.data());
  }

  void write(Random& random, const RowStore& store, std::int32_t sequence, std::int64_t row) {
    const Floats x = normal_floats(random, shape.d);
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
    q = normal_floats(random, std::int64_t{step.n_rows} * shape.n_heads * shape.d);
    sink = normal_floats(random, shape.n_heads, 1.5f);
    if (shape.n_heads > 2) sink[2] = -kInfinity;
  }

  AttendArgs args(const Step& step) {
    out = nan_floats(std::int64_t{step.n_rows} * shape.n_heads * shape.d);
    AttendArgs a;
    a.step = step.view();
    a.q = q.data();
    a.ring = ring.store;
    if (shape.chunks != Chunks::none) a.chunks = chunks.store;
    if (shape.chunks == Chunks::chosen) {
      a.ids = ids.data();
      a.count = count.data();
    }
    a.top_k = shape.top_k;
    a.ratio = shape.ratio;
    a.window = shape.window;
    a.sink = sink.data();
    a.scale = 1 / std::sqrt(static_cast<float>(shape.d));
    a.cos_sin = table.data();
    a.n_pairs = shape.n_pairs;
    a.n_heads = shape.n_heads;
    a.d = shape.d;
    a.out = out.data();
    return a;
  }
  void run(const Step& step, Schedule schedule = {}) {
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_attend(list, args(step)).has_value());
    run_phases(list, schedule);
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
    auto want = reference::attend(to_double(&q[static_cast<std::size_t>(r * width)], width), spans,
                                  to_double(sink));
    for (std::int64_t h = 0; h < shape.n_heads; ++h) {
      reference::rotate(reference::piece(want, h, shape.d), frequency, pos, -1);
    }
    return want;
  }
};

const Shape kShapes[] = {
    {64, 512, 32, 128, Chunks::chosen, 4, 64, RowFormat::f32},
    {64, 512, 32, 128, Chunks::chosen, 4, 64, RowFormat::fp8},
    {8, 512, 32, 128, Chunks::all, 128, 1, RowFormat::f16},
    {1, 96, 16, 1, Chunks::none, 4, 1, RowFormat::f32},
    {1, 96, 16, 8, Chunks::chosen, 4, 8, RowFormat::fp8},
    {5, 192, 32, 8, Chunks::chosen, 4, 1, RowFormat::f32},
    {7, 96, 16, 128, Chunks::all, 4, 1, RowFormat::f32},
    {3, 70, 11, 33, Chunks::all, 4, 1, RowFormat::f16},
    {13, 130, 17, 8, Chunks::none, 4, 1, RowFormat::fp8},
};

}  // namespace

BOOST_AUTO_TEST_CASE(outputs_equal_the_reference_in_poisoned_caches) {
  Random random(51);
  for (const Shape& shape : kShapes) {
    Bench bench(shape, 3, shape.window + 40, 110);
    Step step;
    step.add_run(2, 0, 6);
    step.add_run(0, 399, 3);
    step.add_run(1, 126, 2);
    bench.prepare(random, step);
    bench.run(step, {2, true});
    const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
    for (std::int32_t r = 0; r < step.n_rows; ++r) {
      BOOST_TEST(largest_error(&bench.out[static_cast<std::size_t>(r * width)],
                               bench.reference_row(step, r)) < 3e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_batch_workers_or_order) {
  for (const Shape& shape : kShapes) {
    Random random(52);
    Bench bench(shape, 2, shape.window + 140, 110);
    Step all;
    all.add_run(1, 290, 130);
    all.add_run(0, 3, 4);
    bench.prepare(random, all);
    bench.run(all);
    const Floats out = bench.out, q = bench.q, table = bench.table;
    const auto ids = bench.ids, count = bench.count;
    bench.run(all, {4, true});
    BOOST_TEST((bench.out == out));
    const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
    for (const std::int32_t n : {1, 3, 17}) {
      for (std::int32_t first : {0, 64, 113}) {
        Step part;
        part.add_run(1, 290 + first, n);
        const auto cut = [&](auto& to, const auto& from, std::int64_t per_row) {
          to.assign(from.begin() + first * per_row, from.begin() + (first + n) * per_row);
        };
        cut(bench.q, q, width);
        cut(bench.table, table, 2 * shape.n_pairs);
        cut(bench.ids, ids, shape.top_k);
        cut(bench.count, count, 1);
        bench.run(part, {2, n == 3});
        BOOST_TEST(std::equal(bench.out.begin(), bench.out.end(), out.begin() + first * width));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_window_reaches_back_exactly_its_length) {
  Random random(53);
  const Shape shape{2, 96, 16, 128, Chunks::none, 4, 1, RowFormat::f32};
  Bench bench(shape, 1, 300, 1);
  Step step;
  step.add_run(0, 200, 1);
  bench.prepare(random, step);
  bench.write(random, bench.ring.store, 0, 72);
  bench.run(step);
  const Floats before = bench.out;
  bench.write(random, bench.ring.store, 0, 72);  // position 200 - 128
  bench.run(step);
  BOOST_TEST(bench.out == before);
  bench.write(random, bench.ring.store, 0, 73);  // position 200 - 127
  bench.run(step);
  BOOST_TEST(bench.out != before);
}

BOOST_AUTO_TEST_CASE(sinks_count_in_the_maximum_and_the_denominator_unscaled) {
  Random random(54);
  const Shape shape{3, 64, 0, 4, Chunks::none, 4, 1, RowFormat::f32};
  Bench bench(shape, 1, 8, 1);
  Step step;
  step.add_run(0, 5, 1);
  bench.prepare(random, step);
  std::fill(bench.q.begin(), bench.q.end(), 0.0f);  // all scores 0
  bench.sink = {100, -kInfinity, std::log(4.0f)};
  bench.run(step);
  const auto want = bench.reference_row(step, 0);
  for (std::size_t i = 0; i < 64; ++i) {
    BOOST_TEST(std::fabs(bench.out[i]) < 1e-30f);  // a sink of 100 takes it all
    BOOST_TEST(std::fabs(bench.out[64 + i] - 2 * bench.out[128 + i]) < 1e-6f);
    BOOST_TEST(std::fabs(bench.out[64 + i] - want[64 + i]) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(huge_scores_neither_overflow_nor_lose_their_winner) {
  Random random(55);
  const Shape shape{4, 64, 0, 40, Chunks::none, 4, 1, RowFormat::f32};
  Bench bench(shape, 1, 50, 1);
  Step step;
  step.add_run(0, 45, 1);
  bench.prepare(random, step);
  for (float& value : bench.q) value *= 1e4f;
  bench.run(step);
  BOOST_TEST(largest_error(bench.out.data(), bench.reference_row(step, 0)) < 1e-3);
}

BOOST_AUTO_TEST_CASE(the_output_is_rotated_back_by_its_own_position) {
  Random random(56);
  const Shape shape{1, 64, 32, 1, Chunks::none, 4, 1, RowFormat::f32};
  Bench bench(shape, 1, 1, 1);
  Step step;
  step.add_run(0, 12345, 1);
  bench.prepare(random, step);
  bench.sink[0] = -kInfinity;
  // One key only: the output is that row, rotated back. Store a vector rotated forward.
  Floats plain = normal_floats(random, 64), rotated = plain;
  for (std::size_t i = 0; i < 32; ++i) rotate_pair(&rotated[2 * i], &bench.table[2 * i]);
  std::memcpy(bench.ring.row(0, 0), rotated.data(), 64 * sizeof(float));
  bench.run(step);
  BOOST_TEST(largest_error(bench.out.data(), to_double(plain)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(refuses_a_ring_too_short_for_its_window_and_step) {
  const Shape shape{1, 64, 16, 8, Chunks::none, 4, 1, RowFormat::f32};
  Random random(57);
  Bench bench(shape, 1, 10, 1);
  Step step;
  step.add_run(0, 0, 3);
  bench.prepare(random, step);
  AttendArgs a = bench.args(step);
  cpu::PhaseList list;
  BOOST_TEST(cpu::add_attend(list, a).has_value());
  a.ring.n_rows = 9;
  BOOST_TEST(!cpu::add_attend(list, a).has_value());
  a.ring.n_rows = 10;
  a.ring.format = RowFormat::f16;
  BOOST_TEST(!cpu::add_attend(list, a).has_value());
}
