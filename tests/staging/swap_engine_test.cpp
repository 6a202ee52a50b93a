// Swapping in the whole engine: stored formats, batches, boundaries and counters; and a manifest
// that cannot be served is refused before anything is allocated. What is computed under everything
// that can be varied is compared in swap_equivalence_test.cpp.

#define BOOST_TEST_MODULE swap_engine
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "tests/staging/swapping.h"
#include "tools/ebb/swap_counters.h"

namespace {

using ebb::Engine;
using ebb::StepRow;
using ebb::SwapCounters;
using ebb::test::feed;
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

constexpr const char* kChaos = EBB_POLICIES_DIR "/swap_chaos.so";
constexpr std::int64_t kContext = 200;  // 50 chunks; the tiny model selects 8

SwapCounters total(Engine& engine) {
  const auto layers = require(engine.swap_counters());
  for (const SwapCounters& c : layers) BOOST_TEST(c.hits + c.misses == c.distinct);  // C1
  return ebb::cli::total(layers);
}

const Overrides kSizes = {"engine.max_context=" + std::to_string(kContext),
                          "engine.prefill_chunk=64", "loader.window=8", "compute.poison=true"};

std::string refusal(const Overrides& overrides) {
  try {
    open_engine(synthetic_manifest(), kSizes + overrides);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void contains(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    BOOST_TEST(message.find(word) != message.npos, "'" << word << "' is not in: " << message);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(E3_holds_for_every_stored_format_and_precision) {
  const auto tokens = random_tokens(kContext, 2);
  for (const Overrides& variant :
       {Overrides{"attention.kv_format=fp8", "attention.index_format=fp4"},
        Overrides{"attention.kv_format=f16", "compute.precision=fast"},
        Overrides{"decoder.qat_simulation=true"}}) {
    const auto plain = open_engine(synthetic_manifest(), kSizes + variant, true);
    const Rows want = feed(*plain, tokens, 100, 64);
    for (const char* mode : {"demand", "zero_copy"}) {
      const auto engine =
          open_engine(synthetic_manifest(), kSizes + variant + swapping("swap_lru", mode, 9), true);
      BOOST_TEST(same_bits(want, feed(*engine, tokens, 100, 9)), variant.front() << ' ' << mode);
    }
  }
}

BOOST_AUTO_TEST_CASE(S5_sequences_in_one_step_equal_their_solo_runs) {
  const auto plain = open_engine(synthetic_manifest(), kSizes, true);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Rows> want;
  for (unsigned i = 0; i < 4; ++i) {
    prompts.push_back(random_tokens(60 + 35 * i, 20 + i));
    want.push_back(feed(*plain, prompts[i], prompts[i].size(), 64));
  }
  for (const char* mode : {"demand", "zero_copy"}) {
    for (const std::string policy : {"swap_lru", kChaos}) {
      // Two places, so that sequences take over the slots of those before them.
      const auto engine = open_engine(
          synthetic_manifest(),
          kSizes + swapping(policy, mode, 9) + Overrides{"engine.max_sequences=2"}, true);
      std::mt19937 random(3);
      // One row each, two of one (both are logged), or a bite of the prompt.
      const std::vector<Rows> got = feed_together(
          *engine, prompts,
          [&random](std::size_t, std::size_t) {
            return std::array<std::size_t, 6>{1, 1, 1, 0, 2, 11}[random() % 6];
          },
          [](std::size_t, std::size_t) { return true; });
      for (std::size_t k = 0; k < 4; ++k) {
        BOOST_TEST(same_bits(want[k], got[k]), policy << ' ' << mode << ", sequence " << k);
      }
      const SwapCounters all = total(*engine);
      BOOST_TEST(all.born + all.misses - all.pool_reads + all.promotions ==
                 all.evictions + all.freed);
    }
  }
}

BOOST_AUTO_TEST_CASE(H3_a_filled_sequence_goes_on_as_without_swapping) {
  const auto tokens = random_tokens(90, 8);
  const auto run = [&tokens](Engine& engine) {
    const std::int32_t sequence = require(engine.open_sequence());
    require(engine.fill(sequence, 101, 9));
    Rows all;
    for (const std::int32_t token : tokens) {
      const StepRow row{sequence, token, true};
      require(engine.step({&row, 1}));
      const auto logits = require(engine.logits(0));
      all.emplace_back(logits.begin(), logits.end());
    }
    engine.close_sequence(sequence);
    return all;
  };
  const auto plain = open_engine(synthetic_manifest(), kSizes, true);
  const Rows want = run(*plain);
  for (const char* mode : {"demand", "zero_copy"}) {
    for (const std::string policy : {"swap_none", "swap_lru", kChaos}) {
      const auto engine =
          open_engine(synthetic_manifest(), kSizes + swapping(policy, mode, 10), true);
      run(*engine);  // leaves its rows behind
      BOOST_TEST(same_bits(want, run(*engine)), policy << ' ' << mode);
    }
  }
}

BOOST_AUTO_TEST_CASE(C8_counters_do_not_depend_on_threads_and_repeat_exactly) {
  const auto tokens = random_tokens(kContext, 4);
  for (const char* mode : {"demand", "zero_copy"}) {
    std::vector<SwapCounters> first;
    for (const char* threads : {"1", "2", "5", "2"}) {
      const auto engine = open_engine(synthetic_manifest(),
                                      kSizes + swapping("swap_lru", mode, 9) +
                                          Overrides{"compute.threads=" + std::string(threads)},
                                      true);
      feed(*engine, tokens, 50, 64);
      std::vector<SwapCounters> counters;
      for (SwapCounters c : require(engine->swap_counters())) {
        c.stall_us = 0;
        counters.push_back(c);
      }
      if (first.empty()) first = counters;
      BOOST_TEST(
          std::memcmp(first.data(), counters.data(), counters.size() * sizeof(SwapCounters)) == 0,
          mode << ", threads " << threads);
    }
  }
}

BOOST_AUTO_TEST_CASE(E4_S3_slots_for_all_chunks_switch_swapping_off_and_one_less_does_not) {
  const auto tokens = random_tokens(200, 5);
  const auto plain = open_engine(synthetic_manifest(), kSizes, true);
  const Rows want = feed(*plain, tokens, 100, 64);
  struct Boundary {
    std::int64_t context, slots;
    bool swaps;
  };
  for (const auto& [context, slots, swaps] : {Boundary{200, 50, false},
                                              {200, 51, false},
                                              {200, 49, true},
                                              {201, 50, true},
                                              {197, 50, false},
                                              {196, 49, false},
                                              {197, 49, true}}) {
    std::vector<std::string> lines;
    const auto engine = open_engine(
        synthetic_manifest(),
        kSizes + swapping("swap_lru", "zero_copy", slots) +
            Overrides{"engine.max_context=" + std::to_string(context)},
        true, [&lines](ebb::LogLevel, std::string_view line) { lines.emplace_back(line); });
    BOOST_TEST((engine->swap() != nullptr) == swaps, context << " tokens, " << slots);
    const bool said = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("swapping is off") != line.npos;
    });
    BOOST_TEST(said == !swaps, context << " tokens, " << slots);
    BOOST_TEST(require(engine->swap_counters()).empty() == !swaps);
    const auto n = static_cast<std::size_t>(std::min<std::int64_t>(context, 200));
    const Rows some(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n));
    BOOST_TEST(same_bits(some, feed(*engine, std::span(tokens).first(n), 100, 64)));
  }
}

BOOST_AUTO_TEST_CASE(resident_and_no_section_keep_everything_in_compute_memory) {
  const auto tokens = random_tokens(100, 6);
  const auto plain = open_engine(synthetic_manifest(), kSizes, true);
  const auto engine =
      open_engine(synthetic_manifest(), kSizes + swapping("swap_lru", "resident", 9), true);
  BOOST_TEST(engine->swap() == nullptr);
  BOOST_TEST(same_bits(feed(*plain, tokens, 100, 64), feed(*engine, tokens, 100, 64)));
  BOOST_TEST((plain->parts() == engine->parts()));
}

BOOST_AUTO_TEST_CASE(auto_is_room_for_two_selections_and_the_pins) {
  const auto engine = open_engine(synthetic_manifest(),
                                  kSizes + Overrides{"swap.module=swap_lru", "swap.slots=auto",
                                                     "swap.sink_tokens=5", "swap.recent_tokens=1"});
  BOOST_TEST(engine->swap()->layout().n_slots == 2 * 8 + 2 + 1);
  BOOST_TEST((engine->swap()->mode() == ebb::StagingMode::zero_copy));
}

BOOST_AUTO_TEST_CASE(S2_parts_hold_slots_and_tables_in_place_of_rows) {
  const auto engine =
      open_engine(synthetic_manifest(), kSizes + swapping("swap_lru", "demand", 12));
  const auto n_layers = static_cast<std::int64_t>(require(engine->swap_counters()).size());
  std::map<std::string, std::uint64_t> parts(engine->parts().begin(), engine->parts().end());
  BOOST_TEST(parts.count("csa rows") == 0U);
  BOOST_TEST(parts["chunk slots"] == static_cast<std::uint64_t>(n_layers * 12 * 256 * 4));
  BOOST_TEST(engine->swap()->layout().pool_bytes ==
             static_cast<std::uint64_t>(n_layers * 50 * 256 * 4));
}

BOOST_AUTO_TEST_CASE(E5_S4_what_does_not_fit_is_refused_with_the_figures) {
  contains(refusal(swapping("swap_lru", "demand", 7)),
           {"[swap] slots = 7", "top_k", "8 chunks", "want 8 or more"});
  contains(refusal(swapping("swap_lru", "demand", 9) + Overrides{"swap.sink_tokens=8"}),
           {"[swap] slots = 9", "2 are pinned", "want 10 or more"});
  // 3 layers of 50 rows of 256 floats
  contains(refusal(swapping("swap_lru", "zero_copy", 9) + Overrides{"swap.host_limit=153599"}),
           {"[swap] host_limit = 153599 bytes", "needs 153600"});
  BOOST_TEST(refusal(swapping("swap_lru", "zero_copy", 9) + Overrides{"swap.host_limit=153600"}) ==
             "");
  contains(refusal(swapping("swap_lru", "zero_copy", 9) + Overrides{"compute.memory_limit=100000"}),
           {"the session's buffers", "memory_limit is 100000"});
}

BOOST_AUTO_TEST_CASE(mistakes_in_the_section_name_key_and_range) {
  const Overrides base = swapping("swap_lru", "demand", 9);
  contains(refusal(base + Overrides{"swap.slots=0"}), {"[swap] slots = 0", "1..16777216"});
  contains(refusal(base + Overrides{"swap.slots=some"}),
           {"[swap] slots", "\"auto\" or an integer"});
  contains(refusal(base + Overrides{"swap.staging=lazy"}),
           {"[swap] staging", "resident, demand, zero_copy"});
  contains(refusal(base + Overrides{"swap.host_limit=-1"}), {"[swap] host_limit", "bytes"});
  contains(refusal(base + Overrides{"swap.sink_tokens=-1"}), {"[swap] sink_tokens"});
  contains(refusal(base + Overrides{"swap.size=3"}), {"[swap] size: unknown key", "slots"});
  contains(refusal({"swap.slots=9"}), {"[swap] module", "want the name of a module"});
  // Even where nothing is swapped, and with the policy's own keys.
  contains(refusal(swapping("swap_lru", "resident", 9) + Overrides{"swap.size=3"}),
           {"[swap] size: unknown key"});
  contains(refusal(swapping(kChaos, "demand", 9) + Overrides{"swap.lies=2"}), {"[swap] lies"});
}

BOOST_AUTO_TEST_CASE(E3_the_demo_model_answers_alike) {
  const std::string manifest = ebb::test::cpu_manifest(EBB_DEMO "/ds4-mini-q8_0.gguf", false);
  const Overrides sizes = {"engine.max_context=1200", "engine.prefill_chunk=64",
                           "compute.precision=fast"};
  std::mt19937 random(7);
  std::vector<std::int32_t> prompt(1000);
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random() % 4000);
  const auto plain = open_engine(manifest, sizes);
  const auto want = ebb::test::greedy(*plain, prompt, 60);
  for (const char* mode : {"demand", "zero_copy"}) {
    for (const std::string policy : {"swap_lru", "swap_none", kChaos}) {
      for (const std::int64_t slots : {64, 96}) {
        const auto engine = open_engine(manifest, sizes + swapping(policy, mode, slots));
        BOOST_TEST((ebb::test::greedy(*engine, prompt, 60) == want),
                   policy << ' ' << mode << ' ' << slots);
        BOOST_TEST(total(*engine).misses > 0U);
      }
    }
  }
}
