// Forecasts in the whole engine: "exact" changes no bit, "bounded" and "direct" select what the
// forecast allows and nothing else, and what a sequence gets depends on its own tokens alone.

#define BOOST_TEST_MODULE memory_engine
#define BOOST_TEST_DYN_LINK
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>

#include "tests/staging/swapping.h"
#include "tools/trace/swap_tap.h"

namespace {

using ebb::Engine;
using ebb::Forecast;
using ebb::StepRow;
using ebb::test::feed_together;
using ebb::test::open_engine;
using ebb::test::Overrides;
using ebb::test::random_tokens;
using ebb::test::require;
using ebb::test::Rows;
using ebb::test::same_bits;
using ebb::test::swapping;
using ebb::test::synthetic_manifest;
using ebb::test::operator+;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kContext = 200;  // 50 chunks; the tiny model selects 8
const Overrides kSizes = {"engine.max_context=200", "engine.prefill_chunk=64"};

Overrides memory(const std::string& mode, const std::string& scorer, std::int64_t interval = 16) {
  return {"memory.module=memory_flash",
          "memory.mode=" + mode,
          "memory.interval=" + std::to_string(interval),
          "memory.budget=0.3",
          "memory.recent_tokens=8",
          "memory.sink_tokens=4",
          "memory.scorer=[{module=\"" + scorer + "\"}]"};
}

/// Feeds a prompt in steps of `chunk`, then the rest token by token; logits from the prompt's last
/// token on.
Rows feed(Engine& engine, std::span<const std::int32_t> tokens, std::size_t prompt,
          std::size_t chunk) {
  const std::int32_t sequence = require(engine.open_sequence());
  Rows all;
  for (std::size_t fed = 0; fed < tokens.size();) {
    const std::size_t n = fed < prompt ? std::min(chunk, prompt - fed) : 1;
    std::vector<StepRow> rows;
    for (std::size_t i = fed; i < fed + n; ++i) {
      rows.push_back({sequence, tokens[i], i + 1 >= prompt});
    }
    require(engine.step(rows));
    fed += n;
    if (fed < prompt) continue;
    const auto logits = require(engine.logits(0));
    all.emplace_back(logits.begin(), logits.end());
  }
  engine.close_sequence(sequence);
  return all;
}

/// Notes the forecasts of a sequence and what each step selected in every layer.
class Witness final : public ebb::trace::SwapTap {
 public:
  struct Step {
    std::int32_t pos = 0, n_rows = 0;
    std::vector<Ids> selected;  // by layer, of a step of one row
    int n_forecasts = 0;        // that had come before the step
  };
  struct Seen {
    std::size_t n = 0;
    Ids kept;
  };

  using SwapTap::SwapTap;

  void settle() noexcept override {
    take_log();
    SwapTap::settle();
  }
  void scored(const Forecast& forecast) noexcept override {
    forecasts.push_back({forecast.scores.size(), {forecast.kept.begin(), forecast.kept.end()}});
    SwapTap::scored(forecast);
  }
  void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                  std::int32_t n_rows) noexcept override {
    take_log();
    steps.push_back({pos[n_rows - 1], n_rows, {}, static_cast<int>(forecasts.size())});
    SwapTap::begin_step(pos, seq, n_rows);
  }

  std::vector<Step> steps;
  std::vector<Seen> forecasts;

 private:
  void take_log() {
    if (steps.empty() || steps.back().n_rows != 1 || !steps.back().selected.empty()) return;
    for (std::int32_t layer = 0; layer < layout().n_layers; ++layer) {
      const ebb::SelectionLog chosen = log(layer);
      steps.back().selected.emplace_back(chosen.ids, chosen.ids + chosen.count[0]);
    }
  }
};

