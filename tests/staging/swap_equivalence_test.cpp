// E1, E2, E3: what every layer's attention hands on and every logit have the bits that they have
// without swapping, for all policies, modes, numbers of slots, threads, prefill chunks and with
// forecasts that foresee nonsense. swap_chaos draws victims, admissions and slots at random.
//
// Of the tiny model all combinations are run (EBB_FULL_PRODUCT, a test of its own), the numbers of
// threads by turns; elsewhere, and of the demo model, where all would take half an hour, as many as
// it takes for every pair of values to meet.

#define BOOST_TEST_MODULE swap_equivalence
#define BOOST_TEST_DYN_LINK
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "tests/staging/swapping.h"
#include "tools/ebb/swap_counters.h"

namespace {

using ebb::test::Attended;
using ebb::test::feed;
using ebb::test::open_engine;
using ebb::test::Overrides;
using ebb::test::require;
using ebb::test::Rows;
using ebb::test::operator+;

constexpr const char* kChaos = EBB_POLICIES_DIR "/swap_chaos.so";

struct Policy {
  std::string module;
  Overrides keys;
};
const std::vector<Policy> kPolicies = {
    {"swap_none", {}},  {"swap_lru", {}},          {"swap_adaptive", {}},
    {"swap_score", {}}, {kChaos, {"swap.seed=1"}}, {kChaos, {"swap.seed=2", "swap.lies=0.2"}}};
const std::vector<std::string> kModes = {"demand", "zero_copy"};
const std::vector<std::int64_t> kPrefetch = {-1, 0, 3};  // -1: no forecasts at all

/// What is varied, as numbers of values.
enum Factor { policy, mode, slots, threads, chunk, prefetch, n_factors };
using Choice = std::array<std::size_t, n_factors>;

std::vector<Choice> all_choices(const Choice& sizes) {
  std::vector<Choice> all;
  Choice choice{};
  for (;;) {
    all.push_back(choice);
    std::size_t f = 0;
    while (f < n_factors && ++choice[f] == sizes[f]) choice[f++] = 0;
    if (f == n_factors) return all;
  }
}

#ifdef EBB_FULL_PRODUCT

/// All of everything but threads, which take turns such that each of up to three numbers meets
/// every three values of other factors: whatever those three are, two factors are left to turn by.
std::vector<Choice> all_with_threads_by_turns(Choice sizes) {
  const std::size_t n_threads = std::exchange(sizes[threads], 1);
  std::vector<Choice> all = all_choices(sizes);
  for (Choice& choice : all) {
    choice[threads] = std::accumulate(choice.begin(), choice.end(), std::size_t{0}) % n_threads;
  }
  return all;
}

#endif

using Pairs = std::set<std::array<std::size_t, 4>>;

Pairs pairs_of(const Choice& choice) {
  Pairs pairs;
  for (std::size_t f = 0; f < n_factors; ++f) {
    for (std::size_t g = 0; g < f; ++g) pairs.insert({f, choice[f], g, choice[g]});
  }
  return pairs;
}

/// Few choices, in which every two values of two factors meet: greedily, the one with most new
/// pairs next.
std::vector<Choice> pairwise(const Choice& sizes) {
  std::vector<Choice> left = all_choices(sizes), chosen;
  std::mt19937 random(1);
  std::shuffle(left.begin(), left.end(), random);
  Pairs met;
  for (;;) {
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const Pairs pairs = pairs_of(left[i]);
      const auto n = static_cast<std::size_t>(std::count_if(
          pairs.begin(), pairs.end(), [&](const auto& pair) { return !met.contains(pair); }));
      if (n > most) std::tie(best, most) = std::pair(i, n);
    }
    if (most == 0) return chosen;
    chosen.push_back(left[best]);
    met.merge(pairs_of(left[best]));
  }
}

struct Model {
  std::string manifest;
  Overrides sizes;
  std::vector<std::int32_t> tokens;
  std::size_t prompt;
  std::vector<std::int64_t> slots;
  std::vector<std::size_t> chunks;
};

