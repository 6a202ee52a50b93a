#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "modules/swap_common/lists.h"

namespace ebb::adaptive {

/// How the slots of a sequence are shared out among its layers, and who has more than that.
///
/// A layer that misses a chunk which it gave up a short while ago would have hit with a few slots
/// more; the number of such misses is what those slots are worth there. Once per window, the layer
/// where slots are worth most gets some from the layer where they are worth least, if the two are
/// far enough apart: the factor keeps shares still while layers are alike. No layer falls under
/// `floor` slots.
class SlotShares {
 public:
  /// Allocates. `window` in selections of one layer, 0 for shares that stay equal.
  void resize(std::int32_t n_layers, std::int64_t n_slots, std::int64_t floor,
              std::int64_t window) {
    n_slots_ = n_slots;
    window_ = window * n_layers;
    floor_ = std::min(floor, n_slots / n_layers);
    reach_ = std::max<std::int64_t>(1, n_slots / n_layers / 8);
    layers_.resize(static_cast<std::size_t>(n_layers));
    over_.resize(n_layers, 1);
    clear();
  }
  void clear() {
    const auto n_layers = static_cast<std::int64_t>(layers_.size());
    for (std::int64_t l = 0; l < n_layers; ++l) {
      layers_[static_cast<std::size_t>(l)] = {n_slots_ / n_layers + (l < n_slots_ % n_layers), 0, 0,
                                              0};
    }
    over_.clear();
    n_calls_ = 0;
  }

  std::int64_t share(std::int32_t layer) const { return at(layer).share; }
  bool is_full(std::int32_t layer) const { return at(layer).used >= at(layer).share; }
  /// A layer that holds more than its share, or Lists::kNone.
  std::int32_t over() const { return over_.back(0); }
  /// Misses of chunks given up no longer ago than this many evictions of the layer are counted.
  std::int64_t reach() const { return reach_; }

  void use(std::int32_t layer, std::int64_t change) {
    at(layer).used += change;
    update(layer);
  }
  void near_miss(std::int32_t layer) { ++at(layer).near_misses; }
  /// Once per selection of a layer; O(1) amortised.
  void tick() {
    if (window_ > 0 && ++n_calls_ >= window_) rebalance();
  }

 private:
  struct Layer {
    std::int64_t share, used, near_misses;
    double worth;  // near misses per window, the last one counting half
  };
  static constexpr double kFactor = 2;       // worths closer than this are equal
  static constexpr double kLeast = 4;        // and smaller than this are noise
  static constexpr std::int64_t kSteps = 4;  // a move is reach / kSteps slots

  Layer& at(std::int32_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const Layer& at(std::int32_t layer) const { return layers_[static_cast<std::size_t>(layer)]; }

  void update(std::int32_t layer) {
    const bool is_over = at(layer).used > at(layer).share;
    if (is_over == (over_.list_of(layer) != Lists::kNone)) return;
    if (is_over) {
      over_.push_front(0, layer);
    } else {
      over_.remove(layer);
    }
  }

  void rebalance() {
    n_calls_ = 0;
    std::int32_t best = 0, worst = Lists::kNone;
    for (std::int32_t l = 0; l < static_cast<std::int32_t>(layers_.size()); ++l) {
      Layer& layer = at(l);
      layer.worth = (layer.worth + static_cast<double>(layer.near_misses)) / 2;
      layer.near_misses = 0;
      if (layer.worth > at(best).worth) best = l;
      if (layer.share > floor_ && (worst == Lists::kNone || layer.worth < at(worst).worth)) {
        worst = l;
      }
    }
    if (worst == Lists::kNone || at(best).worth < kLeast + kFactor * at(worst).worth) return;
    const std::int64_t n =
        std::min(std::max<std::int64_t>(1, reach_ / kSteps), at(worst).share - floor_);
    at(best).share += n;
    at(worst).share -= n;
    update(best);
    update(worst);
  }

  std::int64_t n_slots_ = 0, window_ = 0, floor_ = 0, reach_ = 1, n_calls_ = 0;
  std::vector<Layer> layers_;
  Lists over_;
};

}  // namespace ebb::adaptive