std::string refusal(const Overrides& overrides) {
  try {
    open_engine(synthetic_manifest(), kSizes + overrides);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

BOOST_AUTO_TEST_CASE(F8_exact_changes_no_bit_whatever_the_scores_are) {
  const Ids tokens = random_tokens(kContext, 1);
  const Rows want = feed(*open_engine(synthetic_manifest(), kSizes), tokens, 100, 64);
  std::size_t turn = 0;  // of the scorers: each meets every two of the other three
  for (const std::int64_t interval : {1, 7, 1000}) {  // the last: one forecast, then none
    for (const char* policy : {"swap_lru", "swap_score", "swap_none"}) {
      for (const char* staging : {"zero_copy", "demand"}) {
        const char* const scorer = turn++ % 2 == 0 ? "scorer_random" : "scorer_recent";
        const auto engine =
            open_engine(synthetic_manifest(),
                        kSizes + memory("exact", scorer, interval) + swapping(policy, staging, 9));
        BOOST_TEST(same_bits(want, feed(*engine, tokens, 100, 33)),
                   scorer << ' ' << interval << ' ' << policy << ' ' << staging);
        BOOST_TEST(engine->memory()->counters().refreshes > 0U);
      }
      ++turn;
    }
  }
}

BOOST_AUTO_TEST_CASE(bounded_and_direct_give_the_same_bits_however_they_run) {
  const Ids tokens = random_tokens(kContext, 2);
  const Rows native = feed(*open_engine(synthetic_manifest(), kSizes), tokens, 100, 64);
  for (const char* mode : {"bounded", "direct"}) {
    const Overrides how = kSizes + memory(mode, "scorer_random", 12);
    const Rows want = feed(*open_engine(synthetic_manifest(), how), tokens, 100, 64);
    BOOST_TEST(!same_bits(native, want), mode << " selects as the model does: nothing is tested");
    std::size_t turn = 0;  // of the numbers of threads
    for (const std::size_t chunk : {1, 9, 64}) {
      for (const Overrides& swap : {Overrides{}, swapping("swap_lru", "zero_copy", 9),
                                    swapping("swap_score", "demand", 20)}) {
        const std::string threads = turn++ % 2 == 0 ? "1" : "3";
        const auto engine =
            open_engine(synthetic_manifest(), how + swap + Overrides{"compute.threads=" + threads});
        BOOST_TEST(same_bits(want, feed(*engine, tokens, 100, chunk)),
                   mode << ' ' << threads << " threads, chunk " << chunk);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(F7_forecasts_come_every_interval_and_take_effect_two_steps_later) {
  const Ids tokens = random_tokens(180, 3);
  const auto engine =
      open_engine(synthetic_manifest(), kSizes + memory("exact", "scorer_recent", 16) +
                                            swapping("swap_lru", "zero_copy", 9));
  Witness witness(*engine);
  feed(*engine, tokens, 100, 64);
  // The prompt's last token stands at 99: it asks, and so do 115, 131, ...
  std::size_t next = 0;
  for (const Witness::Step& step : witness.steps) {
    const int due = step.pos < 101 ? 0 : (step.pos - 101) / 16 + 1;
    BOOST_TEST(step.n_forecasts == due, "at position " << step.pos);
    if (static_cast<std::size_t>(due) > next) {
      BOOST_TEST(witness.forecasts[next].n == static_cast<std::size_t>((step.pos - 2 + 1) / 4));
      ++next;
    }
  }
  BOOST_TEST(next == 5U);
  // 15 of 50 chunks would be 0.3 of them: here 0.3 of those that were complete.
  BOOST_TEST(witness.forecasts[0].kept.size() == 7U);
}

BOOST_AUTO_TEST_CASE(F6_first_and_recent_tokens_are_rounded_up_to_whole_chunks) {
  struct Case {
    int sink_tokens, recent_tokens;
    Ids kept;  // of 25 chunks, where the budget is less than the forced ones
  };
  for (const Case& c : {Case{1, 1, {0, 24}}, Case{4, 4, {0, 24}}, Case{5, 9, {0, 1, 22, 23, 24}},
                        Case{0, 3, {24}}, Case{6, 0, {0, 1}}}) {
    const auto engine = open_engine(
        synthetic_manifest(),
        kSizes + memory("exact", "scorer_random", 1000) + swapping("swap_lru", "zero_copy", 9) +
            Overrides{"memory.budget=0", "memory.sink_tokens=" + std::to_string(c.sink_tokens),
                      "memory.recent_tokens=" + std::to_string(c.recent_tokens)});
    Witness witness(*engine);
    feed(*engine, random_tokens(104, 9), 100, 64);
    BOOST_TEST_REQUIRE(witness.forecasts.size() == 1U);
    BOOST_TEST(witness.forecasts[0].n == 25U);
    BOOST_TEST(witness.forecasts[0].kept == c.kept, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(bounded_selects_kept_and_new_chunks_only) {
  const Ids tokens = random_tokens(kContext, 4);
  const auto engine =
      open_engine(synthetic_manifest(), kSizes + memory("bounded", "scorer_random", 16) +
                                            swapping("swap_lru", "zero_copy", 9));
  Witness witness(*engine);
  feed(*engine, tokens, 100, 64);
  require(engine->swap_counters());
  std::size_t n_new = 0, n_kept = 0;
  for (const Witness::Step& step : witness.steps) {
    if (step.n_forecasts == 0) continue;
    const Witness::Seen& forecast =
        witness.forecasts[static_cast<std::size_t>(step.n_forecasts - 1)];
    for (const Ids& ids : step.selected) {
      BOOST_TEST(!ids.empty());
      for (const std::int32_t id : ids) {
        const bool is_new = static_cast<std::size_t>(id) >= forecast.n;
        const bool is_kept = std::binary_search(forecast.kept.begin(), forecast.kept.end(), id);
        BOOST_TEST((is_new || is_kept), "chunk " << id << " at " << step.pos);
        (is_new ? n_new : n_kept) += 1;
      }
    }
  }
  BOOST_TEST(n_new > 0U);
  BOOST_TEST(n_kept > 0U);
}

void check_direct(const Overrides& more) {
  const Ids tokens = random_tokens(kContext, 5);
  const auto engine =
      open_engine(synthetic_manifest(), kSizes + memory("direct", "scorer_random", 8) + more +
                                            swapping("swap_lru", "zero_copy", 9));
  Witness witness(*engine);
  feed(*engine, tokens, 100, 64);
  require(engine->swap_counters());
  int n_checked = 0;
  for (const Witness::Step& step : witness.steps) {
    if (step.n_forecasts == 0 || step.selected.empty()) continue;
    const Witness::Seen& forecast =
        witness.forecasts[static_cast<std::size_t>(step.n_forecasts - 1)];
    Ids want = forecast.kept;
    for (auto id = static_cast<std::int32_t>(forecast.n); id < (step.pos + 1) / 4; ++id) {
      want.push_back(id);
    }
    BOOST_TEST(want.size() <= 8U);
    for (const Ids& ids : step.selected) {
      BOOST_TEST(ids == want, boost::test_tools::per_element());
    }
    ++n_checked;
  }
  BOOST_TEST(n_checked > 50);
}

BOOST_AUTO_TEST_CASE(direct_selects_all_kept_and_new_chunks_in_every_layer) {
  check_direct({});
  check_direct({"memory.select=pages", "memory.page_chunks=2", "memory.sink_tokens=4",
                "memory.recent_tokens=4"});
  check_direct({"memory.select=pages", "memory.page_chunks=1", "memory.sink_tokens=4",
                "memory.recent_tokens=8"});
}

BOOST_AUTO_TEST_CASE(S5_sequences_in_one_step_equal_their_solo_runs) {
  const Overrides how = kSizes + memory("bounded", "scorer_recent", 5);
  std::vector<Ids> prompts;
  std::vector<Rows> want;
  for (unsigned i = 0; i < 4; ++i) {
    prompts.push_back(random_tokens(90 + 25 * i, 20 + i));
    want.push_back(feed(*open_engine(synthetic_manifest(), how), prompts[i], 40 + 7 * i, 64));
  }
  const auto engine = open_engine(synthetic_manifest(), how + Overrides{"engine.max_sequences=2"});
  std::mt19937 random(6);
  const auto prompt_of = [](std::size_t k) { return 40 + 7 * k; };
  const std::vector<Rows> got = feed_together(
      *engine, prompts,
      [&](std::size_t k, std::size_t fed) -> std::size_t {
        if (random() % 3 == 0) return 0;
        return fed < prompt_of(k) ? std::min<std::size_t>(11, prompt_of(k) - fed) : 1;
      },
      [&](std::size_t k, std::size_t at) { return at + 1 >= prompt_of(k); });
  for (std::size_t k = 0; k < 4; ++k) BOOST_TEST(same_bits(want[k], got[k]), "sequence " << k);
}

BOOST_AUTO_TEST_CASE(off_takes_nothing) {
  const auto plain = open_engine(synthetic_manifest(), kSizes);
  for (const char* scorers : {"memory.scorer=[]", "memory.scorer=[{module=\"scorer_recent\"}]"}) {
    const auto engine =
        open_engine(synthetic_manifest(),
                    kSizes + Overrides{"memory.module=memory_flash", "memory.mode=off", scorers});
    BOOST_TEST(engine->memory() == nullptr);
    BOOST_TEST((plain->parts() == engine->parts()));
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_served_is_refused) {
  const auto contains = [](const std::string& text, const std::string& part) {
    BOOST_TEST(text.find(part) != text.npos, "\"" << part << "\" is not in: " << text);
  };
  contains(refusal({"memory.module=memory_flash"}), "wants one or more [[memory.scorer]]");
  contains(refusal(memory("bounded", "scorer_none")), "scorer_none");
  contains(refusal(memory("direct", "scorer_recent", 30)), "selects 8 chunks (top_k)");
  contains(refusal(memory("direct", "scorer_recent", 30)), "interval of 30");
  // Three chunks are for the interval, and the pages of a sink and a recent chunk are two of three.
  contains(refusal(memory("direct", "scorer_recent", 8) +
                   Overrides{"memory.select=pages", "memory.page_chunks=3", "memory.sink_tokens=4",
                             "memory.recent_tokens=4"}),
           "3 are for the tokens of an interval of 8, and 6 are wanted");
  // Two recent chunks may lie in two pages.
  contains(refusal(memory("direct", "scorer_recent", 8) +
                   Overrides{"memory.select=pages", "memory.page_chunks=3", "memory.sink_tokens=0",
                             "memory.recent_tokens=8"}),
           "and 6 are wanted");
  contains(refusal(memory("lazy", "scorer_recent")), "[memory] mode");
  contains(refusal(memory("bounded", "scorer_recent") + Overrides{"memory.budget=1.5"}),
           "[memory] budget = 1.5");
  contains(refusal(memory("bounded", "scorer_recent") + Overrides{"memory.ratio=4"}),
           "[memory] ratio: unknown key");
}
