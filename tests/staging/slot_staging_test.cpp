// The host's side of swapping against a model of sets, with a device made of plain memory
// (simulator.h). The names carry the ids of docs/swapping.md.

#define BOOST_TEST_MODULE slot_staging
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "modules/swap_common/slot_map.h"
#include "tests/staging/cases.h"

namespace {

using ebb::ChunkId;
using ebb::SlotMap;
using ebb::SlotRules;
using ebb::StagingMode;
using ebb::SwapCounters;
using ebb::test::Case;
using ebb::test::Ids;
using ebb::test::kModes;
using ebb::test::kPolicies;
using ebb::test::run_solo;
using ebb::test::same_counters;
using ebb::test::Selector;
using ebb::test::settings;
using ebb::test::Simulator;
using ebb::test::SimulatorShape;

}  // namespace

BOOST_AUTO_TEST_CASE(S1_the_map_is_a_partial_bijection_under_random_changes) {
  SlotRules rules;
  SlotMap map(rules, {3, 1, 40, 17, 4});
  std::mt19937 random(1);
  std::map<std::pair<int, int>, std::int32_t> model;
  for (int i = 0; i < 20000; ++i) {
    ++rules.epoch;
    const ChunkId id{static_cast<std::int32_t>(random() % 3),
                     static_cast<std::int32_t>(random() % 40)};
    if (model.contains({id.layer, id.chunk})) {
      map.erase(id);
      model.erase({id.layer, id.chunk});
    } else if (map.free_slots() > 0) {
      model[{id.layer, id.chunk}] = map.insert(id);
    }
    BOOST_REQUIRE(map.free_slots() + static_cast<std::int64_t>(model.size()) == 17);
    std::size_t n_owned = 0;
    for (std::size_t slot = 0; slot < map.owners().size(); ++slot) {
      const ChunkId owner = map.owners()[slot];
      if (owner.layer < 0) continue;
      ++n_owned;
      BOOST_REQUIRE((model.at({owner.layer, owner.chunk}) == static_cast<std::int32_t>(slot)));
      BOOST_REQUIRE(map.at(owner).slot == static_cast<std::int32_t>(slot));
    }
    BOOST_REQUIRE(n_owned == model.size());
  }
  for (const ChunkId id : {ChunkId{-1, 0}, {3, 0}, {0, -1}, {0, 40}, {INT32_MAX, INT32_MAX}}) {
    BOOST_TEST(!map.resident(id));
    BOOST_TEST(!map.evictable(id));
  }
}

