#pragma once

#include <boost/test/unit_test.hpp>
#include <map>

#include "tests/staging/simulator.h"

// What tests of staging run over: policies, modes, selections, and the comparison of counters.

namespace ebb::test {

using Ids = Simulator::Ids;

/// Keys of [swap].
inline std::string settings(StagingMode mode, std::int64_t slots, const std::string& more = "") {
  return "slots = " + std::to_string(slots) + "\nstaging = \"" +
         (mode == StagingMode::demand ? "demand" : "zero_copy") + "\"\n" + more;
}

/// Draws selections as a model would: mostly those of the step before, a few new ones.
class Selector {
 public:
  Selector(unsigned seed, std::int32_t top_k, bool messy = false)
      : random_(seed), top_k_(top_k), messy_(messy) {}

  Ids operator()(std::int32_t sequence, std::int32_t layer, std::int32_t n_visible) {
    std::set<std::int32_t>& set = last_[{sequence, layer}];
    std::erase_if(set, [&](std::int32_t id) { return id >= n_visible || random_() % 5 == 0; });
    while (static_cast<std::int32_t>(set.size()) < std::min(top_k_, n_visible)) {
      set.insert(static_cast<std::int32_t>(random_() % static_cast<unsigned>(n_visible)));
    }
    Ids ids(set.begin(), set.end());
    if (messy_ && !ids.empty()) {  // padding and duplicates, in any order
      ids[random_() % ids.size()] = -1;
      ids[random_() % ids.size()] = ids[random_() % ids.size()];
      std::shuffle(ids.begin(), ids.end(), random_);
    }
    return ids;
  }

 private:
  std::mt19937 random_;
  const std::int32_t top_k_;
  const bool messy_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::set<std::int32_t>> last_;
};

struct Case {
  const char* name;
  std::string policy, keys;
};
inline const std::vector<Case> kPolicies = {
    {"none", "swap_none", ""},
    {"lru", "swap_lru", ""},
    {"adaptive", "swap_adaptive", ""},
    {"score", "swap_score", ""},
    {"chaos", Simulator::kChaos, "seed = 3"},
    {"lies", Simulator::kChaos, "seed = 4\nlies = 0.3"},
};
inline constexpr StagingMode kModes[] = {StagingMode::demand, StagingMode::zero_copy};

/// Feeds one sequence to its end: prefill of `prompt` rows in steps of `chunk`, then row by row.
inline void run_solo(Simulator& simulator, Selector& select, std::int32_t prompt,
                     std::int32_t chunk, std::int32_t length) {
  simulator.open_sequence(0);
  for (std::int32_t fed = 0; fed < length;) {
    const std::int32_t n = fed < prompt ? std::min(chunk, prompt - fed) : 1;
    simulator.step({{0, n}}, std::ref(select));
    fed += n;
  }
}

inline void same_counters(Simulator& simulator, const std::string& what) {
  simulator.staging().settle();
  for (std::size_t i = 0; i < simulator.staging().counters().size(); ++i) {
    const SwapCounters& got = simulator.staging().counters()[i];
    const SwapCounters& want = simulator.expected(static_cast<std::int32_t>(i));
    BOOST_TEST(got.selections == want.selections, what << " layer " << i);
    BOOST_TEST(got.distinct == want.distinct, what << " layer " << i);
    BOOST_TEST(got.hits == want.hits, what << " layer " << i);
    BOOST_TEST(got.misses == want.misses, what << " layer " << i);
    if (!simulator.knows_prefetch()) continue;
    BOOST_TEST(got.prefetched == want.prefetched, what << " layer " << i);
    BOOST_TEST(got.prefetch_used == want.prefetch_used, what << " layer " << i);
    BOOST_TEST(got.prefetch_wasted == want.prefetch_wasted, what << " layer " << i);
  }
}

}  // namespace ebb::test
