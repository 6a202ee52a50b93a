#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/api/options.h"
#include "modules/swap_adaptive/lru_guard.h"
#include "modules/swap_adaptive/slot_shares.h"
#include "modules/swap_common/chunk_table.h"
#include "modules/swap_common/lists.h"
#include "modules/swap_common/policy.h"

namespace ebb::adaptive {

struct Settings {
  double regret = 0.01;      ///< of LRU's misses that may be lost
  std::int64_t window = 32;  ///< steps between moves of slots from layer to layer; 0: none

  static Settings read(Options& options);
};

/// The policy's knowledge of one sequence; the algorithm stands in sequence.cpp.
/// Only resize() allocates.
class Sequence {
 public:
  using Settings = adaptive::Settings;

  void resize(const SwapShape& shape, const Settings& settings);
  void clear();

  void selected(std::int32_t layer, std::span<const std::int32_t> chunks, const SlotView& slots);
  void inserted(ChunkId chunk);
  void evicted(ChunkId chunk);
  void scored(std::span<const float>) {}
  std::size_t admit(std::int32_t layer, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out);
  std::size_t victims(std::int32_t layer, std::span<ChunkId> out, const SlotView& slots);

 private:
  static constexpr std::int32_t kNone = -1;
  enum Kind : std::int32_t { once, again, once_ghost, again_ghost, kinds };
  struct Entry {
    std::uint32_t seen = 0;     // the layer's clock when it was last selected or inserted
    std::uint32_t evicted = 0;  // the layer's count of evictions when it lost its slot
    bool is_resident = false;
    bool is_frequent = false;  // came back after a pause
  };
  struct Layer {
    std::uint32_t clock = 0;  // selections
    std::uint32_t n_evicted = 0;
    double once_target = 0;  // slots for chunks of `once`
  };

  Entry& entry(std::int32_t i) { return entries_[static_cast<std::size_t>(i)]; }
  Layer& layer(std::int32_t l) { return layers_[static_cast<std::size_t>(l)]; }
  std::int32_t list(std::int32_t layer, Kind kind) const { return layer * kinds + kind; }
  std::int32_t entry_for(ChunkId chunk);
  bool is_ghost(std::int32_t i) const;
  void forget_if_unknown(std::int32_t i);
  void place(std::int32_t i, std::int32_t layer, bool at_front);
  void ghost_hit(std::int32_t i, std::int32_t layer);
  void trim_ghosts(std::int32_t layer);
  void trim_lru(std::int32_t layer, const SlotView& slots);
  void put_back_leaving();
  std::int32_t choose(std::int32_t layer, const SlotView& slots);
  std::int32_t oldest(std::int32_t layer, const SlotView& slots);
  std::int32_t lru_choice(std::int32_t layer, std::int32_t& cursor, const SlotView& slots);

  ChunkTable table_;
  std::vector<Entry> entries_;
  std::vector<Layer> layers_;
  Lists lists_;               // [n_layers, kinds], and the chunks named as victims
  std::int32_t leaving_ = 0;  // the last list
  LruGuard guard_;
  SlotShares shares_;
  std::int64_t pending_ = 0;  // missed chunks of the last selection that will get a slot
};

}  // namespace ebb::adaptive
