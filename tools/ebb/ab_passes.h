#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine.h"
#include "tools/ebb/ab_sides.h"
#include "tools/ebb/generation.h"
#include "tools/ebb/scheduler.h"

namespace ebb::cli {

/// One prompt on one side in one round.
struct AbSample {
  std::int64_t n_prompt = 0;
  std::vector<std::int32_t> tokens;
  std::string text;                    ///< of all tokens; empty without a tokenizer
  std::vector<std::size_t> text_ends;  ///< bytes of `text` after each token
  FinishReason finish = FinishReason::none;
  Timings timings;
  std::vector<double> token_seconds;  ///< from each token to the next
  std::string error;                  ///< its logits were no numbers: nothing else is set
};

/// All prompts on one side in one round.
struct AbPass {
  std::int32_t round = 0;  ///< from 1; 0 comes before the timed ones
  std::size_t side = 0;
  std::int32_t place = 0;  ///< 0: it came first in its round
  double wall = 0;         ///< seconds from the first prompt to the last token
  std::optional<SwapCounters> swap;
  std::optional<MemoryCounters> memory;  ///< what forecasts did
  std::vector<AbSample> samples;         ///< by prompt
};

/// The side that comes first in a round, from 1: A B, B A, B A, A B, and so on as ABBA BAAB does
/// it, each block of rounds being followed by itself with the sides exchanged, so that whatever
/// grows steadily over the rounds strikes both sides alike.
std::size_t first_side(std::int32_t round);

/// Runs a side's jobs. Nothing if it was stopped. Errors: of the engine.
Result<std::optional<AbPass>> run_pass(Engine& engine, const std::vector<Job>& jobs,
                                       const std::function<bool()>& stopped);

/// Runs the shortest job for a few tokens, for an engine that was just opened again.
Status warm_up(Engine& engine, const std::vector<Job>& jobs, const std::function<bool()>& stopped);

}  // namespace ebb::cli
