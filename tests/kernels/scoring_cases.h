#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/ops/scoring.h"
#include "tests/kernels/select_bench.h"

// Ops of scorers, for any backend: `run` does the op on what it gets and leaves the answer there.

namespace ebb::test {

struct KeepBench {
  Floats x, y;  // [rows, d], [max_kept, d]
  std::int64_t d = 0;
};
using RunKeep = std::function<void(KeepBench&, const Step&)>;

inline void kept_rows_are_copies_and_nothing_else_is_written(const RunKeep& run) {
  Random random(71);
  for (const std::int64_t d : {1, 3, 4, 129, 4096, 8192}) {
    for (const std::int32_t n_rows : {1, 2, 7, 300}) {
      if (d > 4096 && n_rows > 7) continue;
      // Most rows are kept nowhere, the others in any order, NaNs and all.
      const std::int32_t n_kept = std::min(n_rows, 20) + 3;
      std::vector<std::int32_t> places(static_cast<std::size_t>(n_kept));
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), random);
      Step step;
      step.add_run(0, 0, n_rows);
      for (std::int32_t r = 0; r < n_rows; ++r) {
        const bool keeps = places.size() > 2 && (n_rows < 3 || random() % 3 == 0);
        step.keep.push_back(keeps ? places.back() : -1);
        if (keeps) places.pop_back();
      }
      KeepBench bench;
      bench.d = d;
      bench.x = normal_floats(random, n_rows * d);
      for (std::size_t i = 0; i < bench.x.size(); i += 5) bench.x[i] = nan_floats(1)[0];
      bench.y = normal_floats(random, n_kept * d);
      Floats want = bench.y;
      for (std::int32_t r = 0; r < n_rows; ++r) {
        const std::int32_t to = step.keep[static_cast<std::size_t>(r)];
        if (to >= 0) std::copy_n(bench.x.begin() + r * d, d, want.begin() + to * d);
      }
      run(bench, step);
      BOOST_TEST(std::memcmp(bench.y.data(), want.data(), want.size() * sizeof(float)) == 0);
    }
  }
}

/// An indexer's data; every visible chunk's score is the answer.
struct ScoreBench : SelectBench {
  static constexpr float kUnwritten = 12345;
  Floats logits;  // [rows, stride]
  std::int64_t stride = 0;

  ScoreBench(std::int32_t n_heads_, std::int32_t d_, std::int32_t ratio_, RowFormat format,
             std::int32_t n_sequences, std::int32_t n_chunks)
      : SelectBench(n_heads_, d_, ratio_, 1, format, n_sequences, n_chunks), stride(n_chunks + 5) {}

  /// Arguments without pointers, and room for the answers.
  ScoreArgs begin_scores(const Step& step) {
    logits.assign(static_cast<std::size_t>(step.n_rows * stride), kUnwritten);
    ScoreArgs a;
    a.weight_scale = weight_scale;
    a.n_heads = n_heads;
    a.d = d;
    a.ratio = ratio;
    a.stride = stride;
    return a;
  }
  void require_scores(const Step& step, std::int32_t n_chunks) const {
    for (std::int32_t r = 0; r < step.n_rows; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::int32_t visible = (step.pos[at] + 1) / ratio;
      const float* const got = &logits[at * static_cast<std::size_t>(stride)];
      const auto want = scores(r, step.seq[at], n_chunks, visible);
      BOOST_REQUIRE(largest_error(got, want) < 1e-4);
      BOOST_REQUIRE(
          std::all_of(got + visible, got + stride, [](float v) { return v == kUnwritten; }));
    }
  }
};
using RunScore = std::function<void(ScoreBench&, const Step&)>;

inline void scores_equal_the_reference(const RunScore& run) {
  Random random(72);
  const std::pair<std::int32_t, std::int32_t> shapes[] = {{128, 128}, {64, 128}, {1, 32}, {5, 64},
                                                          {3, 160},   {17, 256}, {4, 7},  {2, 100}};
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
    for (const auto& [n_heads, d] : shapes) {
      if (format == RowFormat::fp4 && d % 2 != 0) continue;
      for (const std::int32_t capacity : {64, 130}) {
        ScoreBench bench(n_heads, d, 4, format, 3, capacity);
        bench.weight_scale = 1 / std::sqrt(static_cast<float>(n_heads * d));
        bench.write_keys(random, 3, capacity, false);
        Step step;
        for (const std::int32_t visible : {0, 1, 63, 64, 65, capacity - 1, capacity}) {
          if (visible > capacity) continue;
          // With its last token, and three tokens on if there is no next chunk in them.
          step.add_run(visible % 3, std::max(0, 4 * visible - 1), 1);
          step.add_run(1, 4 * visible + 2, 1);
        }
        bench.write_queries(random, step, false);  // weights of both signs
        run(bench, step);
        bench.require_scores(step, capacity);
      }
    }
  }
}

inline void scores_of_many_rows_equal_the_reference(const RunScore& run) {
  Random random(73);
  const std::int32_t n_chunks = 700;
  ScoreBench bench(16, 128, 4, RowFormat::fp8, 2, n_chunks);
  bench.weight_scale = 0.02f;
  bench.write_keys(random, 2, n_chunks, false);
  Step step;
  step.add_run(1, 4 * n_chunks - 37, 37);
  step.add_run(0, 2, 1);
  step.add_run(0, 1000, 5);
  step.add_run(1, 400, 1);
  bench.write_queries(random, step, false);
  run(bench, step);
  bench.require_scores(step, n_chunks);
}

inline void a_row_has_the_same_scores_in_every_batch(const RunScore& run) {
  Random random(74);
  const std::int32_t n_chunks = 300, n_heads = 64, d = 128;
  ScoreBench bench(n_heads, d, 4, RowFormat::f32, 2, n_chunks);
  bench.write_keys(random, 2, n_chunks, false);
  Step all;
  all.add_run(1, 4 * n_chunks - 20, 20);
  all.add_run(0, 900, 3);
  bench.write_queries(random, all, false);
  run(bench, all);
  const Floats logits = bench.logits, q = bench.q, weight = bench.weight;
  for (std::int32_t r = 0; r < all.n_rows; r += 4) {
    const auto at = static_cast<std::size_t>(r);
    Step one;
    one.add_run(all.seq[at], all.pos[at], 1);
    bench.q.assign(q.begin() + r * n_heads * d, q.begin() + (r + 1) * n_heads * d);
    bench.weight.assign(weight.begin() + r * n_heads, weight.begin() + (r + 1) * n_heads);
    run(bench, one);
    BOOST_TEST(
        std::equal(bench.logits.begin(), bench.logits.end(), logits.begin() + r * bench.stride));
  }
}

}  // namespace ebb::test
