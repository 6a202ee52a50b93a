#define BOOST_TEST_MODULE policies_bounds
#define BOOST_TEST_DYN_LINK
#include "tests/policies/bounds.h"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "tests/policies/traces.h"

// The bounds against searches through everything that a policy could do, on traces small enough.

namespace ebb::test {
namespace {

using Chunks = std::set<std::pair<std::int32_t, std::int32_t>>;  // (layer, chunk)

/// All subsets of `from` with `n` members, handed to `use`.
void for_subsets(const Chunks& from, std::size_t n, const std::function<void(const Chunks&)>& use) {
  const std::vector<Chunks::value_type> all(from.begin(), from.end());
  Chunks chosen;
  const std::function<void(std::size_t)> go = [&](std::size_t at) {
    if (chosen.size() == n) return use(chosen);
    if (all.size() - at < n - chosen.size()) return;
    chosen.insert(all[at]);
    go(at + 1);
    chosen.erase(all[at]);
    go(at + 1);
  };
  go(0);
}

/// demand: at each access the selected chunks have to be in slots; any others may be kept.
class DemandSearch {
 public:
  DemandSearch(const TestTrace& trace, std::int64_t slots)
      : n_slots_(static_cast<std::size_t>(slots * trace.n_layers)) {
    std::int32_t n_complete = 0;
    for (const TraceStep& step : trace.steps) {
      n_complete += step.n_born;
      const auto n = static_cast<std::int32_t>(std::min<std::int64_t>(step.n_born, slots));
      for (std::int32_t layer = 0; n > 0 && layer < trace.n_layers; ++layer) {
        groups_.push_back({true, {}});
        for (std::int32_t c = n_complete - n; c < n_complete; ++c) {
          groups_.back().second.insert({layer, c});
        }
      }
      for (std::int32_t layer = 0; layer < trace.n_layers; ++layer) {
        groups_.push_back({false, {}});
        for (const std::int32_t c : step.selected[static_cast<std::size_t>(layer)]) {
          groups_.back().second.insert({layer, c});
        }
      }
    }
  }
  std::uint64_t fewest(std::size_t at = 0, const Chunks& held = {}) {
    if (at == groups_.size()) return 0;
    const auto known = known_.find({at, held});
    if (known != known_.end()) return known->second;
    const bool is_born = groups_[at].first;
    const Chunks& group = groups_[at].second;
    Chunks rest;
    std::uint64_t misses = group.size();
    for (const auto& chunk : held) {
      if (group.count(chunk) > 0) {
        --misses;
      } else {
        rest.insert(chunk);
      }
    }
    const std::size_t room = std::min(rest.size(), n_slots_ - group.size());
    std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
    for_subsets(rest, room, [&](const Chunks& kept) {
      Chunks next = kept;
      next.insert(group.begin(), group.end());
      best = std::min(best, fewest(at + 1, next));
    });
    best += is_born ? 0 : misses;
    known_[{at, held}] = best;
    return best;
  }

 private:
  std::size_t n_slots_;
  std::vector<std::pair<bool, Chunks>> groups_;
  std::map<std::pair<std::size_t, Chunks>, std::uint64_t> known_;
};

/// zero_copy, one layer: between steps any chunks may be let go, and of those that were missed two
/// steps ago any may get a slot.
class ZeroCopySearch {
 public:
  ZeroCopySearch(const TestTrace& trace, std::int64_t slots)
      : trace_(trace), n_slots_(static_cast<std::size_t>(slots)) {}

  std::uint64_t fewest() { return go(0, 0, {}, {}, {}); }

