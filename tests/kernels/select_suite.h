#pragma once

#include "tests/kernels/mask_cases.h"

// The cases of select, for a test program that has said before how its backend does it:
// run_select(SelectBench&, const Step&).

namespace ebb::test {

BOOST_AUTO_TEST_CASE(the_choice_is_exact_with_many_ties_and_odd_sizes) {
  Random random(41);
  for (const auto& [n_heads, d, top_k, n_chunks] : {std::tuple{1, 1, 1, 200},
                                                    {2, 16, 8, 300},
                                                    {5, 64, 64, 500},
                                                    {32, 64, 64, 1000},
                                                    {64, 128, 512, 1100},
                                                    {70, 130, 100, 260},
                                                    {3, 96, 100, 640},
                                                    {4, 7, 300, 301}}) {
    for (const std::int32_t n_rows : {1, 2, 3, 7, 9, 40, 130}) {
      if (n_heads >= 64 && n_rows > 9) continue;
      SelectBench bench(n_heads, d, 4, top_k, RowFormat::f32, 1, n_chunks + 3);
      bench.write_keys(random, 1, n_chunks, true);
      Step step;
      step.add_run(0, 4 * n_chunks - n_rows, n_rows);
      bench.write_queries(random, step, true);
      run_select(bench, step);
      require_choices(bench, step, n_chunks);
    }
  }
}

BOOST_AUTO_TEST_CASE(choices_differ_from_double_only_within_rounding_of_the_cut) {
  Random random(42);
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
    for (const auto& [n_heads, d] : {std::pair{32, 64}, {64, 128}}) {
      const std::int32_t n_chunks = 900, n_rows = 20, top_k = 64;
      SelectBench bench(n_heads, d, 4, top_k, format, 1, n_chunks);
      bench.weight_scale = 0.011f;
      bench.write_keys(random, 1, n_chunks, false);
      Step step;
      step.add_run(0, 4 * n_chunks - n_rows, n_rows);
      bench.write_queries(random, step, false);
      run_select(bench, step);
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
}

BOOST_AUTO_TEST_CASE(all_visible_chunks_are_taken_unscored_up_to_top_k) {
  const std::int32_t top_k = 512;
  for (const std::int32_t visible : {0, 1, 511, 512, 513}) {
    Random random(43);
    SelectBench bench(2, 16, 4, top_k, RowFormat::f32, 1, 600);
    bench.write_keys(random, 1, visible, true);
    Step step;
    step.add_run(0, 4 * visible + 2, 1);
    if (visible <= top_k) {
      bench.q = nan_floats(32);
      bench.weight = nan_floats(2);
    } else {
      bench.write_queries(random, step, true);
    }
    run_select(bench, step);
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
  SelectBench bench(1, 8, 4, 8, RowFormat::f32, 1, 8);
  bench.write_keys(random, 1, 8, true);
  Step step;
  step.add_run(0, 0, 9);
  bench.write_queries(random, step, true);
  run_select(bench, step);
  BOOST_TEST(bench.count == (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2}));
}

BOOST_AUTO_TEST_CASE(the_relu_is_taken_per_head_before_weighting_and_weights_may_be_negative) {
  // Chunk 0: dots (3, 2): 3 - 2 = 1. Chunk 1: (-3, -2): 0. Chunk 2: (1, -5): 1 - 0 = 1.
  // Chunk 3: (-9, 1): 0 - 1 = -1. Best two: 0 and 2; best three add chunk 1.
  const float keys[4][2] = {{3, 2}, {-3, -2}, {1, -5}, {-9, 1}};
  for (const std::int32_t top_k : {2, 3}) {
    SelectBench bench(2, 2, 1, top_k, RowFormat::f32, 1, 4);
    for (int c = 0; c < 4; ++c) encode_row(RowFormat::f32, 2, 0, keys[c], bench.keys.row(0, c));
    Step step;
    step.add_run(0, 3, 1);
    bench.q = {1, 0, 0, 1};
    bench.weight = {1, -1};
    run_select(bench, step);
    const auto want = top_k == 2 ? std::vector<std::int32_t>{0, 2} : std::vector{0, 1, 2};
    BOOST_TEST(bench.chosen(0) == want);
  }
}

BOOST_AUTO_TEST_CASE(nan_scores_lose_to_all_others_and_still_fill_up) {
  for (const std::int32_t n_rows : {1, 20}) {
    Random random(45);
    const std::int32_t n_chunks = 300;
    SelectBench bench(3, 16, 4, 200, RowFormat::f32, 1, n_chunks);
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
    run_select(bench, step);
    std::vector<std::int32_t> want;
    for (std::int32_t c = 0; c < 190; ++c) want.push_back(c);
    for (std::int32_t c = 280; c < 290; ++c) want.push_back(c);
    for (std::int32_t r = 0; r < n_rows; ++r) BOOST_TEST(bench.chosen(r) == want);
  }
}

BOOST_AUTO_TEST_CASE(selects_under_a_mask) { masked_choices_are_exact(run_select); }
BOOST_AUTO_TEST_CASE(selects_under_a_mask_over_long_contexts) {
  masked_choices_are_exact_over_long_contexts(run_select);
}
BOOST_AUTO_TEST_CASE(selects_under_a_mask_with_nan_and_infinity) {
  masked_choices_rank_nan_and_infinity(run_select);
}
BOOST_AUTO_TEST_CASE(selects_under_a_full_mask_as_without) {
  a_full_mask_changes_nothing(run_select);
}

}  // namespace ebb::test
