#pragma once

#include <cstdint>
#include <span>

#include "core/api/attention.h"
#include "core/api/module.h"
#include "core/api/session.h"

namespace ebb {

/// Scores the chunks of a sequence for the tokens to come, from the hidden vector of its last one:
/// the larger a chunk's logit, the likelier it is selected. Source: retriever reference 2
class Scorer : public Module {
 public:
  static constexpr const char* kKind = "scorer";

  /// The decoder layer whose hidden vectors and index keys it reads; -1: none.
  virtual std::int32_t layer() const noexcept = 0;
  /// Imports weights; everything was checked in create.   Thread: [startup]
  virtual Status load() noexcept = 0;
  virtual void carve(Arena& arena, const SessionShape& shape) noexcept = 0;
  /// Records: row r asks for sequence seq[r] after the token at pos[r], whose hidden vector is kept
  /// in row first_kept + r (ScoredLayer). Writes logits [rows, n_chunks] of the chunks visible
  /// there, in compute memory.   Thread: [startup]
  virtual Status plan(Ops& ops, const StepView& queries, std::int32_t first_kept, float* logits,
                      std::int64_t n_chunks) noexcept = 0;
  /// Host side, after the plan's run: may change what it wrote for one row, [visible chunks].
  virtual void finish(std::int32_t sequence, std::int64_t pos,
                      std::span<float> logits) noexcept = 0;
};

/// What the scores say of one sequence from a step on.
struct Forecast {
  std::int32_t sequence = 0;
  std::span<const float> scores;       ///< [n] logits of chunks 0..n-1, all scorers taken together
  std::span<const std::int32_t> kept;  ///< the chosen chunks, ascending; those >= n are kept too
};

struct MemoryCounters {
  std::uint64_t refreshes = 0;  ///< forecasts that took effect
  std::uint64_t scored = 0;     ///< chunks that they scored
  std::uint64_t kept = 0;       ///< chunks that they kept
  std::uint64_t nan = 0;        ///< logits that were no number
  std::uint64_t wait_us = 0;    ///< in which the host waited for scores
};

/// The rows of a step as StepView has them, in host memory.
struct StepRows {
  const std::int32_t* pos = nullptr;
  const std::int32_t* seq = nullptr;
  const std::int32_t* out_row = nullptr;
  std::int32_t n_rows = 0, n_out = 0;
};

/// Asks scorers from time to time, beside the steps, and decides from their answers which chunks
/// decode may select or will want. A step is begin_step(), the start of its plan, step_started().
/// When a forecast takes effect depends on the sequence's own steps alone.
class Memory : public Module {
 public:
  static constexpr const char* kKind = "memory";

  /// The scorers are borrowed. False if there is nothing to do.   Thread: [startup]
  virtual Result<bool> plan(const SessionShape& shape,
                            std::span<Scorer* const> scorers) noexcept = 0;
  /// The scorers' buffers too; before those of the attention.   Thread: [startup]
  virtual void carve(Arena& arena) noexcept = 0;
  /// Loads the scorers and records their plans; the attention has been carved. Thread: [startup]
  virtual Status open() noexcept = 0;
  /// Compute memory [max_open, n_chunks]: 0 where no row of the sequence may select the chunk.
  /// nullptr: all may.
  virtual const std::uint8_t* allowed() const noexcept = 0;

  virtual Status open_sequence(std::int32_t sequence) noexcept = 0;
  virtual Status close_sequence(std::int32_t sequence) noexcept = 0;
  /// Sets keep[r], -1 on entry, of rows whose vectors it wants (StepView); at most 2 *
  /// max_open are kept. Returns what takes effect with this step; borrowed until the next.
  virtual Result<std::span<const Forecast>> begin_step(const StepRows& rows,
                                                       std::int32_t* keep) noexcept = 0;
  virtual Status step_started() noexcept = 0;
  virtual MemoryCounters counters() const noexcept = 0;
};

}  // namespace ebb
