#define BOOST_TEST_MODULE attend
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/attend.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "tests/kernels/attend_bench.h"
#include "tests/kernels/refusal_cases.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"

using namespace ebb;
using namespace ebb::test;

namespace {

struct Bench : AttendBench {
  using AttendBench::AttendBench;

  AttendArgs args(const Step& step) {
    AttendArgs a = begin(step);
    a.step = step.view();
    a.q = q.data();
    a.ring = ring.store;
    if (shape.chunks != Chunks::none) a.chunks = chunks.store;
    if (shape.chunks == Chunks::chosen) {
      a.ids = ids.data();
      a.count = count.data();
    }
    a.sink = sink.data();
    a.cos_sin = table.data();
    a.out = out.data();
    return a;
  }
  void run(const Step& step, Schedule schedule = {}) {
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_attend(list, args(step)).has_value());
    run_phases(list, schedule);
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

BOOST_AUTO_TEST_CASE(wrong_chunks_and_slots_are_refused_with_a_reason) {
  check_attend_refusals([](const AttendArgs& args) {
    cpu::PhaseList list;
    return cpu::add_attend(list, args);
  });
}
