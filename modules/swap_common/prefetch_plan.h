#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/api/memory.h"
#include "modules/swap_common/policy.h"

namespace ebb {

/// What the last forecast of one sequence wants in slots: the kept chunks, best scores first, and
/// how far each layer has come with them. Only resize() allocates.
class PrefetchPlan {
 public:
  static constexpr std::int32_t kNone = -1;

  void resize(const SwapShape& shape) {
    n_most_ = static_cast<std::size_t>(shape.n_slots / shape.n_layers);
    scores_.reserve(static_cast<std::size_t>(shape.n_chunks));
    wanted_.reserve(static_cast<std::size_t>(shape.n_chunks));
    next_.assign(static_cast<std::size_t>(shape.n_layers), 0);
    clear();
  }
  void clear() {
    scores_.clear();
    wanted_.clear();
  }

  /// As many chunks as a layer has slots. Equal scores go by the lower chunk.
  void set(const Forecast& forecast) {
    scores_.assign(forecast.scores.begin(), forecast.scores.end());
    for (float& score : scores_) {
      if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
    }
    wanted_.assign(forecast.kept.begin(), forecast.kept.end());
    const auto end =
        wanted_.begin() + std::ssize(std::span(wanted_).first(std::min(wanted_.size(), n_most_)));
    std::partial_sort(wanted_.begin(), end, wanted_.end(), [this](std::int32_t a, std::int32_t b) {
      return score(a) != score(b) ? score(a) > score(b) : a < b;
    });
    wanted_.erase(end, wanted_.end());
    std::fill(next_.begin(), next_.end(), 0);
  }

  /// The best chunk that a layer has not been given; kNone if there is none.
  std::int32_t next(std::int32_t layer) const {
    const std::size_t at = next_[static_cast<std::size_t>(layer)];
    return at < wanted_.size() ? wanted_[at] : kNone;
  }
  void take(std::int32_t layer) { ++next_[static_cast<std::size_t>(layer)]; }
  /// Until the next forecast.
  void stop(std::int32_t layer) { next_[static_cast<std::size_t>(layer)] = wanted_.size(); }

  /// Chunks that were completed since the forecast are better than any other.
  float score(std::int32_t chunk) const {
    const auto at = static_cast<std::size_t>(chunk);
    return at < scores_.size() ? scores_[at] : std::numeric_limits<float>::infinity();
  }

 private:
  std::size_t n_most_ = 0;
  std::vector<float> scores_;         // by chunk
  std::vector<std::int32_t> wanted_;  // best first
  std::vector<std::size_t> next_;     // by layer: in wanted_
};

}  // namespace ebb
