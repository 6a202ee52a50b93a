#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine.h"
#include "tools/ebb/job.h"

namespace ebb::cli {

/// Seconds. The first token comes out of prefill, so decode has one step fewer than tokens.
struct Timings {
  double queue = 0;    ///< from the start of run_jobs to the first prefill step
  double prefill = 0;  ///< the prompt, by itself; with what it copies, and what it has held
  double decode = 0;   ///< from the first token to the last, shared with other sequences
  /// Tokens: of the prompt, those that were copied. What a job has held for others, it feeds.
  std::int64_t n_reused = 0;
  /// What swapping did from the first prefill step to the end, in all sequences; nothing without.
  std::optional<SwapCounters> swap;
  /// What forecasts did, likewise.
  std::optional<MemoryCounters> memory;
};

struct Hooks {
  /// The next job, or nothing when there is none left.
  std::function<Result<std::optional<Job>>()> next;
  /// Hears each job at its end, in order of ending. An error ends the run.
  std::function<Status(const Job&, const Generation&, const Timings&)> finished;
  /// Optional: hears a job whose logits were no numbers; without it, or by its error, the run ends.
  std::function<Status(const Job&, const Error&)> failed;
  /// Optional: hears a sequence after each token.
  std::function<void(const Job&, Generation&)> token;
  /// Optional: tokens of `job` fed so far, after each prefill step.
  std::function<void(const Job&, std::int64_t)> prefilled;
  /// Optional: asked between steps; true ends the run, and what is not finished is dropped.
  std::function<bool()> stopped;
};

/// How far run_jobs looks ahead for prompts that begin alike: jobs, and tokens of their prompts.
inline constexpr std::size_t kMostAhead = 256;
inline constexpr std::size_t kMostAheadTokens = std::size_t{1} << 24;

/// Runs jobs, up to [engine] max_sequences at a time: a free sequence takes the next job and
/// prefills it alone; then all open sequences decode together, one token a step. Returns whether it
/// got to the end. Errors: of the hooks and of the engine, which end the run.
/// With [engine] prefix_sequences, what a prompt shares with the jobs ahead is fed once and copied,
/// if it is long enough, and jobs that share it go before those that came earlier. What a job gives
/// does not depend on it.
Result<bool> run_jobs(Engine& engine, const Hooks& hooks);

}  // namespace ebb::cli