 private:
  using Set = std::set<std::int32_t>;
  std::uint64_t go(std::size_t t, std::int32_t n_complete, Set held, Set missed_last,
                   Set missed_before) {
    if (t == trace_.steps.size()) return 0;
    const auto key = std::make_tuple(t, held, missed_last, missed_before);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    const TraceStep& step = trace_.steps[t];
    n_complete += step.n_born;
    Set could = held;
    could.insert(missed_before.begin(), missed_before.end());
    const auto n = std::min<std::int32_t>(step.n_born, static_cast<std::int32_t>(n_slots_));
    for (std::int32_t c = n_complete - n; c < n_complete; ++c) could.insert(c);
    Chunks all;
    for (const std::int32_t c : could) all.insert({0, c});
    std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
    for_subsets(all, std::min(all.size(), n_slots_), [&](const Chunks& kept) {
      Set next, missed;
      for (const auto& [layer, c] : kept) next.insert(c);
      for (const std::int32_t c : step.selected[0]) {
        if (next.count(c) == 0) missed.insert(c);
      }
      best = std::min(best, missed.size() + go(t + 1, n_complete, next, missed, missed_last));
    });
    known_[key] = best;
    return best;
  }

  const TestTrace& trace_;
  std::size_t n_slots_;
  std::map<std::tuple<std::size_t, Set, Set, Set>, std::uint64_t> known_;
};

TestTrace tiny(std::mt19937& random, std::int32_t n_layers, std::int32_t n_chunks,
               std::int32_t n_steps, std::int32_t k) {
  TestTrace trace{"tiny", n_layers, n_chunks, k, {}};
  std::int32_t n = 0;
  for (std::int32_t t = 0; t < n_steps; ++t) {
    TraceStep step;
    if (t == 0) step.n_born = n_chunks - 2;
    if (t > 0 && n < n_chunks && random() % 3 == 0) step.n_born = 1;
    n += step.n_born;
    for (std::int32_t layer = 0; layer < n_layers; ++layer) {
      std::set<std::int32_t> set;
      for (std::int32_t i = static_cast<std::int32_t>(random() % (static_cast<unsigned>(k) + 1));
           i > 0; --i) {
        set.insert(static_cast<std::int32_t>(random() % static_cast<unsigned>(n)));
      }
      step.selected.emplace_back(set.begin(), set.end());
    }
    trace.steps.push_back(std::move(step));
  }
  return trace;
}

BOOST_AUTO_TEST_CASE(demand_is_the_least_that_any_choice_of_victims_reaches) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const TestTrace trace = tiny(random, 1 + round % 2, 5, 8, 2);
    for (std::int64_t slots = 2; slots <= 3; ++slots) {
      BOOST_TEST(demand_bound(trace, slots) == DemandSearch(trace, slots).fewest(),
                 "round " << round << ", " << slots << " slots");
    }
  }
}

BOOST_AUTO_TEST_CASE(zero_copy_is_never_above_what_a_search_finds_and_mostly_equal) {
  std::mt19937 random(6);
  int n_equal = 0, n_all = 0;
  for (int round = 0; round < 60; ++round) {
    const TestTrace trace = tiny(random, 1, 5, 8, 2);
    const trace::Accesses accesses = accesses_of(trace);
    for (std::int64_t slots = 1; slots <= 3; ++slots) {
      const std::uint64_t bound = trace::Bound(accesses).zero_copy(slots);
      const std::uint64_t fewest = ZeroCopySearch(trace, slots).fewest();
      BOOST_TEST(bound <= fewest, "round " << round << ", " << slots << " slots");
      n_equal += bound == fewest;
      ++n_all;
    }
  }
  BOOST_TEST(n_equal > n_all / 2);
}

BOOST_AUTO_TEST_CASE(bounds_do_not_grow_with_slots_and_end_at_what_is_never_in_a_slot) {
  for (const TestTrace& trace : all_traces()) {
    const trace::Accesses accesses = accesses_of(trace);
    const trace::Bound bound(accesses);
    std::uint64_t demand = accesses.n_selected(), zero_copy = demand;
    for (std::int64_t slots = trace.top_k; slots < trace.n_chunks; slots += 61) {
      BOOST_TEST(bound.demand(slots) <= demand);
      BOOST_TEST(bound.zero_copy(slots) <= zero_copy);
      demand = bound.demand(slots);
      zero_copy = bound.zero_copy(slots);
    }
    BOOST_TEST(bound.demand(trace.n_chunks) == 0u);
    BOOST_TEST(bound.zero_copy(trace.n_chunks) == 0u);
  }
}

}  // namespace
}  // namespace ebb::test
