#include "tools/ebb/sampler.h"

#include <algorithm>
#include <cmath>

// Only the part of the order that matters is sorted: top_k entries, or for top_p a prefix that
// grows until it holds the mass. Without either there is no order: the draw walks through the row
// by id.

namespace ebb::cli {

Result<SamplingSettings> SamplingSettings::read(const Manifest& manifest) {
  const auto seed = static_cast<std::int64_t>(manifest.engine().seed);
  const std::unique_ptr<Options> keys = manifest.options("sampling");
  SamplingSettings settings;
  settings.temperature = keys->get_float("temperature", 0, 0, 100);
  settings.top_p = keys->get_float("top_p", 1, 0, 1);
  settings.top_k = static_cast<std::int32_t>(keys->get_int("top_k", 0, 0, 1 << 24));
  settings.seed = static_cast<std::uint64_t>(keys->get_int("seed", seed, 0, INT64_MAX));
  EBB_TRY(keys->finish());
  return settings;
}

double Sampler::uniform(std::uint64_t seed, std::uint64_t n) {
  // SplitMix64 (Steele, Lea, Flood 2014): a counter with an odd step, then a mixing permutation.
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

std::int32_t Sampler::sample(std::span<const float> logits, std::int32_t banned) {
  candidates_.clear();
  candidates_.reserve(logits.size());
  Candidate best{-1, 0, 0};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (std::isnan(logits[i]) || id == banned) continue;
    candidates_.push_back({id, logits[i], 0});
    if (best.id < 0 || logits[i] > best.logit) best = candidates_.back();
  }
  if (best.id < 0 || settings_.temperature <= 0) return best.id;

  const auto higher = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  std::size_t sorted = 0;  // this many of the highest are in front, in order
  const auto sort_to = [&](std::size_t count) {
    sorted = std::min(count, candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + std::ptrdiff_t(sorted),
                      candidates_.end(), higher);
  };
  if (settings_.top_k > 0) {
    sort_to(static_cast<std::size_t>(settings_.top_k));
    candidates_.resize(sorted);
  }

  double total = 0;
  for (Candidate& candidate : candidates_) {
    // The equality also covers infinities, whose difference would be NaN.
    const double below = candidate.logit == best.logit ? 0 : double(candidate.logit) - best.logit;
    candidate.weight = std::exp(below / settings_.temperature);
    total += candidate.weight;
  }

  if (settings_.top_p < 1) {
    const double wanted = settings_.top_p * total;
    double mass = 0;
    std::size_t kept = 0;
    do {
      if (kept == sorted) sort_to(std::max<std::size_t>(256, sorted * 8));
      mass += candidates_[kept++].weight;
    } while (mass < wanted && kept < candidates_.size());
    candidates_.resize(kept);
    total = mass;
  }

  const double target = uniform(settings_.seed, n_draws_++) * total;
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.weight;
    if (target < sum) return candidate.id;
  }
  return best.id;  // rounding left the sum below the target
}

}  // namespace ebb::cli
