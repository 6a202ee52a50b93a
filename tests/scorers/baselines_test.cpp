#include <boost/test/unit_test.hpp>
#include <set>

#include "tests/scorers/bench.h"

// scorer_recent and scorer_random, which have no layer and answer in finish() alone.

namespace ebb {
namespace {

using namespace ebb::test;

/// A baseline's answer over n chunks; the buffer holds NaNs, as one that nobody wrote.
std::vector<float> answer(Scorer& scorer, std::int32_t sequence, std::int64_t pos, std::size_t n) {
  std::vector<float> logits(n, std::nanf(""));
  scorer.finish(sequence, pos, logits);
  return logits;
}

/// Nothing is recorded or carved.
void check_idle(Bench& bench, Scorer& scorer) {
  BOOST_TEST(scorer.layer() == -1);
  test::require(scorer.load());
  Arena arena;
  scorer.carve(arena, {});
  BOOST_TEST(arena.bytes() == 0);
  Ops* const ops = test::require(bench.compute().begin_plan());
  test::require(scorer.plan(*ops, {}, 0, nullptr, 0));
  BOOST_TEST(bench.compute().launches(test::require(bench.compute().end_plan())) == 0);
}

BOOST_AUTO_TEST_CASE(recent_prefers_the_newer_chunk) {
  Bench bench;
  const auto scorer = test::require(bench.scorer("scorer_recent", ""));
  check_idle(bench, *scorer.get());
  for (const std::size_t n : {0, 1, 2, 1000, 1 << 22}) {
    const auto logits = answer(*scorer.get(), 0, 4 * static_cast<std::int64_t>(n), n);
    for (std::size_t c = 0; c + 1 < n; ++c) BOOST_REQUIRE(logits[c] < logits[c + 1]);
    if (n > 0) BOOST_TEST(logits.back() == 0.0F);
  }
  BOOST_TEST(!bench.scorer("scorer_recent", "seed = 1"));
}

BOOST_AUTO_TEST_CASE(random_repeats_itself_and_nothing_else) {
  Bench bench;
  const auto scorer = test::require(bench.scorer("scorer_random", ""));
  check_idle(bench, *scorer.get());
  const std::vector<float> first = answer(*scorer.get(), 0, 4003, 1000);
  const auto again = test::require(bench.scorer("scorer_random", "seed = 0"));
  BOOST_TEST((answer(*again.get(), 0, 4003, 1000) == first));
  BOOST_TEST((answer(*again.get(), 3, 4003, 1000) == first));  // of any sequence
  const auto other = test::require(bench.scorer("scorer_random", "seed = 1"));
  HostServices seeded(nullptr, 6);
  const auto options = options_of("", "memory.scorer");
  const auto elsewhere = test::require(
      ModuleLoader(EBB_MODULES_DIR)
          .load<Scorer>({"scorer", "scorer_random", "", "test"}, seeded.host_for("x"), *options));
  for (const auto& different :
       {answer(*scorer.get(), 0, 4004, 1000), answer(*other.get(), 0, 4003, 1000),
        answer(*elsewhere.get(), 0, 4003, 1000)}) {
    std::size_t n_equal = 0;
    for (std::size_t c = 0; c < 1000; ++c) n_equal += different[c] == first[c] ? 1 : 0;
    BOOST_TEST(n_equal < 3);
  }
}

BOOST_AUTO_TEST_CASE(random_spreads_evenly_between_minus_one_and_one) {
  Bench bench;
  const auto scorer = test::require(bench.scorer("scorer_random", "seed = 7"));
  constexpr std::size_t kN = 100'000;
  std::vector<int> tenth(10);
  double product = 0;
  float before = 0;
  for (const float logit : answer(*scorer.get(), 0, 400'000, kN)) {
    BOOST_REQUIRE((logit >= -1 && logit < 1));
    ++tenth[static_cast<std::size_t>((logit + 1) * 5)];
    product += static_cast<double>(logit) * before;
    before = logit;
  }
  // Five standard deviations: a tenth has 95, a product of neighbours 1/3.
  for (const int n : tenth) BOOST_TEST(std::abs(n - 10'000) < 475);
  BOOST_TEST(std::fabs(product) < 5 * std::sqrt(static_cast<double>(kN)) / 3);
  // Of a position and the next one, too.
  const auto a = answer(*scorer.get(), 0, 500, kN), b = answer(*scorer.get(), 0, 501, kN);
  product = 0;
  for (std::size_t c = 0; c < kN; ++c) product += static_cast<double>(a[c]) * b[c];
  BOOST_TEST(std::fabs(product) < 5 * std::sqrt(static_cast<double>(kN)) / 3);
}

}  // namespace
}  // namespace ebb
