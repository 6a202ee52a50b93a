#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/api/options.h"
#include "modules/swap_common/chunk_table.h"
#include "modules/swap_common/lists.h"
#include "modules/swap_common/policy.h"
#include "modules/swap_score/value_heap.h"

namespace ebb::score {

struct Settings {
  double score = 0.5;      ///< weight of the predicted need
  double frequency = 0.5;  ///< weight of the average of selections
  double recency = 1;      ///< weight of the last use
  double half_life = 32;   ///< steps after which all three count half

  static Settings read(Options& options);
};

/// The policy's knowledge of one sequence; the formula stands in sequence.cpp.
/// Only resize() allocates.
class Sequence {
 public:
  using Settings = score::Settings;

  void resize(const SwapShape& shape, const Settings& settings);
  void clear();

  void selected(std::int32_t layer, std::span<const std::int32_t> chunks, const SlotView&);
  void inserted(ChunkId chunk);
  void evicted(ChunkId chunk);
  void scored(std::span<const float> scores);
  std::size_t admit(std::int32_t layer, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out);
  std::size_t victims(std::int32_t, std::span<ChunkId> out, const SlotView& slots);

 private:
  static constexpr std::int32_t kNone = -1;
  struct Entry {
    double average = 0;       // of "selected in a step", at step `used`
    std::int64_t used = 0;    // step of the last selection or insertion
    std::uint64_t order = 0;  // of that use among all
  };

  Entry& entry(std::int32_t i) { return entries_[static_cast<std::size_t>(i)]; }
  const Entry& entry(std::int32_t i) const { return entries_[static_cast<std::size_t>(i)]; }
  std::int32_t entry_for(ChunkId chunk);
  double decay(std::int64_t steps) const;
  double predicted(std::int32_t chunk) const;
  ValueHeap::Value value(std::int32_t i) const;
  void use(std::int32_t i, bool is_selected);

  Settings settings_;
  double per_step_ = 1;  // what one step leaves of everything
  ChunkTable table_;
  std::vector<Entry> entries_;
  ValueHeap heap_;  // of chunks with slots
  Lists rest_;      // one list: chunks without slots, of which the average is still known
  std::vector<float> scores_;  // by chunk, 0..1; of the last scored(), 0 before
  std::int64_t step_ = 0, scored_at_ = 0;
  std::int32_t last_layer_ = kNone;
  std::uint64_t order_ = 0;
  std::vector<std::int32_t> aside_;
  std::vector<std::pair<double, std::int32_t>> ranked_;
};

}  // namespace ebb::score
