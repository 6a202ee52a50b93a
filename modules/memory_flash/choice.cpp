#include "modules/memory_flash/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ebb {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Of the scorers' sigmoids, without losing what is close to 1.
float logit_of_mean(std::span<const float* const> all, std::size_t chunk) {
  double yes = 0, no = 0;
  for (const float* const scores : all) {
    const double x =
        scores[chunk] == scores[chunk] ? static_cast<double>(scores[chunk]) : -INFINITY;
    yes += sigmoid(x);
    no += sigmoid(-x);
  }
  return static_cast<float>(std::log(yes) - std::log(no));
}

}  // namespace

std::int64_t combine(Ensemble ensemble, std::span<const float* const> all,
                     std::span<float> scores) noexcept {
  std::int64_t n_nan = 0;
  for (std::size_t chunk = 0; chunk < scores.size(); ++chunk) {
    float best = -INFINITY;
    for (const float* const one : all) {
      if (one[chunk] != one[chunk]) ++n_nan;
      if (one[chunk] > best) best = one[chunk];
    }
    scores[chunk] = ensemble == Ensemble::max || all.size() == 1 ? best : logit_of_mean(all, chunk);
  }
  return n_nan;
}

Chooser::Chooser(const ChoiceRules& rules, std::int64_t n_chunks)
    : rules_(rules),
      above_(static_cast<float>(std::log(rules.threshold) - std::log1p(-rules.threshold))) {
  const auto n = static_cast<std::size_t>(n_chunks);
  kept_.reserve(n);
  others_.reserve(n);
  if (rules_.by == ChoiceRules::By::pages) {
    counts_.reserve(n / static_cast<std::size_t>(rules_.page_chunks) + 1);
  }
}

std::int64_t Chooser::budget(std::int64_t n) const {
  const auto share = static_cast<std::int64_t>(rules_.budget * static_cast<double>(n));
  return std::min(std::max<std::int64_t>(share, 1), rules_.max_chunks);
}

std::span<const std::int32_t> Chooser::choose(std::span<const float> scores) noexcept {
  kept_.clear();
  others_.clear();
  if (rules_.by == ChoiceRules::By::pages) {
    best_pages(scores);
  } else {
    best(scores, rules_.by == ChoiceRules::By::threshold);
  }
  std::sort(kept_.begin(), kept_.end());
  return kept_;
}

void Chooser::best(std::span<const float> scores, bool only_above) {
  const auto n = static_cast<std::int64_t>(scores.size());
  for (std::int64_t chunk = 0; chunk < n; ++chunk) {
    if (forced(chunk, n)) {
      kept_.push_back(static_cast<std::int32_t>(chunk));
    } else if (!only_above || scores[static_cast<std::size_t>(chunk)] > above_) {
      others_.push_back(static_cast<std::int32_t>(chunk));
    }
  }
  const auto room = std::clamp<std::int64_t>(budget(n) - std::ssize(kept_), 0, std::ssize(others_));
  const auto better = [scores](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (room < std::ssize(others_)) {
    std::nth_element(others_.begin(), others_.begin() + room, others_.end(), better);
  }
  kept_.insert(kept_.end(), others_.begin(), others_.begin() + room);
}

void Chooser::best_pages(std::span<const float> scores) {
  constexpr std::int32_t kForced = std::numeric_limits<std::int32_t>::max();
  const auto n = static_cast<std::int64_t>(scores.size());
  const std::int64_t size = rules_.page_chunks, n_pages = (n + size - 1) / size;
  counts_.assign(static_cast<std::size_t>(n_pages), 0);
  std::int64_t n_forced = 0;
  for (std::int64_t chunk = 0; chunk < n; ++chunk) {
    std::int32_t& count = counts_[static_cast<std::size_t>(chunk / size)];
    if (count == kForced) continue;
    if (forced(chunk, n)) {
      count = kForced;
      ++n_forced;
    } else if (scores[static_cast<std::size_t>(chunk)] > above_) {
      ++count;
    }
  }
  for (std::int64_t page = 0; page < n_pages; ++page) {
    others_.push_back(static_cast<std::int32_t>(page));
  }
  const std::int64_t most =
      std::min(std::max({budget(n) / size, n_forced, std::int64_t{1}}), n_pages);
  const auto better = [this](std::int32_t a, std::int32_t b) {
    const std::int32_t x = counts_[static_cast<std::size_t>(a)];
    const std::int32_t y = counts_[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (most < n_pages) {
    std::nth_element(others_.begin(), others_.begin() + most, others_.end(), better);
  }
  for (std::int64_t i = 0; i < most; ++i) {
    const std::int64_t first = others_[static_cast<std::size_t>(i)] * size;
    for (std::int64_t chunk = first; chunk < std::min(first + size, n); ++chunk) {
      kept_.push_back(static_cast<std::int32_t>(chunk));
    }
  }
}

}  // namespace ebb