BOOST_AUTO_TEST_CASE(R1_R3_R4_C1_to_C4_hold_for_every_policy_mode_and_number_of_slots) {
  for (const StagingMode mode : kModes) {
    for (const Case& policy : kPolicies) {
      for (const std::int64_t slots : {6, 7, 9, 63}) {
        const std::string what = std::string(policy.name) + ", " + std::to_string(slots) +
                                 " slots, mode " + std::to_string(static_cast<int>(mode));
        Simulator simulator({}, policy.policy, settings(mode, slots, policy.keys));
        Selector select(static_cast<unsigned>(slots), 6);
        BOOST_TEST_CONTEXT(what) {
          BOOST_REQUIRE_NO_THROW(run_solo(simulator, select, 50, 8, 256));
          same_counters(simulator, what);
        }
        const SwapCounters all = ebb::cli::total(simulator.staging().counters());
        BOOST_TEST(all.stores == 3 * 64U);
        BOOST_TEST(all.prefetched == 0U);
        if (mode == StagingMode::zero_copy) BOOST_TEST(all.pool_reads == all.misses);
        if (std::string(policy.name) != "lies") BOOST_TEST(all.refused == 0U, what);
        if (std::string(policy.name) == "none") BOOST_TEST(all.evictions == 0U, what);
        if (std::string(policy.name) == "lru" && mode == StagingMode::demand) {
          // A newborn that nothing selects may leave one slot too few where there are top_k.
          if (slots > 6) BOOST_TEST(all.pool_reads == 0U, what);
          BOOST_TEST(all.evictions > 0U, what);
        }
        if (std::string(policy.name) == "lru" && mode == StagingMode::zero_copy && slots < 63) {
          BOOST_TEST(all.promotions > 0U, what);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(R4_without_births_misses_are_what_a_set_of_the_most_recent_would_miss) {
  // Two-pass LRU on one layer, against a list that is sorted by last use.
  SimulatorShape shape;
  shape.n_layers = 1;
  shape.max_context = 4096;
  shape.max_rows = 4096;
  Simulator simulator(shape, "swap_lru", settings(StagingMode::demand, 9));
  simulator.open_sequence(0);
  simulator.step({{0, 4000}}, [](auto, auto, auto) { return Ids{}; });
  std::vector<std::int32_t> order;  // oldest first
  for (std::int32_t c = 991; c < 1000; ++c) order.push_back(c);
  std::mt19937 random(2);
  std::uint64_t n_missed = 0;
  for (int i = 0; i < 3; ++i) {  // tokens that complete no chunk
    std::set<std::int32_t> chosen;
    while (chosen.size() < 6) chosen.insert(static_cast<std::int32_t>(985 + random() % 15));
    std::vector<std::int32_t> hits, misses;
    for (const std::int32_t c : chosen) {
      const auto found = std::find(order.begin(), order.end(), c);
      (found == order.end() ? misses : hits).push_back(c);
      if (found != order.end()) order.erase(found);
    }
    for (const std::int32_t c : hits) order.push_back(c);
    for (const std::int32_t c : misses) {
      order.erase(order.begin());
      order.push_back(c);
    }
    n_missed += misses.size();
    simulator.step({{0, 1}}, [&](auto, auto, auto) { return Ids(chosen.begin(), chosen.end()); });
    for (std::int32_t c = 0; c < 1000; ++c) {
      const bool want = std::find(order.begin(), order.end(), c) != order.end();
      BOOST_TEST((simulator.slot_of(0, 0, c) >= 0) == want, "step " << i << " chunk " << c);
    }
  }
  BOOST_TEST(simulator.staging().counters()[0].misses == n_missed);
  BOOST_TEST(n_missed > 0U);
}

BOOST_AUTO_TEST_CASE(R8_R9_a_chunk_has_a_slot_from_the_token_that_completes_it_and_not_before) {
  for (const StagingMode mode : kModes) {
    Simulator simulator({}, "swap_lru", settings(mode, 10));
    Selector select(5, 6);
    simulator.open_sequence(0);
    for (std::int32_t pos = 0; pos < 256; ++pos) {
      const std::int32_t chunk = pos / 4;
      const auto before = ebb::cli::total(simulator.staging().counters());
      simulator.step({{0, 1}}, std::ref(select));
      const auto after = ebb::cli::total(simulator.staging().counters());
      for (std::int32_t layer = 0; layer < 3; ++layer) {
        BOOST_TEST((simulator.slot_of(0, layer, chunk) >= 0) == (pos % 4 == 3), "pos " << pos);
      }
      BOOST_TEST(after.stores - before.stores == (pos % 4 == 3 ? 3U : 0U), "pos " << pos);
      BOOST_TEST(after.born - before.born == (pos % 4 == 3 ? 3U : 0U), "pos " << pos);
    }
  }
}

BOOST_AUTO_TEST_CASE(R8_of_a_prefill_step_that_completes_more_than_fits_the_newest_get_slots) {
  SimulatorShape shape;
  shape.max_rows = 200;
  Simulator simulator(shape, "swap_lru", settings(StagingMode::zero_copy, 10));
  simulator.open_sequence(0);
  simulator.step({{0, 13}}, [](auto, auto, auto) { return Ids{}; });
  simulator.step({{0, 187}}, [](auto, auto, auto) { return Ids{}; });
  for (std::int32_t c = 0; c < 64; ++c) {
    BOOST_TEST((simulator.slot_of(0, 1, c) >= 0) == (c >= 40 && c < 50), "chunk " << c);
  }
}

BOOST_AUTO_TEST_CASE(R10_pinned_chunks_keep_their_slots_whatever_the_policy_says) {
  for (const StagingMode mode : kModes) {
    for (const Case& policy : kPolicies) {
      // 3 chunks at the start and 2 at the end.
      Simulator simulator(
          {}, policy.policy,
          settings(mode, 6 + 3 + 2, "sink_tokens = 9\nrecent_tokens = 8\n" + policy.keys));
      Selector select(6, 6);
      simulator.open_sequence(0);
      for (std::int32_t pos = 0; pos < 256; ++pos) {
        std::set<std::pair<int, int>> had;
        const std::int32_t complete = (pos + 1) / 4;
        for (std::int32_t layer = 0; layer < 3; ++layer) {
          for (std::int32_t c = 0; c < complete; ++c) {
            const bool is_pinned = c < 3 || c >= complete - 2;
            if (is_pinned && simulator.slot_of(0, layer, c) >= 0) had.insert({layer, c});
          }
        }
        simulator.step({{0, 1}}, std::ref(select));
        for (const auto& [layer, c] : had) {
          BOOST_TEST(simulator.slot_of(0, layer, c) >= 0,
                     policy.name << ": pos " << pos << " layer " << layer << " chunk " << c);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(R11_R12_duplicates_count_once_and_padding_touches_nothing) {
  for (const StagingMode mode : kModes) {
    Simulator simulator({}, "swap_lru", settings(mode, 8));
    Selector select(7, 6, true);
    BOOST_REQUIRE_NO_THROW(run_solo(simulator, select, 20, 8, 256));
    same_counters(simulator, "messy selections");
    const SwapCounters all = ebb::cli::total(simulator.staging().counters());
    BOOST_TEST(all.selections > all.distinct);
  }
}

BOOST_AUTO_TEST_CASE(R12_H3_ids_of_chunks_that_are_not_complete_are_ignored) {
  for (const StagingMode mode : kModes) {
    Simulator simulator({}, "swap_lru", settings(mode, 8));
    simulator.open_sequence(0);
    Selector select(8, 6);
    for (int i = 0; i < 100; ++i) simulator.step({{0, 1}}, std::ref(select));
    simulator.staging().settle();
    const SwapCounters before = ebb::cli::total(simulator.staging().counters());
    // By hand: what no select op would write.
    const std::int32_t pos = 100, seq = 0;
    simulator.staging().begin_step(&pos, &seq, 1);
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      const ebb::SelectionLog log = simulator.staging().log(layer);
      const std::int32_t ids[] = {25, 64, -7, INT32_MIN, INT32_MAX, 26};
      std::copy(std::begin(ids), std::end(ids), log.ids);
      log.count[0] = 1000;
      if (mode == StagingMode::demand) simulator.staging().resolve(layer);
    }
    simulator.staging().settle();
    const SwapCounters after = ebb::cli::total(simulator.staging().counters());
    BOOST_TEST(after.selections == before.selections);
    BOOST_TEST(after.misses == before.misses);
    BOOST_TEST(after.h2d_bytes == before.h2d_bytes);
    BOOST_TEST(after.evictions == before.evictions);
  }
}

BOOST_AUTO_TEST_CASE(H2_H4_pool_rows_never_change_and_an_eviction_moves_no_byte) {
  for (const StagingMode mode : kModes) {
    Simulator simulator({}, Simulator::kChaos, settings(mode, 7, "seed = 9"));
    Selector select(9, 6);
    simulator.open_sequence(0);
    std::vector<std::vector<std::byte>> stored;
    for (std::int32_t pos = 0; pos < 256; ++pos) {
      simulator.step({{0, 1}}, std::ref(select));
      if (pos % 4 == 3) {
        const std::byte* const row = simulator.pool_row(0, 2, pos / 4);
        stored.emplace_back(row, row + 24);
      }
      for (std::size_t c = 0; c < stored.size(); ++c) {
        BOOST_REQUIRE(std::memcmp(stored[c].data(),
                                  simulator.pool_row(0, 2, static_cast<std::int32_t>(c)), 24) == 0);
      }
    }
    simulator.staging().settle();
    const SwapCounters all = ebb::cli::total(simulator.staging().counters());
    BOOST_TEST(all.evictions > 0U);
    BOOST_TEST(all.d2h_bytes == 3 * 64U * 24);
  }
}

BOOST_AUTO_TEST_CASE(S5_S6_sequences_do_not_meet_and_a_closed_one_leaves_nothing) {
  for (const StagingMode mode : kModes) {
    for (const Case& policy : kPolicies) {
      SimulatorShape shape;
      shape.max_open = 3;
      Simulator simulator(shape, policy.policy, settings(mode, 9, policy.keys));
      Selector select(10, 6);
      std::mt19937 random(11);
      for (int round = 0; round < 600; ++round) {
        std::vector<Simulator::Feed> feeds;
        for (std::int32_t s = 0; s < 3; ++s) {
          if (!simulator.is_open(s)) {
            simulator.open_sequence(s);
          } else if (random() % 40 == 0 || simulator.length(s) > 240) {
            simulator.close_sequence(s);
            continue;
          }
          const auto n = static_cast<std::int32_t>(random() % 3);
          if (n > 0) feeds.push_back({s, n});
        }
        if (feeds.empty()) continue;
        BOOST_TEST_CONTEXT(policy.name << " round " << round) {
          BOOST_REQUIRE_NO_THROW(simulator.step(feeds, std::ref(select)));
        }
      }
      for (std::int32_t s = 0; s < 3; ++s) {
        if (simulator.is_open(s)) simulator.close_sequence(s);
      }
      same_counters(simulator, policy.name);
      const SwapCounters all = ebb::cli::total(simulator.staging().counters());
      BOOST_TEST(all.born + all.misses - all.pool_reads + all.promotions ==
                 all.evictions + all.freed);
    }
  }
}

BOOST_AUTO_TEST_CASE(S5_a_sequence_counts_alike_whoever_was_there_before) {
  for (const StagingMode mode : kModes) {
    for (const Case& policy : kPolicies) {
      if (std::string(policy.policy) == Simulator::kChaos) continue;  // it draws on
      Simulator simulator({}, policy.policy, settings(mode, 9, policy.keys));
      std::vector<SwapCounters> seen;
      for (int run = 0; run < 3; ++run) {
        simulator.staging().settle();
        const SwapCounters before = ebb::cli::total(simulator.staging().counters());
        Selector select(12, 6);
        simulator.open_sequence(0);
        // A prompt that completes more chunks than there are slots: the first have to go.
        for (int fed = 0; fed < 80; fed += 8) simulator.step({{0, 8}}, std::ref(select));
        for (int fed = 80; fed < 200; ++fed) simulator.step({{0, 1}}, std::ref(select));
        simulator.close_sequence(0);
        seen.push_back(ebb::cli::total(simulator.staging().counters(), before));
        seen.back().stall_us = 0;
      }
      for (int run = 1; run < 3; ++run) {
        BOOST_TEST(
            std::memcmp(&seen[0], &seen[static_cast<std::size_t>(run)], sizeof(SwapCounters)) == 0,
            policy.name << ", run " << run);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_answers_are_refused_counted_and_named_in_few_log_lines) {
  for (const StagingMode mode : kModes) {
    Simulator simulator({}, Simulator::kChaos, settings(mode, 7, "seed = 12\nlies = 0.5"));
    Selector select(12, 6);
    BOOST_REQUIRE_NO_THROW(run_solo(simulator, select, 30, 8, 256));
    simulator.staging().settle();
    const SwapCounters all = ebb::cli::total(simulator.staging().counters());
    BOOST_TEST(all.refused > 50U);
    std::size_t n_lines = 0;
    for (const std::string& line : simulator.log()) {
      if (line.find("refused") == line.npos) continue;
      ++n_lines;
      BOOST_TEST(line.starts_with("policy: "), line);
    }
    BOOST_TEST(n_lines > 0U);
    BOOST_TEST(n_lines < 3 * 16U);
  }
}

BOOST_AUTO_TEST_CASE(S2_the_pool_holds_every_chunk_once_and_the_slots_what_was_asked_for) {
  SimulatorShape shape;
  shape.max_open = 2;
  shape.max_context = 250;  // the last chunk is never complete, and has a row
  Simulator simulator(shape, "swap_lru", settings(StagingMode::zero_copy, 9));
  BOOST_TEST(simulator.staging().layout().pool_bytes == 3 * 2 * 63 * 24U);
  BOOST_TEST(simulator.staging().layout().n_slots == 9);
}
