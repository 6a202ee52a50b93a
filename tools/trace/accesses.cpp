#include "tools/trace/accesses.h"

#include <algorithm>
#include <queue>
#include <utility>

// Both bounds sweep forward over the groups with a heap of (next use, key), the last on top. A key
// that is used again before it leaves gets a new pair; the old one is recognised by its next use
// and skipped.

namespace ebb::trace {

void Accesses::born(std::int32_t first, std::int32_t end) {
  if (first < end) groups_.push_back({keys_.size(), n_steps_, true, first, end});
}

void Accesses::selected(std::int32_t layer, std::span<const std::int32_t> chunks) {
  if (chunks.empty()) return;
  groups_.push_back({keys_.size(), n_steps_, false, 0, 0});
  for (const std::int32_t chunk : chunks) {
    keys_.push_back(static_cast<std::uint32_t>(layer * n_chunks_ + chunk));
  }
  n_selected_ += chunks.size();
}

Bound::Bound(const Accesses& accesses)
    : accesses_(accesses),
      next_(accesses.keys_.size()),
      first_(static_cast<std::size_t>(accesses.n_layers_ * accesses.n_chunks_), kNever) {
  std::uint64_t end = accesses.keys_.size();
  for (std::size_t g = accesses.groups_.size(); g-- > 0; end = accesses.groups_[g].begin) {
    for (std::uint64_t i = accesses.groups_[g].begin; i < end; ++i) {
      next_[i] = std::exchange(first_[accesses.keys_[i]], static_cast<std::uint32_t>(g));
    }
  }
}

std::uint64_t Bound::demand(std::int64_t slots_per_layer) const {
  const Accesses& a = accesses_;
  const std::int64_t n_slots = slots_per_layer * a.n_layers_;
  constexpr std::uint32_t kAbsent = kNever - 1, kNeeded = kNever - 2;
  std::vector<std::uint32_t> state(first_.size(), kAbsent);  // next use of what has a slot
  std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> last;
  std::int64_t n_used = 0;
  std::uint64_t misses = 0;
  const auto make_room = [&] {
    while (n_used > n_slots && !last.empty()) {
      const auto [next, key] = last.top();
      last.pop();
      if (state[key] != next) continue;
      state[key] = kAbsent;
      --n_used;
    }
  };
  const auto keep = [&](std::uint32_t key, std::uint32_t next) {
    state[key] = next;
    last.emplace(next, key);
  };
  for (std::size_t g = 0; g < a.groups_.size(); ++g) {
    const Accesses::Group& group = a.groups_[g];
    if (group.is_born) {
      // The newest get slots, as many as a layer has.
      const std::int64_t n = std::min<std::int64_t>(group.end - group.first, slots_per_layer);
      for (std::int64_t layer = 0; layer < a.n_layers_; ++layer) {
        const auto base = static_cast<std::uint32_t>(layer * a.n_chunks_);
        n_used += n;
        make_room();
        for (std::int64_t c = group.end - n; c < group.end; ++c) {
          const std::uint32_t key = base + static_cast<std::uint32_t>(c);
          keep(key, first_[key]);
        }
      }
      continue;
    }
    const std::uint64_t end = g + 1 < a.groups_.size() ? a.groups_[g + 1].begin : a.keys_.size();
    for (std::uint64_t i = group.begin; i < end; ++i) {
      std::uint32_t& at = state[a.keys_[i]];
      if (at == kAbsent) {
        ++misses;
        ++n_used;
      }
      at = kNeeded;
    }
    make_room();
    for (std::uint64_t i = group.begin; i < end; ++i) keep(a.keys_[i], next_[i]);
  }
  return misses;
}

std::uint64_t Bound::zero_copy(std::int64_t slots_per_layer) const {
  const Accesses& a = accesses_;
  const auto n_slots = static_cast<std::size_t>(slots_per_layer * a.n_layers_);
  // An interval is named by the group and key that end it. Those that begin later wait by step.
  using Interval = std::pair<std::uint32_t, std::uint32_t>;
  std::priority_queue<Interval> active;
  std::vector<std::vector<Interval>> starting(a.n_steps_ + 1);
  std::vector<std::uint32_t> held(first_.size(), kNever);  // by key: group at which it is a hit
  std::size_t n_active = 0;
  std::uint64_t hits = 0;
  std::size_t g = 0;
  for (std::uint32_t step = 1; step <= a.n_steps_; ++step) {
    std::vector<Interval> now = std::move(starting[step]);
    std::size_t end = g;
    while (end < a.groups_.size() && a.groups_[end].step == step) ++end;
    const auto group_end = [&](std::size_t i) {
      return i + 1 < a.groups_.size() ? a.groups_[i + 1].begin : a.keys_.size();
    };
    for (std::size_t i = g; i < end; ++i) {
      const Accesses::Group& group = a.groups_[i];
      if (group.is_born) {
        const std::int64_t n = std::min<std::int64_t>(group.end - group.first, slots_per_layer);
        for (std::int64_t layer = 0; layer < a.n_layers_; ++layer) {
          for (std::int64_t c = group.end - n; c < group.end; ++c) {
            const auto key = static_cast<std::uint32_t>(layer * a.n_chunks_ + c);
            if (first_[key] != kNever) now.emplace_back(first_[key], key);
          }
        }
        continue;
      }
      for (std::uint64_t k = group.begin; k < group_end(i); ++k) {
        if (next_[k] == kNever) continue;
        const std::uint32_t start = std::min(step + 2, a.groups_[next_[k]].step);
        starting[start].emplace_back(next_[k], a.keys_[k]);
      }
    }
    for (const auto& [until, key] : now) {
      active.emplace(until, key);
      held[key] = until;
      ++n_active;
    }
    while (n_active > n_slots) {
      const auto [until, key] = active.top();
      active.pop();
      if (held[key] != until) continue;
      held[key] = kNever;
      --n_active;
    }
    for (std::size_t i = g; i < end; ++i) {
      if (a.groups_[i].is_born) continue;
      for (std::uint64_t k = a.groups_[i].begin; k < group_end(i); ++k) {
        if (held[a.keys_[k]] != i) continue;
        ++hits;
        held[a.keys_[k]] = kNever;
        --n_active;
      }
    }
    g = end;
  }
  return a.n_selected_ - hits;
}

}  // namespace ebb::trace
