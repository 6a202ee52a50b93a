// A long life of short and long sequences: invariants hold in every step (simulator.h), nothing
// grows, and a step allocates nothing.

#define BOOST_TEST_MODULE staging_churn
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "tests/staging/count_allocations.h"
#include "tests/staging/simulator.h"

#ifndef EBB_CHURN_STEPS
#define EBB_CHURN_STEPS 4000
#endif

namespace {

using ebb::StagingMode;
using ebb::test::Simulator;
using Ids = Simulator::Ids;

/// Returns what was allocated within steps.
std::uint64_t churn(StagingMode mode, const std::string& policy, const std::string& keys) {
  ebb::test::SimulatorShape shape;
  shape.max_open = 3;
  shape.n_layers = 2;
  shape.max_context = 128;
  shape.max_rows = 32;
  Simulator simulator(
      shape, policy,
      std::string("slots = 8\nmax_promotions = 3\nmax_prefetch = 2\nsink_tokens = 1\nstaging = ") +
          (mode == StagingMode::demand ? "\"demand\"\n" : "\"zero_copy\"\n") + keys);
  simulator.watch = ebb::test::count_allocations;
  ebb::test::take_allocations();
  std::mt19937 random(17);
  const auto select = [&](std::int32_t, std::int32_t, std::int32_t n_visible) {
    std::set<std::int32_t> ids;
    const int n = std::min(6, n_visible);
    while (static_cast<int>(ids.size()) < n) {
      // Late chunks more often than early ones.
      const auto a = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_visible));
      const auto b = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_visible));
      ids.insert(std::max(a, b));
    }
    return Ids(ids.begin(), ids.end());
  };
  const std::uint64_t allocated = simulator.allocated();
  for (int i = 0; i < EBB_CHURN_STEPS; ++i) {
    std::vector<Simulator::Feed> feeds;
    for (std::int32_t s = 0; s < 3; ++s) {
      if (!simulator.is_open(s)) simulator.open_sequence(s);
      const auto left = static_cast<std::int32_t>(shape.max_context - simulator.length(s));
      if (left == 0 || random() % 100 == 0) {
        simulator.close_sequence(s);
      } else if (random() % 3 > 0) {
        const bool is_prompt = simulator.length(s) == 0 && feeds.empty();
        feeds.push_back(
            {s, std::min(left, is_prompt ? static_cast<std::int32_t>(1 + random() % 30) : 1)});
        if (is_prompt) break;
      }
    }
    if (feeds.empty()) continue;
    const std::int32_t foreseen = feeds.front().sequence;
    const auto n_chunks = static_cast<std::int32_t>(simulator.length(foreseen) / 4);
    if (random() % 20 == 0) {
      std::vector<float> scores;
      Ids kept;
      for (std::int32_t c = 0; c < n_chunks; ++c) {
        scores.push_back(static_cast<float>(random() % 100));
        if (random() % 2 == 0) kept.push_back(c);
      }
      simulator.forecast(foreseen, scores, kept);
    }
    BOOST_REQUIRE_NO_THROW(simulator.step(feeds, select));
  }
  BOOST_TEST(simulator.allocated() == allocated);
  for (std::int32_t s = 0; s < 3; ++s) {
    if (simulator.is_open(s)) simulator.close_sequence(s);
  }
  const ebb::SwapCounters all = ebb::cli::total(simulator.staging().counters());
  BOOST_TEST(all.born + all.misses - all.pool_reads + all.promotions + all.prefetched ==
             all.evictions + all.freed);
  BOOST_TEST(all.prefetched == all.prefetch_used + all.prefetch_wasted);
  BOOST_TEST(all.prefetched > 0U);
  BOOST_TEST(all.evictions > 0U);
  return ebb::test::take_allocations();
}

}  // namespace

BOOST_AUTO_TEST_CASE(S6_S7_churn_under_lru) {
  BOOST_TEST(churn(StagingMode::demand, "swap_lru", "") == 0U);
  BOOST_TEST(churn(StagingMode::zero_copy, "swap_lru", "") == 0U);
}

BOOST_AUTO_TEST_CASE(S6_S7_churn_under_adaptive) {
  BOOST_TEST(churn(StagingMode::demand, "swap_adaptive", "") == 0U);
  BOOST_TEST(churn(StagingMode::zero_copy, "swap_adaptive", "") == 0U);
}

BOOST_AUTO_TEST_CASE(S6_S7_churn_under_score) {
  BOOST_TEST(churn(StagingMode::demand, "swap_score", "") == 0U);
  BOOST_TEST(churn(StagingMode::zero_copy, "swap_score", "") == 0U);
}

BOOST_AUTO_TEST_CASE(S6_S7_churn_under_chaos) {
  BOOST_TEST(churn(StagingMode::demand, Simulator::kChaos, "seed = 1") == 0U);
  // Refusals are logged, which shows that the counting works.
  BOOST_TEST(churn(StagingMode::zero_copy, Simulator::kChaos, "seed = 2\nlies = 0.1") > 0U);
}
