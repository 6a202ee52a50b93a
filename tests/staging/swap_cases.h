#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/staging/pairwise.h"
#include "tests/staging/swapping.h"
#include "tools/ebb/swap_counters.h"

// Engines that swap against one that does not, bit by bit: everything that speed and memory may
// depend on and no result, for any backend. EBB_POLICIES_DIR and EBB_DEMO are folders.

namespace ebb::test {

/// What is varied. Of each the first value is what a test has that does not vary it.
struct SwapFactor {
  enum { policy, mode, slots, prefetch, format, backend, tap, together, chunk, n };
};
using SwapChoice = ChoiceOf<SwapFactor::n>;

/// swap_chaos draws victims, admissions and slots at random.
inline const std::vector<Overrides> kSwapPolicies = {
    {"swap.module=swap_lru"},
    {"swap.module=" EBB_POLICIES_DIR "/swap_chaos.so", "swap.seed=2", "swap.lies=0.2"},
    {"swap.module=" EBB_POLICIES_DIR "/swap_chaos.so", "swap.seed=1"},
    {"swap.module=swap_none"},
    {"swap.module=swap_adaptive"},
    {"swap.module=swap_score"}};
inline const std::vector<Overrides> kSwapModes = {{"swap.staging=demand"},
                                                  {"swap.staging=zero_copy"}};
inline const std::vector<Overrides> kSwapFormats = {
    {"attention.kv_format=f32"},
    {"attention.kv_format=f16", "attention.index_format=fp8"},
    {"attention.kv_format=fp8", "attention.index_format=fp4"}};
/// What attention hands on is read through a module that copies it. The copy stands between
/// attention and the op behind it, which a backend may do in one launch: so some go without.
inline const std::vector<Overrides> kSwapTaps = {
    {"attention.module=" EBB_POLICIES_DIR "/attention_tap.so"}, {}};
/// No forecasts; forecasts that foresee nonsense, and nothing or something prefetched.
inline std::vector<Overrides> swap_prefetches() {
  const Overrides forecasts = {"memory.module=memory_flash", "memory.interval=5",
                               "memory.budget=0.4", "memory.recent_tokens=8",
                               "memory.scorer=[{module=\"" EBB_POLICIES_DIR
                               "/scorer_pattern.so\"}]"};
  return {{},
          forecasts + Overrides{"swap.max_prefetch=0"},
          forecasts + Overrides{"swap.max_prefetch=8"}};
}

struct SwapModel {
  std::string name, manifest;
  Overrides sizes;
  std::size_t n_tokens, prompt;  // of the longest sequence
  unsigned seed, vocab;
  std::size_t n_policies;  // the first of kSwapPolicies
  std::vector<std::int64_t> slots;
  std::vector<std::size_t> chunks;
  /// Sequences that decode in the same steps. Where there are several, one more waits for a place.
  std::vector<std::size_t> together;
};

/// 200 tokens are 50 chunks; it selects 8.
inline SwapModel tiny_swap_model() {
  return {"tiny",
          synthetic_manifest(),
          {"engine.max_context=200", "engine.prefill_chunk=64", "loader.window=8",
           "compute.poison=true"},
          200,
          150,
          1,
          320,
          kSwapPolicies.size(),
          {8, 9, 12, 49},
          {64, 7, 1},
          {1, 2, 5, 17}};
}

/// 400 tokens are 100 chunks; it selects 64.
inline SwapModel demo_swap_model() {
  return {"demo",
          cpu_manifest(EBB_DEMO "/ds4-mini-q8_0.gguf", false),
          {"engine.max_context=400", "engine.prefill_chunk=64", "compute.poison=true"},
          400,
          320,
          7,
          4000,
          kSwapPolicies.size(),
          {64, 65, 96, 99},
          {64, 7, 1},
          {1, 2, 5}};
}

/// Three layers of V4-Flash's widths, for which kernels of a backend may be others. 200 tokens are
/// 50 chunks; it selects 32.
inline SwapModel flash_swap_model() {
  return {
      "flash",
      synthetic_manifest(),
      {"engine.max_context=200", "engine.prefill_chunk=64", "compute.poison=true",
       "loader.preset=v4_flash", "loader.n_layers=3", "loader.ratios=[4,128,4]", "loader.top_k=32",
       "loader.vocab_size=1024", "loader.n_experts=8", "loader.n_hash_layers=1"},
      200,
      160,
      3,
      1024,
      2,
      {32, 40},
      {64, 1},
      {1, 2, 17}};
}

struct SwapOutcome {
  std::size_t n_right = 0, n_logits = 0, n_attended = 0;
  SwapCounters counters;  // sums

