// Forecasts: what they keep gets slots early, and nothing that is needed more loses its slot for
// it. The simulator (simulator.h) holds every step to the invariants of docs/swapping.md and counts
// on its own what was foreseen, used and wasted.

#define BOOST_TEST_MODULE swap_prefetch
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <limits>

#include "tests/staging/cases.h"

namespace {

using ebb::SlotMove;
using ebb::StagingMode;
using ebb::SwapCounters;
using ebb::test::Case;
using ebb::test::Ids;
using ebb::test::kModes;
using ebb::test::kPolicies;
using ebb::test::same_counters;
using ebb::test::Selector;
using ebb::test::settings;
using ebb::test::Simulator;
using ebb::test::SimulatorShape;

struct Scores {
  std::vector<float> scores;
  Ids kept;
};

/// Of `n` chunks; now and then scores that are no number. With `share` of the chunks kept.
Scores random_scores(std::mt19937& random, std::int32_t n, double share) {
  Scores made;
  for (std::int32_t c = 0; c < n; ++c) {
    made.scores.push_back(static_cast<float>(random() % 1000) / 100 - 5);
    if (random() % 50 == 0) made.scores.back() = std::numeric_limits<float>::quiet_NaN();
    if (random() % 50 == 0) made.scores.back() = std::numeric_limits<float>::infinity();
    if (random() % 1000 < share * 1000) made.kept.push_back(c);
  }
  return made;
}

/// Chunks of 8 tokens: several steps without a birth.
SimulatorShape long_chunks(std::int32_t n_layers) {
  SimulatorShape shape;
  shape.n_layers = n_layers;
  shape.ratio = 8;
  shape.max_rows = 64;
  return shape;
}

Simulator::Select select(Ids ids) {
  return [ids](std::int32_t, std::int32_t, std::int32_t) { return ids; };
}

/// 12 chunks and, with 8 slots in a layer, an LRU that holds eight others than 0, 1 and 2.
void select_0_to_2_and_lose_them(Simulator& simulator) {
  simulator.step({{0, 64}}, select({}));
  simulator.step({{0, 32}}, select({}));
  simulator.step({{0, 1}}, select({0, 1, 2}));
  simulator.step({{0, 1}}, select({3, 4, 5, 6}));
  simulator.step({{0, 1}}, select({7, 8, 9, 10}));
  simulator.step({{0, 1}}, select({9}));
  simulator.step({{0, 1}}, select({9}));
  for (const std::int32_t c : {0, 1, 2}) BOOST_REQUIRE(!simulator.slot_of_all(c));
}

std::set<std::int32_t> resident(Simulator& simulator, std::int32_t n) {
  std::set<std::int32_t> chunks;
  for (std::int32_t c = 0; c < n; ++c) {
    if (simulator.slot_of_all(c)) chunks.insert(c);
  }
  return chunks;
}

SwapCounters total(Simulator& simulator) { return ebb::cli::total(simulator.staging().counters()); }

}  // namespace

