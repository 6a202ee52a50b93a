#define BOOST_TEST_MODULE select
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/select.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/select_bench.h"
#include "tests/kernels/step.h"
#include "tests/reference/indexer.h"

using namespace ebb;
using namespace ebb::test;

namespace {

struct Bench : SelectBench {
  using SelectBench::SelectBench;

  void run(const Step& step, Schedule schedule = {}) {
    SelectArgs a = begin(step);
    a.step = step.view();
    a.q = q.data();
    a.weight = weight.data();
    a.keys = keys.store;
    a.ids = ids.data();
    a.count = count.data();
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_select(list, a).has_value());
    run_phases(list, schedule);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_choice_is_exact_with_many_ties_and_odd_sizes) {
  Random random(41);
  for (const auto& [n_heads, d, top_k, n_chunks] : {std::tuple{1, 1, 1, 200},
                                                    {2, 16, 8, 300},
                                                    {5, 64, 64, 500},
                                                    {32, 64, 64, 1000},
                                                    {64, 128, 512, 1100},
                                                    {3, 96, 100, 640},
                                                    {4, 7, 300, 301}}) {
    for (const std::int32_t n_rows : {1, 2, 3, 7, 9, 40, 130}) {
      if (n_heads == 64 && n_rows > 9) continue;
      Bench bench(n_heads, d, 4, top_k, RowFormat::f32, 1, n_chunks + 3);
      bench.write_keys(random, 1, n_chunks, true);
      Step step;
      step.add_run(0, 4 * n_chunks - n_rows, n_rows);
      bench.write_queries(random, step, true);
      bench.run(step, {2, true});
      for (std::int32_t r = 0; r < n_rows; ++r) {
        const std::int32_t visible = (step.pos[static_cast<std::size_t>(r)] + 1) / 4;
        const auto want = reference::top_k(bench.scores(r, 0, n_chunks, visible), top_k);
        BOOST_REQUIRE(bench.chosen(r) == want);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(choices_differ_from_double_only_within_rounding_of_the_cut) {
  Random random(42);
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
    const std::int32_t n_chunks = 900, n_rows = 20, top_k = 64;
    Bench bench(32, 64, 4, top_k, format, 1, n_chunks);
    bench.weight_scale = 0.011f;
    bench.write_keys(random, 1, n_chunks, false);
    Step step;
    step.add_run(0, 4 * n_chunks - n_rows, n_rows);
    bench.write_queries(random, step, false);
    bench.run(step);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      const std::int32_t visible = (step.pos[static_cast<std::size_t>(r)] + 1) / 4;
      const auto scores = bench.scores(r, 0, n_chunks, visible);
      const auto want = reference::top_k(scores, top_k), got = bench.chosen(r);
      double cut = 1e9;
      for (const std::int32_t c : want) cut = std::min(cut, scores[static_cast<std::size_t>(c)]);
      BOOST_REQUIRE(got.size() == want.size());
      BOOST_TEST(std::is_sorted(got.begin(), got.end()));
      for (const std::int32_t c : got) {
        BOOST_TEST(scores[static_cast<std::size_t>(c)] > cut - 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(all_visible_chunks_are_taken_unscored_up_to_top_k) {
  const std::int32_t top_k = 512;
  for (const std::int32_t visible : {0, 1, 511, 512, 513}) {
    Random random(43);
    Bench bench(2, 16, 4, top_k, RowFormat::f32, 1, 600);
    bench.write_keys(random, 1, visible, true);
    Step step;
    step.add_run(0, 4 * visible + 2, 1);
    if (visible <= top_k) {
      bench.q = nan_floats(32);
      bench.weight = nan_floats(2);
    } else {
      bench.write_queries(random, step, true);
    }
    bench.run(step);
    BOOST_TEST(bench.count[0] == std::min(visible, top_k));
    const auto got = bench.chosen(0);
    BOOST_TEST((visible > top_k || got.empty() || (got.front() == 0 && got.back() == visible - 1)));
    if (visible > top_k) {
      BOOST_TEST(got == reference::top_k(bench.scores(0, 0, visible, visible), top_k));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_chunk_is_visible_with_its_last_token_and_not_before) {
  Random random(44);
  Bench bench(1, 8, 4, 8, RowFormat::f32, 1, 8);
  bench.write_keys(random, 1, 8, true);
  Step step;
  step.add_run(0, 0, 9);
  bench.write_queries(random, step, true);
  bench.run(step);
  BOOST_TEST(bench.count == (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2}));
}

BOOST_AUTO_TEST_CASE(the_relu_is_taken_per_head_before_weighting_and_weights_may_be_negative) {
  // Chunk 0: dots (3, 2): 3 - 2 = 1. Chunk 1: (-3, -2): 0. Chunk 2: (1, -5): 1 - 0 = 1.
  // Chunk 3: (-9, 1): 0 - 1 = -1. Best two: 0 and 2; best three add chunk 1.
  const float keys[4][2] = {{3, 2}, {-3, -2}, {1, -5}, {-9, 1}};
  for (const std::int32_t top_k : {2, 3}) {
    Bench bench(2, 2, 1, top_k, RowFormat::f32, 1, 4);
    for (int c = 0; c < 4; ++c) encode_row(RowFormat::f32, 2, 0, keys[c], bench.keys.row(0, c));
    Step step;
    step.add_run(0, 3, 1);
    bench.q = {1, 0, 0, 1};
    bench.weight = {1, -1};
    bench.run(step);
    const auto want = top_k == 2 ? std::vector<std::int32_t>{0, 2} : std::vector{0, 1, 2};
    BOOST_TEST(bench.chosen(0) == want);
  }
}

BOOST_AUTO_TEST_CASE(nan_scores_lose_to_all_others_and_still_fill_up) {
  for (const std::int32_t n_rows : {1, 20}) {
    Random random(45);
    const std::int32_t n_chunks = 300;
    Bench bench(3, 16, 4, 200, RowFormat::f32, 1, n_chunks);
    bench.write_keys(random, 1, n_chunks, true);
    const Floats nan = nan_floats(16);
    // All but 10 keys are NaN: the choice is those 10 and the lowest others.
    for (std::int32_t c = 0; c < n_chunks; ++c) {
      if (c < 280 || c >= 290) encode_row(RowFormat::f32, 16, 0, nan.data(), bench.keys.row(0, c));
    }
    Step step;
    step.add_run(0, 4 * n_chunks - 1, 1);
    for (std::int32_t r = 1; r < n_rows; ++r) step.add_run(0, 4 * n_chunks - 1, 1);
    bench.write_queries(random, step, true);
    bench.run(step);
    std::vector<std::int32_t> want;
    for (std::int32_t c = 0; c < 190; ++c) want.push_back(c);
    for (std::int32_t c = 280; c < 290; ++c) want.push_back(c);
    for (std::int32_t r = 0; r < n_rows; ++r) BOOST_TEST(bench.chosen(r) == want);
  }
}

BOOST_AUTO_TEST_CASE(the_choice_does_not_depend_on_batch_workers_or_order) {
  Random random(46);
  const std::int32_t n_chunks = 2000, n_rows = 70;
  Bench bench(8, 64, 4, 64, RowFormat::fp4, 2, n_chunks);
  bench.write_keys(random, 2, n_chunks, false);
  Step all;
  all.add_run(1, 4 * n_chunks - 40, 40);
  all.add_run(0, 5000, 29);
  all.add_run(1, 100, 1);
  bench.write_queries(random, all, false);
  bench.run(all);
  const auto ids = bench.ids, count = bench.count;
  bench.run(all, {4, true});
  BOOST_TEST(bench.ids == ids);
  const Floats q = bench.q, weight = bench.weight;
  for (std::int32_t r = 0; r < n_rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    Step one;
    one.add_run(all.seq[at], all.pos[at], 1);
    bench.q.assign(q.begin() + r * 8 * 64, q.begin() + (r + 1) * 8 * 64);
    bench.weight.assign(weight.begin() + r * 8, weight.begin() + (r + 1) * 8);
    bench.run(one, {2, r % 2 == 1});
    BOOST_REQUIRE(bench.count[0] == count[at]);
    BOOST_REQUIRE(std::equal(bench.ids.begin(), bench.ids.end(), ids.begin() + r * 64));
  }
}

BOOST_AUTO_TEST_CASE(refuses_keys_of_the_wrong_size) {
  Bench bench(1, 128, 4, 8, RowFormat::fp8, 1, 8);
  Step step;
  step.add_run(0, 3, 1);
  Floats values(128);
  std::int32_t ids[8];
  SelectArgs a;
  a.step = step.view();
  a.q = a.weight = values.data();
  a.keys = bench.keys.store;
  a.n_heads = 1;
  a.d = 128;
  a.ratio = 4;
  a.top_k = 8;
  a.ids = a.count = ids;
  cpu::PhaseList list;
  BOOST_TEST(cpu::add_select(list, a).has_value());
  a.keys.row_bytes = 128;
  BOOST_TEST(!cpu::add_select(list, a).has_value());
  a.keys.row_bytes = 132;
  a.top_k = 0;
  BOOST_TEST(!cpu::add_select(list, a).has_value());
}
