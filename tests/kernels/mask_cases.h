#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

#include "tests/kernels/select_bench.h"

// Selection among the chunks that a mask allows, for any backend: `run` does the op on the bench's
// data, with its mask, and leaves ids and count there.

namespace ebb::test {

using RunSelect = std::function<void(SelectBench&, const Step&)>;

enum class Mask { nothing, everything, few, most, pages, last, exactly_top_k, one_more };
inline constexpr Mask kMasks[] = {Mask::nothing,       Mask::everything, Mask::few,
                                  Mask::most,          Mask::pages,      Mask::last,
                                  Mask::exactly_top_k, Mask::one_more};

/// Masks of all sequences, for one that sees `visible` chunks: what it does not see is allowed.
/// "Allowed" is any byte but 0.
inline void write_mask(SelectBench& bench, Random& random, Mask mask, std::int32_t n_sequences,
                       std::int32_t visible) {
  const auto capacity = static_cast<std::size_t>(bench.keys.store.n_rows);
  const auto seen = static_cast<std::size_t>(visible);
  bench.allowed.assign(capacity * static_cast<std::size_t>(n_sequences), 0xff);
  for (std::size_t s = 0; s < static_cast<std::size_t>(n_sequences); ++s) {
    std::uint8_t* const of = &bench.allowed[s * capacity];
    std::vector<std::size_t> order(seen);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    const std::size_t k = static_cast<std::size_t>(bench.top_k) + (mask == Mask::one_more ? 1 : 0);
    for (std::size_t i = 0; i < seen; ++i) {
      const std::size_t c = order[i];
      bool is = false;
      switch (mask) {
        case Mask::nothing:
          break;
        case Mask::everything:
          is = true;
          break;
        case Mask::few:
          is = random() % 8 == 0;
          break;
        case Mask::most:
          is = random() % 8 != 0;
          break;
        case Mask::pages:
          is = c / 64 % 5 == 1 || c / 64 % 5 == 2;
          break;
        case Mask::last:
          is = c + 1 == seen;
          break;
        case Mask::exactly_top_k:
        case Mask::one_more:
          is = i < k;
          break;
      }
      of[c] = is ? static_cast<std::uint8_t>(1 + random() % 255) : 0;
    }
  }
}

inline void require_choices(const SelectBench& bench, const Step& step, std::int32_t n_chunks) {
  for (std::int32_t r = 0; r < step.n_rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const std::int32_t visible = (step.pos[at] + 1) / bench.ratio;
    const auto want = bench.best(bench.scores(r, step.seq[at], n_chunks, visible), step.seq[at]);
    BOOST_REQUIRE(bench.count[at] == static_cast<std::int32_t>(want.size()));
    BOOST_REQUIRE(bench.chosen(r) == want);
  }
}

/// Whole numbers, so that scores are exact and full of ties; rows of one run and of several, single
/// rows over many chunks, rows that see no more than top_k.
inline void masked_choices_are_exact(const RunSelect& run) {
  Random random(61);
  for (const auto& [n_heads, d, top_k, n_chunks] : {std::tuple{1, 1, 1, 200},
                                                    {2, 16, 8, 300},
                                                    {5, 64, 64, 500},
                                                    {16, 128, 512, 1100},
                                                    {4, 7, 300, 301},
                                                    {2, 8, 64, 5000}}) {
    for (const std::int32_t n_rows : {1, 2, 3, 9, 40}) {
      if (n_rows > 9 && n_chunks > 1000) continue;
      SelectBench bench(n_heads, d, 4, top_k, RowFormat::f32, 2, n_chunks + 3);
      bench.write_keys(random, 2, n_chunks, true);
      Step step;
      step.add_run(1, 4 * n_chunks - n_rows, n_rows);
      step.add_run(0, 4 * top_k - 3, std::min(n_rows, 7));  // sees top_k - 1 and more
      bench.write_queries(random, step, true);
      for (const Mask mask : kMasks) {
        write_mask(bench, random, mask, 2, n_chunks);
        run(bench, step);
        require_choices(bench, step, n_chunks);
      }
      bench.allowed.clear();
      run(bench, step);
      require_choices(bench, step, n_chunks);
    }
  }
}

/// More chunks than any piece into which keys are cut.
inline void masked_choices_are_exact_over_long_contexts(const RunSelect& run) {
  Random random(62);
  for (const auto& [n_rows, n_chunks, top_k] :
       {std::tuple{1, 70000, 512}, {3, 140000, 40}, {20, 40000, 512}, {18, 50000, 3000}}) {
    SelectBench bench(1, 8, 4, top_k, RowFormat::f32, 1, n_chunks + 5);
    bench.write_keys(random, 1, n_chunks, true);
    Step step;
    step.add_run(0, 4 * n_chunks - 1, 1);
    for (std::int32_t r = 1; r < n_rows; ++r) {
      step.add_run(0, r % 3 == 0 ? 4 * 16384 - 3 + r : 4 * n_chunks / (r + 1), 1);
    }
    bench.write_queries(random, step, true);
    for (const Mask mask : kMasks) {
      write_mask(bench, random, mask, 1, n_chunks);
      run(bench, step);
      require_choices(bench, step, n_chunks);
    }
    bench.allowed.clear();
    run(bench, step);
    require_choices(bench, step, n_chunks);
  }
}

/// Masked chunks do not return when there is nothing better than NaN or -inf.
inline void masked_choices_rank_nan_and_infinity(const RunSelect& run) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::int32_t n_rows : {1, 20}) {
    for (const float weight : {inf, -inf, 1.0f}) {
      Random random(63);
      const std::int32_t n_chunks = 900, top_k = 100;
      SelectBench bench(2, 16, 4, top_k, RowFormat::f32, 1, n_chunks);
      bench.write_keys(random, 1, n_chunks, true);
      Step step;
      for (std::int32_t r = 0; r < n_rows; ++r) step.add_run(0, 4 * n_chunks - 1 - r, 1);
      bench.write_queries(random, step, true);
      // A head of weight inf gives inf where its product is positive and NaN elsewhere. With
      // weight 1, every other chunk has a key of NaNs.
      if (weight != 1) {
        for (std::size_t i = 0; i < bench.weight.size(); i += 2) bench.weight[i] = weight;
      } else {
        const Floats nan = nan_floats(16);
        for (std::int32_t c = 0; c < n_chunks; c += 2) {
          encode_row(RowFormat::f32, 16, 0, nan.data(), bench.keys.row(0, c));
        }
      }
      for (const Mask mask : kMasks) {
        write_mask(bench, random, mask, 1, n_chunks);
        run(bench, step);
        for (std::int32_t r = 0; r < n_rows; ++r) {
          const std::int32_t visible = (step.pos[static_cast<std::size_t>(r)] + 1) / 4;
          auto scores = bench.scores(r, 0, n_chunks, visible);
          for (std::size_t c = 0; weight == 1 && c < scores.size(); c += 2) scores[c] = -INFINITY;
          BOOST_REQUIRE(bench.chosen(r) == bench.best(scores, 0));
        }
      }
    }
  }
}

/// An unmasked choice and one among chunks that are all allowed have the same bits, for any format.
inline void a_full_mask_changes_nothing(const RunSelect& run) {
  Random random(64);
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
    const std::int32_t n_chunks = 900;
    SelectBench bench(32, 64, 4, 64, format, 1, n_chunks);
    bench.write_keys(random, 1, n_chunks, false);
    Step step;
    step.add_run(0, 4 * n_chunks - 20, 20);
    bench.write_queries(random, step, false);
    run(bench, step);
    const auto ids = bench.ids, count = bench.count;
    write_mask(bench, random, Mask::everything, 1, n_chunks);
    run(bench, step);
    BOOST_TEST((bench.ids == ids));
    BOOST_TEST((bench.count == count));
  }
}

}  // namespace ebb::test
