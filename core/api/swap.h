#pragma once

#include <cstdint>
#include <span>

#include "core/api/attention.h"
#include "core/api/memory.h"
#include "core/api/module.h"
#include "core/api/staging.h"

namespace ebb {

/// What swapping did in one layer. Steps of prefill count in born, evictions and stores only.
///   hits + misses = distinct
///   born + misses - pool_reads + promotions + prefetched = evictions + freed + slots in use
///   h2d_bytes = (misses + promotions + prefetched) * row bytes;  d2h_bytes = stores * row bytes
///   prefetched = prefetch_used + prefetch_wasted + those in a slot that nothing selected so far
struct SwapCounters {
  std::uint64_t selections = 0;        ///< by every row of a step
  std::uint64_t distinct = 0;          ///< selected, once per step and sequence
  std::uint64_t hits = 0, misses = 0;  ///< had a slot when the step looked for it; had none
  std::uint64_t pool_reads = 0;        ///< misses that attention read from the pool
  std::uint64_t born = 0;              ///< slots given to chunks as they were completed
  std::uint64_t promotions = 0;        ///< slots given after a read from the pool
  /// Slots given because scores foresaw a use; those that a step used; that were taken before.
  std::uint64_t prefetched = 0, prefetch_used = 0, prefetch_wasted = 0;
  std::uint64_t evictions = 0;  ///< slots taken for another chunk
  std::uint64_t freed = 0;      ///< slots of sequences that were closed
  std::uint64_t stores = 0;     ///< chunks written to the pool
  std::uint64_t h2d_bytes = 0, prefetch_bytes = 0, d2h_bytes = 0;  ///< prefetch: part of h2d
  std::uint64_t refused = 0;   ///< answers of the policy that could not be followed
  std::uint64_t stall_us = 0;  ///< in which a step waited for the host to decide
};

struct SwapLayout {
  StagingMode mode = StagingMode::resident;
  std::int32_t n_layers = 0;
  std::int64_t n_chunks = 0;     ///< per layer and sequence
  std::int64_t n_slots = 0;      ///< the same
  std::uint64_t pool_bytes = 0;  ///< host memory
  std::uint64_t map_bytes = 0;   ///< host memory of the slot maps; a policy's own is not known
};

/// Keeps the chunk rows of a session in host memory and the ones in use in slots: how attention
/// reaches them is Staging; when what moves is driven by the core. A step is begin_step(), the
/// start of its plan, digest(). Whatever a module decides changes speed and never results. Thread:
/// [startup], then [decode]
class Swap : public Module, public Staging {
 public:
  static constexpr const char* kKind = "swap";

  /// Sizes everything and allocates nothing that grows with the context. False if every row stays
  /// in compute memory: the manifest says so, or the slots would hold all chunks. Errors: too few
  /// slots for what one row selects; more host memory than allowed.
  virtual Result<bool> plan(const SessionShape& session, const StagedShape& staged) noexcept = 0;
  /// Takes host memory: between the two carves of an arena.
  virtual Status open() noexcept = 0;
  virtual SwapLayout layout() const noexcept = 0;

  /// Empties the tables for a sequence that begins.
  virtual Status open_sequence(std::int32_t sequence) noexcept = 0;
  /// Before begin_step(): what a sequence is likely to select from this step on (memory.h).
  virtual void scored(const Forecast& forecast) noexcept = 0;
  /// The pool holds the chunks of n_tokens tokens that were not fed (Attention::fill and copy).
  virtual void fill(std::int32_t sequence, std::int64_t n_tokens) noexcept = 0;
  /// All steps are settled.
  virtual void close_sequence(std::int32_t sequence) noexcept = 0;
  /// The step before is over. Gives slots to the chunks that these rows complete; writes the moves.
  virtual void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                          std::int32_t n_rows) noexcept = 0;
  /// While the step runs: learns from the log of the one before it.
  virtual void digest() noexcept = 0;
  /// The last step is over: learns from it now.
  virtual void settle() noexcept = 0;
  /// By layer, of settled steps.
  virtual std::span<const SwapCounters> counters() const noexcept = 0;
};

}  // namespace ebb