  /// It is no proof of anything if nothing moved: names what did not, or "".
  std::string idle() const {
    if (counters.misses <= 1000) return "few misses";
    if (counters.evictions <= 1000) return "few evictions";
    if (counters.promotions <= 100) return "few promotions";
    if (counters.prefetch_used <= 10) return "little prefetched";
    return counters.refused <= 10 ? "few refusals" : "";
  }
};

class SwapCases {
 public:
  /// `backends`: settings of the compute module that may not show either. `settings` come last.
  SwapCases(SwapModel model, std::vector<Overrides> backends, Overrides settings)
      : model_(std::move(model)), backends_(std::move(backends)), settings_(std::move(settings)) {}

  /// How many values there are.
  SwapChoice sizes() const {
    return {model_.n_policies,  kSwapModes.size(),      model_.slots.size(),
            prefetches_.size(), kSwapFormats.size(),    backends_.size(),
            kSwapTaps.size(),   model_.together.size(), model_.chunks.size()};
  }

  /// `fault` hears one line of each engine that has other bits, or counts what cannot be.
  template <class Fault>
  SwapOutcome run(const std::vector<SwapChoice>& choices, const Fault& fault) {
    std::size_t together = 1;
    for (const SwapChoice& choice : choices) together = std::max(together, n_together(choice));
    prompts_ = make_prompts(together);
    right_.clear();
    SwapOutcome outcome;
    for (const SwapChoice& choice : choices) {
      const std::string wrong = check(choice, outcome);
      if (wrong.empty()) {
        ++outcome.n_right;
      } else {
        fault(wrong + "\n  " + what(choice));
      }
    }
    return outcome;
  }

 private:
  struct Bits {
    std::vector<Rows> logits;        // by prompt
    std::vector<Attended> attended;  // by prompt; of engines with a tap
  };

  std::size_t n_together(const SwapChoice& c) const {
    return model_.together[c[SwapFactor::together]];
  }
  std::size_t n_chunk(const SwapChoice& c) const { return model_.chunks[c[SwapFactor::chunk]]; }
  static bool is_tapped(const SwapChoice& c) { return !kSwapTaps[c[SwapFactor::tap]].empty(); }

  /// One more than have a place, where it is several; down to a quarter of the longest.
  static std::size_t n_prompts(std::size_t together) { return together == 1 ? 1 : together + 1; }
  std::vector<std::vector<std::int32_t>> make_prompts(std::size_t together) const {
    std::vector<std::vector<std::int32_t>> prompts;
    const std::size_t n = n_prompts(together);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t length = model_.n_tokens - 3 * model_.n_tokens * i / (4 * n);
      prompts.push_back(
          random_tokens(length, model_.seed + static_cast<unsigned>(i), model_.vocab));
    }
    return prompts;
  }
  /// Of its tokens, those that are fed as a prompt.
  std::size_t n_prompt(std::size_t k) const {
    return prompts_[k].size() * model_.prompt / model_.n_tokens;
  }

  Overrides settings(const SwapChoice& c) const {
    const Overrides slots = {"swap.slots=" + std::to_string(model_.slots[c[SwapFactor::slots]]),
                             "engine.max_sequences=" + std::to_string(n_together(c))};
    return model_.sizes + kSwapPolicies[c[SwapFactor::policy]] + kSwapModes[c[SwapFactor::mode]] +
           slots + prefetches_[c[SwapFactor::prefetch]] + kSwapFormats[c[SwapFactor::format]] +
           backends_[c[SwapFactor::backend]] + kSwapTaps[c[SwapFactor::tap]] + settings_;
  }
  std::string what(const SwapChoice& c) const {
    std::string all;
    for (const std::string& setting : settings(c)) all += setting + ' ';
    return all + "by " + std::to_string(n_chunk(c));
  }

  std::unique_ptr<Engine> open(const Overrides& settings) const {
    return open_engine(model_.manifest, settings, true, [](LogLevel, std::string_view) {});
  }

  /// The prompts of the choice, in an engine that has its settings.
  Bits feed_all(Engine& engine, const SwapChoice& c) const {
    const std::size_t together = n_together(c);
    const std::size_t share = std::max(n_chunk(c) / together, std::size_t{1});
    const auto bite = [&](std::size_t k, std::size_t fed) {
      return fed < n_prompt(k) ? std::min(share, n_prompt(k) - fed) : 1;
    };
    Bits bits;
    bits.logits = feed_together(
        engine, std::span(prompts_).first(n_prompts(together)), bite,
        [](std::size_t, std::size_t) { return true; }, is_tapped(c) ? &bits.attended : nullptr);
    return bits;
  }

