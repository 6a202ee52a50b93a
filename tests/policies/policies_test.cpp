#define BOOST_TEST_MODULE policies
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <limits>

#include "tests/policies/bounds.h"
#include "tests/policies/support.h"
#include "tests/policies/traces.h"

// What single policies promise: numbers of misses, by the driver's own count.

namespace ebb::test {
namespace {

/// swap_lru where it is installed.
DriverCounts lru(const TestTrace& trace, std::int64_t slots) {
  return run("swap_lru", trace, slots);
}

BOOST_AUTO_TEST_CASE(C7_no_policy_has_fewer_misses_than_the_bound) {
  for (const TestTrace& trace : all_traces()) {
    for (const std::int64_t slots : slot_counts(trace)) {
      const auto bound = static_cast<std::int64_t>(demand_bound(trace, slots));
      for (const std::string& policy : all_policies()) {
        BOOST_TEST_CONTEXT(policy << ", " << trace.name << ", " << slots) {
          BOOST_TEST(run(policy, trace, slots).misses >= bound);
        }
      }
    }
  }
}

// LRU keeps the same order whatever the slots are, so that a larger cache holds what a smaller one
// holds. Steps select sets and chunks are born on the way; so it is tested, not assumed.
BOOST_AUTO_TEST_CASE(C7_misses_of_lru_do_not_grow_with_slots) {
  for (const TestTrace& trace : all_traces()) {
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t slots = trace.top_k + 1; slots < trace.n_chunks; slots += 13) {
      const std::int64_t misses = lru(trace, slots).misses;
      BOOST_TEST(misses <= before, trace.name << ", " << slots << " slots");
      before = misses;
    }
  }
}

BOOST_AUTO_TEST_CASE(adaptive_is_never_more_than_one_percent_worse_than_lru_at_any_step) {
  for (const TestTrace& trace : all_traces()) {
    for (const std::int64_t slots : slot_counts(trace)) {
      const SwapShape shape = shape_of(trace, slots);
      Policy adaptive("swap_adaptive", shape), plain("swap_lru", shape);
      Driver ours(*adaptive, shape, 0), theirs(*plain, shape, 0);
      for (const TraceStep& step : trace.steps) {
        ours.step(step);
        theirs.step(step);
        const auto most = 1.01 * static_cast<double>(theirs.counts().misses);
        if (static_cast<double>(ours.counts().misses) <= most) continue;
        BOOST_ERROR(trace.name << ", " << slots << " slots: " << ours.counts().misses
                               << " misses, LRU has " << theirs.counts().misses);
        break;
      }
      BOOST_TEST(ours.counts().short_answers == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(adaptive_without_regret_begins_as_lru) {
  for (const TestTrace& trace : all_traces()) {
    for (const std::int64_t slots : slot_counts(trace)) {
      const std::int64_t misses = run("swap_adaptive", trace, slots, "regret = 0").misses;
      BOOST_TEST(misses <= lru(trace, slots).misses, trace.name << ", " << slots);
    }
  }
}

BOOST_AUTO_TEST_CASE(adaptive_is_clearly_better_where_layers_or_frequencies_differ) {
  const TestTrace mixed = with_prefill(mixed_trace(4, 32, 512, 1200, 8));
  BOOST_TEST(run("swap_adaptive", mixed, 64).misses <
             0.7 * static_cast<double>(lru(mixed, 64).misses));
  const TestTrace zipf = with_prefill(zipf_trace(2, 32, 512, 1200, 1.0, 2));
  BOOST_TEST(run("swap_adaptive", zipf, 128).misses <
             0.95 * static_cast<double>(lru(zipf, 128).misses));
}

BOOST_AUTO_TEST_CASE(adaptive_keeps_shares_equal_where_layers_are_alike_and_without_a_window) {
  const TestTrace mixed = with_prefill(mixed_trace(4, 32, 512, 1200, 8));
  BOOST_TEST(run("swap_adaptive", mixed, 64, "window = 0").misses >
             1.3 * static_cast<double>(run("swap_adaptive", mixed, 64).misses));
  const TestTrace alike = with_prefill(churn_trace(4, 32, 512, 600, 2, 31));
  BOOST_TEST(run("swap_adaptive", alike, 64, "window = 0").misses ==
             run("swap_adaptive", alike, 64).misses);
}

// With and without scores, in both modes: misses, and who goes, by the formula done plainly.
BOOST_AUTO_TEST_CASE(score_is_its_formula) {
  for (const TestTrace& quiet : all_traces()) {
    for (const TestTrace& trace : {quiet, with_noise(quiet, 71)}) {
      const std::int64_t slots = slot_counts(trace).front();
      for (const std::int64_t moves : {0, 3}) {
        for (const char* options : {"", "score = 2", "half_life = 4\nfrequency = 3"}) {
          BOOST_TEST_CONTEXT(trace.name << ", " << slots << " slots, " << moves << " moves, "
                                        << options) {
            const DriverCounts ours = run("swap_score", trace, slots, options, moves);
            const DriverCounts plain = run(EBB_PLAIN_SCORE, trace, slots, options, moves);
            BOOST_TEST(ours.misses == plain.misses);
            BOOST_TEST(ours.evictions == plain.evictions);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(score_of_the_last_use_alone_is_lru) {
  for (const TestTrace& trace : all_traces()) {
    if (trace.n_layers > 1) continue;  // values of layers are compared, LRU has one list for each
    for (const std::int64_t slots : slot_counts(trace)) {
      BOOST_TEST(
          run("swap_score", trace, slots, "frequency = 0").misses == lru(trace, slots).misses,
          trace.name << ", " << slots);
    }
  }
}

BOOST_AUTO_TEST_CASE(score_is_better_than_lru_where_scores_foresee) {
  for (const std::int32_t churn : {1, 2, 4}) {
    const TestTrace trace = with_prefill(churn_trace(1, 32, 512, 1200, churn, 5, true));
    const auto plain = static_cast<double>(lru(trace, 64).misses);
    BOOST_TEST(run("swap_score", trace, 64).misses < 0.975 * plain);
    BOOST_TEST(run("swap_score", trace, 64, "score = 2").misses < 0.96 * plain);
    // And it is the scores that do it.
    BOOST_TEST(run("swap_score", trace, 64).misses <
               run("swap_score", trace, 64, "score = 0").misses);
  }
}

// Noise costs something: least where there is room for more than one selection.
BOOST_AUTO_TEST_CASE(noise_for_scores_costs_at_most_a_quarter_of_the_misses_of_lru_if_slots_allow) {
  for (const TestTrace& quiet : all_traces()) {
    const TestTrace trace = with_noise(quiet, 51);
    for (const std::int64_t slots : slot_counts(trace)) {
      const double most = 2 * slots < 3 * trace.top_k ? 1.75 : 1.25;
      const auto plain = static_cast<double>(lru(trace, slots).misses);
      const auto ours = static_cast<double>(run("swap_score", trace, slots).misses);
      BOOST_TEST(ours <= most * plain, trace.name << ", " << slots << " slots: " << ours / plain);
    }
  }
}

BOOST_AUTO_TEST_CASE(score_survives_scores_that_say_nothing) {
  TestTrace trace = with_prefill(churn_trace(2, 32, 512, 300, 2, 41));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  trace.steps[3].scores.assign(512, 0.f);
  trace.steps[5].scores.assign(512, nan);
  trace.steps[7].scores.assign(512, infinite);
  trace.steps[9].scores = {1.f, nan, -infinite, infinite};
  trace.steps[11].scores.assign(1, 1e38f);
  BOOST_TEST(run("swap_score", trace, 64).short_answers == 0);
}

}  // namespace
}  // namespace ebb::test
