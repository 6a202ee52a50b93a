#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tools/trace/format.h"

namespace ebb::trace {

/// Puts a step's records of selections together: for each sequence and layer the distinct chunks
/// that any of its rows selects, handed out when the step is over, in the order in which staging
/// looks at them.
class DistinctSelections {
 public:
  using Take = std::function<void(std::int32_t sequence, std::int32_t layer,
                                  std::span<const std::int32_t> chunks)>;

  void add(const Record& selected) {
    for (Set& set : sets_) {
      if (set.sequence != selected.sequence || set.layer != selected.layer) continue;
      set.chunks.insert(set.chunks.end(), selected.ids.begin(), selected.ids.end());
      return;
    }
    sets_.push_back({selected.sequence, selected.layer, selected.ids});
  }
  void finish(const Take& take) {
    std::sort(sets_.begin(), sets_.end(), [](const Set& a, const Set& b) {
      return a.layer != b.layer ? a.layer < b.layer : a.sequence < b.sequence;
    });
    for (Set& set : sets_) {
      std::sort(set.chunks.begin(), set.chunks.end());
      set.chunks.erase(std::unique(set.chunks.begin(), set.chunks.end()), set.chunks.end());
      take(set.sequence, set.layer, set.chunks);
    }
    sets_.clear();
  }

 private:
  struct Set {
    std::int32_t sequence, layer;
    std::vector<std::int32_t> chunks;
  };
  std::vector<Set> sets_;
};

}  // namespace ebb::trace