  /// Of all prompts, each alone, without swapping. The engine has a tap, so that those without one
  /// show that it changes no logit.
  const Bits& right_bits(const SwapChoice& c) {
    const auto [found, is_new] = right_.try_emplace(c[SwapFactor::format]);
    Bits& bits = found->second;
    if (!is_new) return bits;
    const auto engine =
        open(model_.sizes + kSwapFormats[c[SwapFactor::format]] + kSwapTaps[0] + settings_);
    for (std::size_t k = 0; k < prompts_.size(); ++k) {
      bits.logits.push_back(
          feed(*engine, prompts_[k], n_prompt(k), model_.chunks[0], &bits.attended.emplace_back()));
    }
    return bits;
  }

  /// What is wrong, or "".
  std::string check(const SwapChoice& c, SwapOutcome& outcome) {
    const Bits& want = right_bits(c);
    const auto engine = open(settings(c));
    if (engine->swap() == nullptr) return "it does not swap";
    const Bits got = feed_all(*engine, c);
    std::string wrong = difference(want, got);
    if (!wrong.empty() && n_explained_++ < 3) {
      const auto resident = open(settings(c) + Overrides{"swap.staging=resident"});
      const Bits same = feed_all(*resident, c);
      wrong += difference(want, same).empty() ? "; without swapping nothing does"
                                              : "; without swapping too";
    }
    for (const Rows& rows : got.logits) outcome.n_logits += rows.size();
    for (const Attended& attended : got.attended) {
      for (const auto& layer : attended) outcome.n_attended += layer.size();
    }
    const std::string miscounted = count(*engine, c, outcome.counters);
    return wrong.empty() ? miscounted : wrong;
  }

  std::string count(Engine& engine, const SwapChoice& c, SwapCounters& sum) const {
    const std::span<const SwapCounters> layers = require(engine.swap_counters());
    for (const SwapCounters& layer : layers) {
      if (layer.hits + layer.misses != layer.distinct) return "C1: hits and misses";
      if (layer.prefetched != layer.prefetch_used + layer.prefetch_wasted) return "C5: prefetched";
    }
    const SwapCounters all = cli::total(layers);
    if (all.born + all.misses - all.pool_reads + all.promotions + all.prefetched !=
        all.evictions + all.freed) {
      return "C4: slots are lost, with no sequence open";
    }
    const bool may_prefetch = c[SwapFactor::prefetch] + 1 == prefetches_.size();
    if (all.prefetched > 0 && !may_prefetch) return "prefetched without being allowed to";
    for (const cli::SwapField& field : cli::kSwapFields) sum.*field.value += all.*field.value;
    return "";
  }

  /// Where `got` leaves `want`, or "".
  static std::string difference(const Bits& want, const Bits& got) {
    for (std::size_t k = 0; k < got.attended.size(); ++k) {
      const Attended &a = want.attended[k], &b = got.attended[k];
      if (a.size() != b.size()) return "layers of attention are missing";
      for (std::size_t layer = 0; layer < a.size(); ++layer) {
        if (a[layer] == b[layer]) continue;
        const auto first =
            std::mismatch(a[layer].begin(), a[layer].end(), b[layer].begin(), b[layer].end())
                .first -
            a[layer].begin();
        return "attention of sequence " + std::to_string(k) + " differs, first in layer " +
               std::to_string(layer) + " at token " + std::to_string(first);
      }
    }
    for (std::size_t k = 0; k < got.logits.size(); ++k) {
      const std::string wrong = difference(want.logits[k], got.logits[k]);
      if (!wrong.empty()) return "logits of sequence " + std::to_string(k) + ": " + wrong;
    }
    return "";
  }

  static std::string difference(const Rows& want, const Rows& got) {
    if (got.size() != want.size()) return "some are missing";
    std::size_t n_wrong = 0, first = 0;
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::vector<float>&a = want[i], &b = got[i];
      if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
      if (n_wrong++ == 0) first = i;
      for (std::size_t j = 0; j < a.size(); ++j) {
        const double distance = std::abs(double{a[j]} - double{b[j]});
        if (!(distance <= largest)) largest = distance;  // NaN is seen
      }
    }
    if (n_wrong == 0) return "";
    char text[120];
    std::snprintf(text, sizeof(text), "%zu of %zu differ, the first is token %zu, by up to %.3g",
                  n_wrong, got.size(), first, largest);
    return text;
  }

  const SwapModel model_;
  const std::vector<Overrides> backends_;
  const Overrides settings_;
  const std::vector<Overrides> prefetches_ = swap_prefetches();
  std::vector<std::vector<std::int32_t>> prompts_;
  std::map<std::size_t, Bits> right_;  // by format
  int n_explained_ = 0;
};

}  // namespace ebb::test
