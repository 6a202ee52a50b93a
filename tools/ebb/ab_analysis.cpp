#include "tools/ebb/ab_analysis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "tools/ebb/session.h"
#include "tools/ebb/swap_counters.h"

namespace ebb::cli {
namespace {

/// Both sides of a timed round.
using Rounds = std::map<std::int32_t, std::array<const AbPass*, 2>>;

Rounds timed_rounds(const std::vector<AbPass>& passes) {
  Rounds rounds;
  for (const AbPass& pass : passes) {
    if (pass.round > 0) rounds[pass.round][pass.side] = &pass;
  }
  std::erase_if(rounds, [](const auto& round) {
    return round.second[0] == nullptr || round.second[1] == nullptr;
  });
  return rounds;
}

double decode_rate(const AbSample& sample) {
  return rate(static_cast<std::int64_t>(sample.tokens.size()) - 1, sample.timings.decode);
}

double prefill_rate(const AbSample& sample) {
  return rate(sample.n_prompt - sample.timings.n_reused, sample.timings.prefill);
}

double median_token(const AbSample& sample) { return 1e3 * quantile(sample.token_seconds, 0.5); }

// Mean logarithm of a rate over the prompts that have one in every round, by round.
std::vector<double> mean_logs(const Rounds& rounds, std::size_t side,
                              const std::vector<std::size_t>& prompts,
                              double (*rate_of)(const AbSample&)) {
  std::vector<double> logs;
  for (const auto& [number, passes] : rounds) {
    double sum = 0;
    for (const std::size_t prompt : prompts)
      sum += std::log(rate_of(passes[side]->samples[prompt]));
    logs.push_back(sum / static_cast<double>(prompts.size()));
  }
  return logs;
}

std::vector<std::size_t> measured_prompts(const Rounds& rounds,
                                          double (*rate_of)(const AbSample&)) {
  std::vector<std::size_t> prompts;
  const std::size_t n = rounds.begin()->second[0]->samples.size();
  for (std::size_t prompt = 0; prompt < n; ++prompt) {
    const bool is_measured = std::all_of(rounds.begin(), rounds.end(), [&](const auto& round) {
      return rate_of(round.second[0]->samples[prompt]) > 0 &&
             rate_of(round.second[1]->samples[prompt]) > 0;
    });
    if (is_measured) prompts.push_back(prompt);
  }
  return prompts;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

AbMeasure measure(std::string name, std::string unit, bool is_speed, const std::vector<double>& a,
                  const std::vector<double>& b) {
  AbMeasure out;
  out.name = std::move(name);
  out.unit = std::move(unit);
  out.is_speed = is_speed;
  for (std::size_t i = 0; i < a.size(); ++i) {
    out.logs.push_back(b[i] - a[i]);
    out.a.push_back(std::exp(a[i]));
    out.b.push_back(std::exp(b[i]));
    out.ratios.push_back(std::exp(out.logs.back()));
  }
  out.mean_a = std::exp(mean(a));
  out.mean_b = std::exp(mean(b));
  out.drift_a = trend_test(a);
  const std::size_t half = a.size() / 2;
  if (half > 0) {
    out.change_a = std::exp(mean(std::span(a).last(half)) - mean(std::span(a).first(half)));
  }
  return out;
}

// Whether two optional sets of counters are the same, `time` excepted.
template <class Counters, class Fields, class Time>
bool same(const std::optional<Counters>& a, const std::optional<Counters>& b, const Fields& fields,
          Time time) {
  if (!a || !b) return a.has_value() == b.has_value();
  return std::all_of(std::begin(fields), std::end(fields), [&](const auto& field) {
    return field.value == time || *a.*field.value == *b.*field.value;
  });
}

}  // namespace

std::vector<AbMeasure> measures_of(const std::vector<AbPass>& passes) {
  std::vector<AbMeasure> measures;
  const Rounds rounds = timed_rounds(passes);
  if (rounds.empty()) return measures;
  const auto add = [&](const char* name, const char* unit, bool is_speed,
                       double (*rate_of)(const AbSample&)) {
    const std::vector<std::size_t> prompts = measured_prompts(rounds, rate_of);
    if (prompts.empty()) return;
    measures.push_back(measure(name, unit, is_speed, mean_logs(rounds, 0, prompts, rate_of),
                               mean_logs(rounds, 1, prompts, rate_of)));
  };
  add("decode", "tokens/s", true, decode_rate);
  add("median token", "ms", false, median_token);
  add("prefill", "tokens/s", true, prefill_rate);
  std::vector<double> walls[2];
  for (const auto& [number, pair] : rounds) {
    for (std::size_t side = 0; side < 2; ++side) {
      walls[side].push_back(std::log(std::max(pair[side]->wall, 1e-9)));
    }
  }
  measures.push_back(measure("wall time", "s", false, walls[0], walls[1]));
  // A report shows them side by side, and whoever looks for one that misses 1 looks at all.
  for (AbMeasure& one : measures) one.ratio = ratio_of(one.logs, measures.size());
  return measures;
}

std::vector<AbTokens> tokens_of(const std::vector<AbPass>& passes) {
  const std::size_t n = passes.empty() ? 0 : passes.front().samples.size();
  std::vector<AbTokens> all(n);
  for (std::size_t prompt = 0; prompt < n; ++prompt) {
    AbTokens& tokens = all[prompt];
    tokens.prompt = prompt;
    for (const AbPass& pass : passes) {
      const AbSample& sample = pass.samples[prompt];
      if (tokens.error.empty()) tokens.error = sample.error;
      const AbSample*& first = pass.side == 0 ? tokens.a : tokens.b;
      bool& repeats = pass.side == 0 ? tokens.a_repeats : tokens.b_repeats;
      if (first == nullptr) first = &sample;
      repeats &= sample.tokens == first->tokens;
    }
    if (tokens.a == nullptr || tokens.b == nullptr) continue;
    const auto [in_a, in_b] = std::mismatch(tokens.a->tokens.begin(), tokens.a->tokens.end(),
                                            tokens.b->tokens.begin(), tokens.b->tokens.end());
    tokens.equal = in_a == tokens.a->tokens.end() && in_b == tokens.b->tokens.end();
    tokens.first_difference = static_cast<std::size_t>(in_a - tokens.a->tokens.begin());
  }
  return all;
}

std::string text_between(const AbSample& sample, std::size_t from, std::size_t end) {
  const auto at = [&sample](std::size_t token) {
    if (token == 0) return std::size_t{0};
    const std::size_t last = std::min(token, sample.text_ends.size());
    return last == 0 ? 0 : std::min(sample.text_ends[last - 1], sample.text.size());
  };
  return sample.text.substr(at(from), at(std::max(from, end)) - at(from));
}

std::vector<double> latencies_of(const std::vector<AbPass>& passes, std::size_t side) {
  std::vector<double> all;
  for (const AbPass& pass : passes) {
    if (pass.round == 0 || pass.side != side) continue;
    for (const AbSample& sample : pass.samples) {
      all.insert(all.end(), sample.token_seconds.begin(), sample.token_seconds.end());
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::optional<AbCounters> counters_of(const std::vector<AbPass>& passes, std::size_t side) {
  std::optional<AbCounters> counters;
  for (const AbPass& pass : passes) {
    if (pass.round == 0 || pass.side != side || (!pass.swap && !pass.memory)) continue;
    const bool is_same =
        !counters ||
        (counters->same && same(counters->swap, pass.swap, kSwapFields, &SwapCounters::stall_us) &&
         same(counters->memory, pass.memory, kMemoryFields, &MemoryCounters::wait_us));
    counters = AbCounters{pass.swap, pass.memory, is_same};
  }
  return counters;
}

std::int32_t rounds_of(const std::vector<AbPass>& passes) {
  return static_cast<std::int32_t>(timed_rounds(passes).size());
}

}  // namespace ebb::cli
