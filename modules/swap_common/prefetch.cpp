// What forecasts do in SlotStaging. Scores are one set for all layers of a sequence: each layer
// gets the kept chunks that it has no slot for, the best first, a few per step. Room for them is
// what nobody needs more: free slots; or, for a chunk that the layer has selected before, a victim
// of the policy that scores less and was not selected lately. (Layers differ in what they select:
// without that condition less was used of what came, in every trace that was tried.) The kept
// chunks come best first, so where the policy finds no victim for one there is none for the next,
// and the layer is done until the next forecast.

#include <utility>

#include "modules/swap_common/slot_staging.h"

namespace ebb {

void SlotStaging::scored(const Forecast& forecast) noexcept {
  policy_->scored(forecast.sequence, forecast.scores);
  if (!plans_.empty()) plans_[static_cast<std::size_t>(forecast.sequence)].set(forecast);
}

void SlotStaging::prefetch(std::int32_t sequence) {
  if (plans_.empty()) return;
  PrefetchPlan& plan = plans_[static_cast<std::size_t>(sequence)];
  SlotMap& slots = map(sequence);
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (std::int64_t n = 0; n < settings_.max_prefetch;) {
      const std::int32_t chunk = plan.next(layer);
      if (chunk == PrefetchPlan::kNone) break;
      const ChunkId id{layer, chunk};
      if (slots.resident(id) || slots.at(id).changed == rules_.epoch ||
          (slots.free_slots() == 0 && !slots.known(id))) {
        plan.take(layer);
        continue;
      }
      slots.set_bar(&plan, plan.score(chunk));
      const bool has_room = make_room({sequence, layer}, 1) > 0;
      slots.set_bar(nullptr);
      if (!has_room) {
        plan.stop(layer);
        break;
      }
      insert({sequence, layer}, chunk, SlotReason::prefetched);
      plan.take(layer);
      ++n;
    }
  }
}

// demand, within a step: what it selects comes before what was foreseen for it. Those moves are
// made, so taking one back is a move of another list.
void SlotStaging::drop_prefetched(std::int32_t sequence, std::size_t n_wanted) {
  const SlotMap& slots = map(sequence);
  for (std::size_t slot = 0; slot < slots.owners().size(); ++slot) {
    if (static_cast<std::size_t>(slots.free_slots()) >= n_wanted) return;
    const ChunkId id = slots.owners()[slot];
    if (id.layer < 0 || slots.pinned(id)) continue;
    const SlotMap::Entry& entry = slots.at(id);
    if (entry.foreseen == SlotMap::Foreseen::unused && !slots.is_used(entry)) {
      evict({sequence, id.layer}, id.chunk);
    }
  }
}

// Whether a selected chunk had a slot in `step`; if so, a forecast that gave it was right. One that
// was taken for wrong meanwhile, in a later step, is set right.
bool SlotStaging::use(ChunkId id, SlotMap::Entry& entry, std::uint32_t step) {
  if ((entry.slot >= 0) == (entry.changed > step)) return false;
  const auto was = std::exchange(entry.foreseen, SlotMap::Foreseen::no);
  if (was != SlotMap::Foreseen::no) ++count(id.layer).prefetch_used;
  if (was == SlotMap::Foreseen::wasted) --count(id.layer).prefetch_wasted;
  return true;
}

}  // namespace ebb