BOOST_AUTO_TEST_CASE(C2_C4_C5_hold_for_every_policy_mode_and_number_of_slots_under_forecasts) {
  for (const StagingMode mode : kModes) {
    for (const Case& policy : kPolicies) {
      for (const std::int64_t slots : {6, 7, 9, 20, 63}) {
        for (const char* more : {"max_prefetch = 16\n", "max_prefetch = 16\nmax_promotions = 0\n",
                                 "max_prefetch = 1\nsink_tokens = 1\n"}) {
          if (slots == 6 && std::string(more).find("sink") != std::string::npos) continue;
          const std::string what = std::string(policy.name) + ", " + std::to_string(slots) +
                                   " slots, mode " + std::to_string(static_cast<int>(mode)) + more;
          Simulator simulator({}, policy.policy, settings(mode, slots, more + policy.keys));
          Selector select(static_cast<unsigned>(slots), 6);
          std::mt19937 random(static_cast<unsigned>(slots) + 1);
          BOOST_TEST_CONTEXT(what) {
            for (int life = 0; life < 2; ++life) {
              simulator.open_sequence(0);
              for (std::int32_t fed = 0; fed < 256;) {
                if (fed >= 50 && random() % 7 == 0) {
                  const Scores made = random_scores(random, fed / 4, 0.4);
                  simulator.forecast(0, made.scores, made.kept);
                }
                const std::int32_t n = fed < 50 ? std::min(8, 50 - fed) : 1;
                BOOST_REQUIRE_NO_THROW(simulator.step({{0, n}}, std::ref(select)));
                fed += n;
              }
              same_counters(simulator, what);
              simulator.close_sequence(0);
              same_counters(simulator, what);
              const SwapCounters all = total(simulator);
              // With nothing in a slot, nothing is under way.
              BOOST_TEST(all.prefetched == all.prefetch_used + all.prefetch_wasted);
            }
          }
          const SwapCounters all = total(simulator);
          if (slots >= 9 && slots < 63)
            BOOST_TEST((all.prefetched > 0U || policy.policy == "swap_none"), what);
          if (std::string(policy.name) != "lies") BOOST_TEST(all.refused == 0U, what);
          // R10: what a step selects finds room, whatever was foreseen for it.
          if (policy.policy == "swap_lru" && mode == StagingMode::demand && slots > 6 &&
              std::string(more) == "max_prefetch = 16\n") {
            BOOST_TEST(all.pool_reads == 0U, what);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(without_prefetch_a_forecast_moves_nothing) {
  for (const StagingMode mode : kModes) {
    std::vector<SwapCounters> seen;
    for (const bool forecasts : {false, true}) {
      Simulator simulator({}, "swap_lru", settings(mode, 9));
      Selector select(3, 6);
      std::mt19937 random(4);
      simulator.open_sequence(0);
      for (std::int32_t fed = 0; fed < 256; ++fed) {
        const Scores made = random_scores(random, fed / 4, 0.4);
        if (forecasts && fed % 5 == 0) simulator.forecast(0, made.scores, made.kept);
        simulator.step({{0, 1}}, std::ref(select));
      }
      simulator.staging().settle();
      seen.push_back(total(simulator));
      seen.back().stall_us = 0;
    }
    BOOST_TEST(std::memcmp(&seen[0], &seen[1], sizeof(SwapCounters)) == 0);
    BOOST_TEST(seen[1].prefetched == 0U);
  }
}

BOOST_AUTO_TEST_CASE(the_best_scores_come_first_and_no_more_than_allowed_per_step) {
  for (const StagingMode mode : kModes) {
    Simulator simulator(long_chunks(3), "swap_lru",
                        settings(mode, 8, "max_prefetch = 2\nmax_promotions = 0\n"));
    simulator.open_sequence(0);
    select_0_to_2_and_lose_them(simulator);
    std::vector<float> scores(12, 0);
    for (std::int32_t c : {0, 1, 2, 3})
      scores[static_cast<std::size_t>(c)] = static_cast<float>(c + 1);
    scores[11] = 3.5;
    const std::set<std::int32_t> had = resident(simulator, 12);
    simulator.forecast(0, scores, {0, 1, 2});
    simulator.step({{0, 1}}, select({9}));
    BOOST_TEST(!simulator.slot_of_all(0));
    BOOST_TEST(simulator.slot_of_all(1));
    BOOST_TEST(simulator.slot_of_all(2));
    simulator.step({{0, 1}}, select({9}));
    BOOST_TEST(simulator.slot_of_all(0));
    // What scores as much as the best that came is where it was.
    for (const std::int32_t c : had) {
      if (scores[static_cast<std::size_t>(c)] >= 3) BOOST_TEST(simulator.slot_of_all(c), c);
    }
    simulator.staging().settle();
    BOOST_TEST(total(simulator).prefetched == 3 * 3U);
  }
}

BOOST_AUTO_TEST_CASE(what_a_layer_never_selected_takes_free_slots_only) {
  for (const StagingMode mode : kModes) {
    Simulator simulator(long_chunks(2), "swap_lru", settings(mode, 8, "max_prefetch = 16"));
    simulator.open_sequence(0);
    simulator.step({{0, 32}}, select({}));  // chunks 0..3, with slots
    const auto foresee = [&](std::int32_t n) {
      std::vector<float> scores(static_cast<std::size_t>(n), 0);
      scores[0] = 5;
      simulator.forecast(0, scores, {0});
      simulator.step({{0, 1}}, select({}));
      simulator.step({{0, 1}}, select({}));
    };
    simulator.step({{0, 64}}, select({}));  // 4..11 take the slots of 0..3
    foresee(12);
    BOOST_TEST(!simulator.slot_of_all(0));
    simulator.close_sequence(0);
    // What another sequence selected is forgotten with it.
    simulator.open_sequence(0);
    select_0_to_2_and_lose_them(simulator);
    foresee(12);
    BOOST_TEST(simulator.slot_of_all(0));
    simulator.close_sequence(0);
    simulator.open_sequence(0);
    simulator.step({{0, 32}}, select({}));
    simulator.step({{0, 64}}, select({}));
    foresee(12);
    BOOST_TEST(!simulator.slot_of_all(0));
  }
}

BOOST_AUTO_TEST_CASE(R10_nothing_selected_lately_pinned_or_of_a_better_score_goes_for_a_forecast) {
  for (const Case& policy : kPolicies) {
    // In demand, what a step begins with are births and what was foreseen.
    Simulator simulator(
        {}, policy.policy,
        settings(StagingMode::demand, 14,
                 "max_prefetch = 5\nsink_tokens = 8\nrecent_tokens = 4\n" + policy.keys));
    std::set<std::pair<std::int32_t, std::int32_t>> last;
    Selector draw(5, 6);
    const auto select = [&](std::int32_t sequence, std::int32_t layer, std::int32_t n_visible) {
      if (layer == 0) last.clear();
      const Ids ids = draw(sequence, layer, n_visible);
      for (const std::int32_t id : ids) last.insert({layer, id});
      return ids;
    };
    std::mt19937 random(6);
    simulator.open_sequence(0);
    Scores made;
    std::uint64_t n_foreseen = 0, n_taken = 0;
    const std::int32_t* base[3] = {};
    for (std::int32_t pos = 0; pos < 256; ++pos) {
      if (pos % 8 == 4) {
        made = random_scores(random, pos / 4, 0.5);
        simulator.forecast(0, made.scores, made.kept);
      }
      const auto score = [&](std::int32_t c) {
        if (static_cast<std::size_t>(c) >= made.scores.size()) return HUGE_VALF;
        const float s = made.scores[static_cast<std::size_t>(c)];
        return std::isnan(s) ? -HUGE_VALF : s;
      };
      const auto before = last;
      simulator.step({{0, 1}}, select);
      const ebb::SlotMoves list = simulator.staging().step_moves();
      for (std::int32_t layer = 0; layer < 3; ++layer) base[layer] = simulator.table(layer);
      if (pos % 4 == 3) continue;  // a chunk was born, whose victims may be any
      std::vector<std::int32_t> gone;
      for (std::int32_t i = 0; i < *list.count; ++i) {
        const SlotMove& move = list.moves[i];
        std::int32_t layer = 0;
        while (move.entry < base[layer] || move.entry >= base[layer] + 64) ++layer;
        const auto chunk = static_cast<std::int32_t>(move.entry - base[layer]);
        if (move.value < 0) {
          ++n_taken;
          gone.push_back(chunk);
          BOOST_TEST(!before.contains({layer, chunk}), policy.name << ": was selected just now");
          BOOST_TEST((chunk >= 2 && chunk < (pos + 1) / 4 - 1), policy.name << ": is pinned");
          continue;
        }
        ++n_foreseen;
        BOOST_TEST(move.from != nullptr);
        BOOST_TEST(std::binary_search(made.kept.begin(), made.kept.end(), chunk));
        for (const std::int32_t c : gone) BOOST_TEST(score(c) < score(chunk), policy.name);
        gone.clear();
      }
    }
    if (policy.policy != "swap_none") BOOST_TEST(n_taken > 20U, policy.name);
    BOOST_TEST((n_foreseen > 20U || policy.policy == "swap_none"), policy.name);
  }
}

BOOST_AUTO_TEST_CASE(R10_a_step_that_needs_all_slots_takes_them_from_what_was_foreseen_for_it) {
  SimulatorShape shape = long_chunks(1);
  Simulator simulator(shape, "swap_lru", settings(StagingMode::demand, 6, "max_prefetch = 16"));
  simulator.open_sequence(0);
  simulator.step({{0, 64}}, select({}));  // slots hold 2..7
  simulator.step({{0, 1}}, select({0, 1}));
  simulator.step({{0, 1}}, select({2, 3, 4, 5, 6, 7}));
  simulator.step({{0, 1}}, select({5}));
  const SwapCounters before = total(simulator);
  std::vector<float> scores(8, 0);
  scores[0] = scores[1] = 1;
  simulator.forecast(0, scores, {0, 1});
  // 0 and 1 take two slots, and the step wants six others.
  simulator.step({{0, 1}}, select({2, 3, 4, 5, 6, 7}));
  for (std::int32_t c = 0; c < 8; ++c) BOOST_TEST((simulator.slot_of(0, 0, c) >= 0) == (c >= 2), c);
  const SwapCounters all = total(simulator);
  BOOST_TEST(all.prefetched == 2U);
  BOOST_TEST(all.prefetch_wasted == 2U);
  BOOST_TEST(all.misses - before.misses == 2U);
  BOOST_TEST(all.pool_reads == 0U);
}

BOOST_AUTO_TEST_CASE(C5_what_is_in_place_as_a_step_begins_is_a_hit_and_what_nothing_uses_is_waste) {
  for (const StagingMode mode : kModes) {
    Simulator simulator(long_chunks(1), "swap_lru",
                        settings(mode, 8, "max_prefetch = 16\nmax_promotions = 0\n"));
    simulator.open_sequence(0);
    select_0_to_2_and_lose_them(simulator);
    simulator.staging().settle();
    const SwapCounters before = total(simulator);
    std::vector<float> scores(12, 0);
    for (std::size_t c : {0U, 1U, 2U}) scores[c] = 1;
    simulator.forecast(0, scores, {0, 1, 2});
    simulator.step({{0, 1}}, select({0, 9}));
    simulator.step({{0, 1}}, select({0, 1}));
    simulator.staging().settle();
    SwapCounters all = total(simulator);
    BOOST_TEST(all.prefetched == 3U);
    BOOST_TEST(all.prefetch_used == 2U);
    BOOST_TEST(all.prefetch_wasted == 0U);
    BOOST_TEST(all.misses == before.misses);
    BOOST_TEST(all.hits - before.hits == 4U);
    BOOST_TEST(all.prefetch_bytes == 3 * 24U);
    simulator.close_sequence(0);
    all = total(simulator);
    BOOST_TEST(all.prefetch_wasted == 1U);
  }
}
