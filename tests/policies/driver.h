#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "modules/swap_common/policy.h"

// A second, plain account of what the core does with a policy: sets and loops, nothing shared with
// modules/swap_common. It checks every answer and counts what the policy asks.

namespace ebb::test {

/// One step of one sequence: chunks completed before it, in every layer, and what each layer
/// selects, ascending and distinct.
struct TraceStep {
  std::int32_t n_born = 0;
  std::vector<std::vector<std::int32_t>> selected;  ///< by layer; empty: the layer selects nothing
  std::vector<float> scores;                        ///< by chunk, empty: none came
};

/// One sequence from its start.
struct TestTrace {
  std::string name;
  std::int32_t n_layers = 1;
  std::int32_t n_chunks = 0;  ///< at the end
  std::int32_t top_k = 0;     ///< of the largest selection
  std::vector<TraceStep> steps;
};

struct DriverCounts {
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t evictions = 0;
  std::int64_t inserted = 0;
  std::int64_t questions = 0;  ///< resident(), evictable() and free_slots()
  std::int64_t victims_asked = 0;
  std::int64_t short_answers = 0;  ///< victims that the driver had to choose itself
};

class Driver final : public SlotView {
 public:
  /// zero_copy with at most `moves` promotions a step; 0: demand.
  Driver(SwapPolicy& policy, const SwapShape& shape, std::int32_t sequence, std::int64_t moves = 0)
      : policy_(policy),
        shape_(shape),
        sequence_(sequence),
        moves_(moves),
        slots_(static_cast<std::size_t>(shape.n_layers * shape.n_chunks)),
        n_free_(shape.n_slots) {}

  void run(const TestTrace& trace) {
    for (const TraceStep& step : trace.steps) this->step(step);
  }

  void step(const TraceStep& step) {
    ++now_;
    moves_left_ = moves_;
    if (!step.scores.empty()) policy_.scored(sequence_, step.scores);
    n_complete_ += step.n_born;
    for (std::int32_t layer = 0; step.n_born > 0 && layer < shape_.n_layers; ++layer) {
      // More than a layer's slots are never given at once: the newest get them.
      const auto n = static_cast<std::int32_t>(
          std::min<std::int64_t>(step.n_born, shape_.n_slots / shape_.n_layers));
      make_room(layer, n);
      for (std::int32_t c = n_complete_ - n; c < n_complete_; ++c) {
        if (n_free_ > 0) insert({layer, c}, SlotReason::born);
      }
    }
    for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      const auto& chunks = step.selected[static_cast<std::size_t>(layer)];
      if (!chunks.empty()) select(layer, chunks);
    }
  }

  void end() {
    policy_.forget(sequence_);
    for (Slot& slot : slots_) slot = {};
    n_free_ = shape_.n_slots;
    n_complete_ = 0;
  }

  const DriverCounts& counts() const { return counts_; }
  /// What the policy did wrong, the first of it; empty if nothing.
  const std::string& fault() const { return fault_; }

  bool resident(ChunkId id) const noexcept override {
    ++counts_.questions;
    return at(id).is_resident;
  }
  bool evictable(ChunkId id) const noexcept override {
    ++counts_.questions;
    return at(id).is_resident && at(id).needed != now_;
  }
  std::int64_t free_slots() const noexcept override {
    ++counts_.questions;
    return n_free_;
  }

 private:
  struct Slot {
    bool is_resident = false;
    std::int64_t needed = 0;  // the last step that needs it
  };
  Slot& at(ChunkId id) {
    return slots_[static_cast<std::size_t>(id.layer * shape_.n_chunks + id.chunk)];
  }
  const Slot& at(ChunkId id) const { return const_cast<Driver*>(this)->at(id); }
  CacheId cache(std::int32_t layer) const { return {sequence_, layer}; }
  void wrong(std::string what) {
    if (fault_.empty()) fault_ = "step " + std::to_string(now_) + ": " + std::move(what);
  }

  void select(std::int32_t layer, const std::vector<std::int32_t>& chunks) {
    std::vector<std::int32_t> missed;
    for (const std::int32_t chunk : chunks) {
      Slot& slot = at({layer, chunk});
      if (!slot.is_resident) missed.push_back(chunk);
      slot.needed = now_;
    }
    counts_.misses += static_cast<std::int64_t>(missed.size());
    counts_.hits += static_cast<std::int64_t>(chunks.size() - missed.size());
    policy_.selected(cache(layer), chunks, *this);
    SlotReason reason = SlotReason::demanded;
    if (moves_ > 0) {
      reason = SlotReason::promoted;
      std::vector<std::int32_t> out(static_cast<std::size_t>(moves_left_), -1);
      const std::size_t n = policy_.admit(cache(layer), missed, out);
      if (n > out.size()) return wrong("admit() answers more than it was given room for");
      out.resize(n);
      moves_left_ -= static_cast<std::int64_t>(n);
      for (std::size_t i = 0; i < n; ++i) {
        if (std::find(missed.begin(), missed.end(), out[i]) == missed.end())
          return wrong("admit() names a chunk that was not missed");
        if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), out[i]) !=
            out.begin() + static_cast<std::ptrdiff_t>(i))
          return wrong("admit() names a chunk twice");
      }
      missed = out;
    }
    make_room(layer, static_cast<std::int64_t>(missed.size()));
    for (const std::int32_t chunk : missed) {
      if (n_free_ > 0) insert({layer, chunk}, reason);
    }
  }

  void make_room(std::int32_t layer, std::int64_t n_wanted) {
    if (n_wanted <= n_free_) return;
    std::vector<ChunkId> out(static_cast<std::size_t>(n_wanted - n_free_), ChunkId{-1, -1});
    counts_.victims_asked += static_cast<std::int64_t>(out.size());
    const std::size_t n = policy_.victims(cache(layer), out, *this);
    if (n > out.size()) return wrong("victims() answers more than it was asked for");
    for (std::size_t i = 0; i < n; ++i) {
      const ChunkId id = out[i];
      if (id.layer < 0 || id.layer >= shape_.n_layers || id.chunk < 0 ||
          id.chunk >= shape_.n_chunks)
        return wrong("victims() names a chunk that there is not");
      if (!at(id).is_resident) return wrong("victims() names a chunk without a slot, or one twice");
      if (at(id).needed == now_) return wrong("victims() names a chunk that is needed");
      evict(id);
    }
    // The core goes on without the policy; so does this.
    for (std::size_t i = 0; n_free_ < n_wanted && i < slots_.size(); ++i) {
      if (!slots_[i].is_resident || slots_[i].needed == now_) continue;
      ++counts_.short_answers;
      evict({static_cast<std::int32_t>(i / static_cast<std::size_t>(shape_.n_chunks)),
             static_cast<std::int32_t>(i % static_cast<std::size_t>(shape_.n_chunks))});
    }
  }

  void evict(ChunkId id) {
    at(id).is_resident = false;
    ++n_free_;
    ++counts_.evictions;
    policy_.evicted(cache(id.layer), id.chunk);
  }

  void insert(ChunkId id, SlotReason reason) {
    at(id).is_resident = true;
    at(id).needed = now_;
    --n_free_;
    ++counts_.inserted;
    policy_.inserted(cache(id.layer), id.chunk, reason);
  }

  SwapPolicy& policy_;
  SwapShape shape_;
  std::int32_t sequence_;
  std::int64_t moves_, moves_left_ = 0;
  std::vector<Slot> slots_;
  std::int64_t n_free_;
  std::int64_t now_ = 0;
  std::int32_t n_complete_ = 0;
  mutable DriverCounts counts_;
  std::string fault_;
};

}  // namespace ebb::test
