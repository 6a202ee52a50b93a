#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/api/result.h"

namespace ebb {

/// Sizes that a policy may allocate from, in open().
struct SwapShape {
  std::int32_t n_layers = 0;  ///< layers whose chunks are staged
  std::int32_t max_open = 1;  ///< those of prefixes too; each has slots of its own
  std::int64_t n_chunks = 0;  ///< per layer and sequence
  std::int64_t n_slots = 0;   ///< per sequence, for all its layers together
  std::int32_t top_k = 0;     ///< chunks that one query selects in one layer, at most
};

/// The chunks of one layer of one sequence.
struct CacheId {
  std::int32_t sequence = 0;
  std::int32_t layer = 0;  ///< among the staged ones
};

struct ChunkId {
  std::int32_t layer = 0;
  std::int32_t chunk = 0;
};

/// Why a chunk got a slot.
enum class SlotReason : std::int32_t { born, demanded, promoted, prefetched };

/// What a policy may ask about the state of a sequence's slots.
class SlotView {
 public:
  virtual ~SlotView() = default;
  virtual bool resident(ChunkId id) const noexcept = 0;
  /// Resident, and not needed by the step at hand (selected, newest or sink). Where room is made
  /// for a chunk that scores foresee: nor selected by the step before, and of a lower score.
  virtual bool evictable(ChunkId id) const noexcept = 0;
  virtual std::int64_t free_slots() const noexcept = 0;
};

/// Decides who stays in the slots. It is told of every change and asked for victims; it never moves
/// anything itself. Whatever it answers changes speed only: SlotStaging checks each answer, refuses
/// the wrong ones with the module's name in the log, and goes on without them.
/// A policy has `static Result<std::unique_ptr<P>> create(Host&, Options&)`, which reads its own
/// keys and finishes the options; PolicyModule<P> (slot_staging.h) makes a module of it. No call
/// may allocate after open(). Thread: [startup] open; the rest on one thread at a time.
class SwapPolicy {
 public:
  virtual ~SwapPolicy() = default;

  virtual Status open(const SwapShape& shape) noexcept = 0;
  /// The sequence ended: nothing of it is resident any more.
  virtual void forget(std::int32_t sequence) noexcept = 0;

  /// One step's distinct selections of a layer, ascending; residency is that of the step's start.
  virtual void selected(CacheId cache, std::span<const std::int32_t> chunks,
                        const SlotView& slots) noexcept = 0;
  virtual void inserted(CacheId cache, std::int32_t chunk, SlotReason reason) noexcept = 0;
  virtual void evicted(CacheId cache, std::int32_t chunk) noexcept = 0;
  /// Scores of the sequence's chunks for the tokens to come, [n] by chunk; larger is likelier.
  virtual void scored(std::int32_t sequence, std::span<const float> scores) noexcept = 0;

  /// zero_copy: of the chunks that were read from the pool, those worth a slot, best first, in
  /// `out`; returns how many. out.size() is the number of moves left in this step.
  virtual std::size_t admit(CacheId cache, std::span<const std::int32_t> missed,
                            std::span<std::int32_t> out) noexcept = 0;
  /// Chunks of the sequence to give up, in any layer, so that `cache` gets out.size() slots: all
  /// different, all evictable. Fewer than asked for is allowed; where few chunks are evictable, a
  /// long search is not worth its time.
  virtual std::size_t victims(CacheId cache, std::span<ChunkId> out,
                              const SlotView& slots) noexcept = 0;
};

}  // namespace ebb