void check(const Model& model, const std::vector<Choice>& choices) {
  const Overrides sizes =
      model.sizes + Overrides{"attention.module=" EBB_POLICIES_DIR "/attention_tap.so"};
  Attended attended;
  const auto plain = open_engine(model.manifest, sizes, true);
  const Rows want = feed(*plain, model.tokens, model.prompt, model.chunks.back(), &attended);
  ebb::SwapCounters sum;
  for (const Choice& c : choices) {
    const Policy& policy = kPolicies[c[Factor::policy]];
    Overrides keys = ebb::test::swapping(policy.module, kModes[c[mode]], model.slots[c[slots]]) +
                     policy.keys + Overrides{"compute.threads=" + std::to_string(c[threads] + 1)};
    if (kPrefetch[c[prefetch]] >= 0) {
      keys =
          keys + Overrides{"swap.max_prefetch=" + std::to_string(kPrefetch[c[prefetch]]),
                           "memory.module=memory_flash",
                           "memory.interval=5",
                           "memory.budget=0.4",
                           "memory.recent_tokens=8",
                           "memory.scorer=[{module=\"" EBB_POLICIES_DIR "/scorer_pattern.so\"}]"};
    }
    const auto engine =
        open_engine(model.manifest, sizes + keys, true, [](ebb::LogLevel, std::string_view) {});
    Attended seen;
    const std::size_t n = model.chunks[c[chunk]];
    std::string what;
    for (const std::string& key : keys) what += key + ' ';
    BOOST_TEST(ebb::test::same_bits(want, feed(*engine, model.tokens, model.prompt, n, &seen)),
               what << ", chunk " << n);
    BOOST_TEST((seen == attended), "attention: " << what << ", chunk " << n);
    for (const ebb::SwapCounters& layer : require(engine->swap_counters())) {
      BOOST_TEST(layer.prefetched == layer.prefetch_used + layer.prefetch_wasted, what);  // C5
      BOOST_TEST(layer.hits + layer.misses == layer.distinct, what);                      // C1
    }
    const ebb::SwapCounters all = ebb::cli::total(require(engine->swap_counters()));
    BOOST_TEST(all.born + all.misses - all.pool_reads + all.promotions + all.prefetched ==
                   all.evictions + all.freed,
               what);  // C4, with no sequence open
    BOOST_TEST((all.prefetched == 0U || kPrefetch[c[prefetch]] > 0), what);
    for (const ebb::cli::SwapField& field : ebb::cli::kSwapFields) {
      sum.*field.value += all.*field.value;
    }
  }
  // It is no proof of anything if nothing moved.
  BOOST_TEST(sum.misses > 1000U);
  BOOST_TEST(sum.evictions > 1000U);
  BOOST_TEST(sum.promotions > 100U);
  BOOST_TEST(sum.prefetch_used > 50U);
  BOOST_TEST(sum.refused > 10U);
}

/// 200 tokens are 50 chunks; it selects 8.
Model tiny() {
  return {ebb::test::synthetic_manifest(),
          {"engine.max_context=200", "engine.prefill_chunk=64", "loader.window=8",
           "compute.poison=true"},
          ebb::test::random_tokens(200, 1),
          150,
          {8, 9, 12, 49},
          {1, 7, 64}};
}

}  // namespace

#ifdef EBB_FULL_PRODUCT

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_tiny_model_in_all_combinations) {
  check(tiny(), all_with_threads_by_turns({kPolicies.size(), 2, 4, 3, 3, kPrefetch.size()}));
}

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_demo_model_in_all_pairs) {
  // 400 tokens are 100 chunks; it selects 64.
  const Model demo{ebb::test::cpu_manifest(EBB_DEMO "/ds4-mini-q8_0.gguf", false),
                   {"engine.max_context=400", "engine.prefill_chunk=64", "compute.precision=fast"},
                   ebb::test::random_tokens(400, 7, 4000),
                   300,
                   {64, 65, 96, 99},
                   {1, 7, 64}};
  check(demo, pairwise({kPolicies.size(), 2, 4, 3, 3, kPrefetch.size()}));
}

#else

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_tiny_model_in_all_pairs) {
  check(tiny(), pairwise({kPolicies.size(), 2, 4, 3, 3, kPrefetch.size()}));
}

BOOST_AUTO_TEST_CASE(a_bit_that_differs_is_seen) {
  const Model model = tiny();
  const Overrides sizes =
      model.sizes + Overrides{"attention.module=" EBB_POLICIES_DIR "/attention_tap.so"};
  Attended attended, other;
  feed(*open_engine(model.manifest, sizes, true), model.tokens, 150, 64, &attended);
  std::vector<std::int32_t> tokens = model.tokens;
  tokens[100] ^= 1;
  feed(*open_engine(model.manifest, sizes, true), tokens, 150, 64, &other);
  for (std::size_t layer = 0; layer < attended.size(); ++layer) {
    BOOST_TEST(attended[layer].size() == 200U);
    for (std::size_t pos = 0; pos < 100; ++pos) {
      BOOST_TEST(attended[layer][pos] == other[layer][pos]);
    }
    BOOST_TEST(attended[layer][100] != other[layer][100]);
  }
}

#endif
