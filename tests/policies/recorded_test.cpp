// Policies over the trace of a real run (tests/data/README.md): 8,154 prompt tokens of prose and
// 400 that the demo model went on with.

#define BOOST_TEST_MODULE policies_recorded
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <stdexcept>

#include "core/module_loader.h"
#include "tests/core/support.h"
#include "tests/policies/support.h"
#include "tools/ebb/swap_counters.h"
#include "tools/trace/replay.h"

namespace ebb::test {
namespace {

constexpr const char* kTrace = EBB_TEST_DATA "/traces/demo_8k.trace";
const std::vector<std::int64_t> kSlots = {64, 107, 321, 534, 1069};

trace::Reader open() {
  Result<trace::Reader> reader = trace::Reader::open(kTrace, false);
  if (!reader) throw std::runtime_error(reader.error().message);
  return *std::move(reader);
}

SwapCounters replay(const std::string& policy, bool is_demand, std::int64_t slots) {
  trace::Reader reader = open();
  const auto options = options_of("slots = " + std::to_string(slots) + "\nstaging = \"" +
                                  (is_demand ? "demand" : "zero_copy") + "\"\n");
  const ModuleChoice choice{Swap::kKind, policy, "", "test"};
  const auto layers = trace::replay(reader, ModuleLoader(EBB_MODULES_DIR), choice, *options,
                                    [](LogLevel, std::string_view) {});
  if (!layers) throw std::runtime_error(layers.error().message);
  return cli::total(*layers);
}

BOOST_AUTO_TEST_CASE(C7_no_policy_has_fewer_misses_than_the_bound) {
  trace::Reader reader = open();
  const Result<trace::Contents> contents = trace::read_contents(reader, true);
  BOOST_REQUIRE(contents);
  BOOST_REQUIRE_EQUAL(contents->sequences.size(), 1U);
  BOOST_TEST(contents->n_selections == 102144U);
  const trace::Bound bound(contents->sequences.front());
  for (const std::int64_t slots : kSlots) {
    for (const std::string& policy : all_policies()) {
      const SwapCounters demand = replay(policy, true, slots);
      const SwapCounters zero_copy = replay(policy, false, slots);
      BOOST_TEST(demand.misses >= bound.demand(slots), policy << ", " << slots << " slots");
      BOOST_TEST(zero_copy.misses >= bound.zero_copy(slots), policy << ", " << slots << " slots");
      BOOST_TEST(demand.distinct == 102144U);
      BOOST_TEST(demand.refused + zero_copy.refused == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(C7_misses_of_lru_do_not_grow_with_slots) {
  std::uint64_t before = ~std::uint64_t{0};
  for (std::int64_t slots = 64; slots < 2200; slots += slots / 8) {
    const std::uint64_t misses = replay("swap_lru", true, slots).misses;
    BOOST_TEST(misses <= before, slots << " slots");
    before = misses;
  }
  BOOST_TEST(replay("swap_lru", true, 2200).misses == 0U);  // room for all 2,138 chunks
}

BOOST_AUTO_TEST_CASE(adaptive_is_never_more_than_one_percent_worse_than_lru) {
  for (const bool is_demand : {true, false}) {
    for (const std::int64_t slots : kSlots) {
      const auto ours = static_cast<double>(replay("swap_adaptive", is_demand, slots).misses);
      const auto lru = static_cast<double>(replay("swap_lru", is_demand, slots).misses);
      BOOST_TEST(ours <= 1.01 * lru, slots << " slots, " << (is_demand ? "demand" : "zero_copy"));
    }
  }
}

// The formula, twice. swap_score finds victims with a heap of keys that do not change with time,
// the other by computing and sorting all values: on the numbers below the two have to agree.
BOOST_AUTO_TEST_CASE(score_is_its_formula) {
  for (const std::int64_t slots : {64, 107, 321}) {
    for (const bool is_demand : {true, false}) {
      BOOST_TEST(replay("swap_score", is_demand, slots).misses ==
                     replay(EBB_PLAIN_SCORE, is_demand, slots).misses,
                 slots << " slots, " << (is_demand ? "demand" : "zero_copy"));
    }
  }
}

// Whoever changes a policy sees what that does to real selections, and states it anew; of
// swap_score the numbers are those of the plain module.
BOOST_AUTO_TEST_CASE(misses_are_those_that_were_recorded) {
  struct Recorded {
    const char* policy;
    std::int64_t slots;
    std::uint64_t demand, zero_copy;
  };
  for (const auto& [policy, slots, demand, zero_copy] : {Recorded{"swap_none", 321, 93523, 93523},
                                                         {"swap_lru", 107, 53970, 60185},
                                                         {"swap_lru", 321, 23977, 26179},
                                                         {"swap_lru", 1069, 4763, 5255},
                                                         {"swap_adaptive", 107, 54446, 59010},
                                                         {"swap_adaptive", 321, 22849, 24766},
                                                         {"swap_adaptive", 1069, 3812, 4155},
                                                         {"swap_score", 107, 51406, 54088},
                                                         {"swap_score", 321, 23446, 24953},
                                                         {"swap_score", 1069, 2772, 3140}}) {
    BOOST_TEST(replay(policy, true, slots).misses == demand, policy << ", " << slots);
    BOOST_TEST(replay(policy, false, slots).misses == zero_copy, policy << ", " << slots);
  }
}

}  // namespace
}  // namespace ebb::test
