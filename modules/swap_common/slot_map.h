#pragma once

#include <span>
#include <utility>
#include <vector>

#include "core/api/result.h"
#include "modules/swap_common/policy.h"
#include "modules/swap_common/prefetch_plan.h"

namespace ebb {

/// What makes a resident chunk evictable, for all sequences alike.
struct SlotRules {
  std::uint32_t epoch = 0;  ///< step in which the next change takes effect
  std::uint32_t look = 2;   ///< number of the log that is being learned from, from 2
  std::int64_t sink_chunks = 0, recent_chunks = 0;  ///< pinned at either end of a sequence
};

/// The slots of one sequence: a partial bijection (layer, chunk) <-> slot. Takes memory in the
/// constructor only.
class SlotMap final : public SlotView {
 public:
  /// Whether a chunk got its slot from a forecast, and no step used it so far.
  enum class Foreseen : std::uint8_t { no, unused, wasted };
  struct Entry {
    std::int32_t slot = -1;
    std::uint32_t changed = 0;  ///< epoch of the last change; there is one per epoch at most
    std::uint32_t used = 0;     ///< look of the last selection
    Foreseen foreseen = Foreseen::no;
  };

  SlotMap(const SlotRules& rules, const SwapShape& shape)
      : rules_(rules),
        n_chunks_(shape.n_chunks),
        entries_(static_cast<std::size_t>(shape.n_layers * shape.n_chunks)),
        owners_(static_cast<std::size_t>(shape.n_slots), ChunkId{-1, -1}) {
    for (std::int64_t slot = shape.n_slots; slot-- > 0;) free_.push_back(static_cast<int>(slot));
  }

  /// What the constructor takes.
  static std::uint64_t bytes(const SwapShape& shape) {
    return static_cast<std::uint64_t>(shape.n_layers * shape.n_chunks) * sizeof(Entry) +
           static_cast<std::uint64_t>(shape.n_slots) * (sizeof(ChunkId) + sizeof(std::int32_t));
  }

  bool contains(ChunkId id) const {
    return id.layer >= 0 && id.chunk >= 0 && id.chunk < n_chunks_ &&
           id.layer * n_chunks_ < static_cast<std::int64_t>(entries_.size());
  }
  Entry& at(ChunkId id) { return entries_[index(id)]; }
  const Entry& at(ChunkId id) const { return entries_[index(id)]; }
  bool resident(ChunkId id) const noexcept override { return contains(id) && at(id).slot >= 0; }
  bool pinned(ChunkId id) const {
    return id.chunk < rules_.sink_chunks || id.chunk >= n_complete - rules_.recent_chunks;
  }
  bool evictable(ChunkId id) const noexcept override {
    return resident(id) && at(id).changed != rules_.epoch && !is_used(at(id)) && !pinned(id) &&
           (plan_ == nullptr || yields(id));
  }
  /// Whether the sequence has selected it so far, as logs told.
  bool known(ChunkId id) const { return at(id).used >= first_look_; }
  /// For another sequence, once every slot is free.
  void restart() {
    n_complete = 0;
    first_look_ = rules_.look + 1;
  }
  /// From here on room is made for a chunk that a forecast foresees: nothing goes that the last two
  /// logs selected, or that scores as much. nullptr: as ever.
  void set_bar(const PrefetchPlan* plan, float score = 0) {
    plan_ = plan;
    bar_ = score;
  }
  /// Selected by the log at hand; what a sequence before this one selected does not count.
  bool is_used(const Entry& entry) const {
    return entry.used == rules_.look && entry.used >= first_look_;
  }
  std::int64_t free_slots() const noexcept override { return std::ssize(free_); }
  /// The last is given next.
  std::span<std::int32_t> free_list() { return free_; }
  /// By slot; layer -1 where it is free.
  const std::vector<ChunkId>& owners() const { return owners_; }

  std::int32_t insert(ChunkId id) {
    EBB_ASSERT(contains(id) && !resident(id) && !free_.empty());
    const std::int32_t slot = free_.back();
    free_.pop_back();
    owners_[static_cast<std::size_t>(slot)] = id;
    at(id).changed = rules_.epoch;
    return at(id).slot = slot;
  }
  void erase(ChunkId id) {
    EBB_ASSERT(resident(id));
    at(id).changed = rules_.epoch;
    free_.push_back(std::exchange(at(id).slot, -1));
    owners_[static_cast<std::size_t>(free_.back())] = {-1, -1};
  }

  std::int32_t n_complete = 0;  ///< chunks of every layer that are in the pool

 private:
  std::size_t index(ChunkId id) const {
    return static_cast<std::size_t>(id.layer * n_chunks_ + id.chunk);
  }
  bool yields(ChunkId id) const {
    return at(id).used + 1 < rules_.look && plan_->score(id.chunk) < bar_;
  }

  const SlotRules& rules_;
  std::uint32_t first_look_ = 1;  // of this sequence; entries keep those of the one before
  const PrefetchPlan* plan_ = nullptr;
  float bar_ = 0;
  std::int64_t n_chunks_;
  std::vector<Entry> entries_;   // [n_layers, n_chunks]
  std::vector<ChunkId> owners_;  // by slot
  std::vector<std::int32_t> free_;
};

}  // namespace ebb
