#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/ebb/prefill.h"

namespace ebb::cli {

/// Feeds `tokens` to a fresh sequence, `chunk` rows a step, and hands out the logits of every
/// position, in order, or of the last alone. The engine must be open with all_logits for `all`.
/// Between steps it asks `stopped`, if there is one, and leaves the rest out by true.
/// Errors: of the engine, and those of `take`, which end it.
inline Status feed_for_logits(
    Engine& engine, std::span<const std::int32_t> tokens, std::int32_t chunk, bool all,
    const std::function<Status(std::size_t position, std::span<const float> logits)>& take,
    const std::function<bool()>& stopped = nullptr) {
  EBB_ASSIGN(const std::int32_t sequence, engine.open_sequence());
  std::vector<StepRow> rows;
  for (std::size_t fed = 0; fed < tokens.size() && !(stopped && stopped());) {
    const std::size_t n = std::min(tokens.size() - fed, static_cast<std::size_t>(chunk));
    rows.clear();
    for (std::size_t i = fed; i < fed + n; ++i) {
      rows.push_back({sequence, tokens[i], all || i + 1 == tokens.size()});
    }
    EBB_TRY(engine.step(rows));
    std::int32_t row = 0;
    for (std::size_t i = fed; i < fed + n; ++i) {
      if (!rows[i - fed].wants_logits) continue;
      EBB_ASSIGN(const std::span<const float> logits, engine.logits(row++));
      EBB_TRY(take(i, logits));
    }
    fed += n;
  }
  engine.close_sequence(sequence);
  return ok_status();
}

/// Feeds the first `n_prompt` tokens to a fresh sequence as a prompt, and each of the others in a
/// step of its own, as decode does; hands out the logits of every position from the prompt's last
/// on. `progress`: see prefill. Returns false if that stopped it.
/// Errors: of the engine, and those of `take`, which end it.
inline Result<bool> feed_one_by_one(
    Engine& engine, std::span<const std::int32_t> tokens, std::size_t n_prompt,
    const std::function<Status(std::size_t position, std::span<const float> logits)>& take,
    const std::function<bool(std::int64_t)>& progress = nullptr) {
  EBB_ASSIGN(const std::int32_t sequence, engine.open_sequence());
  EBB_ASSIGN(const bool is_fed, prefill(engine, sequence, tokens.first(n_prompt), progress));
  if (!is_fed) return false;
  for (std::size_t position = n_prompt - 1;; ++position) {
    EBB_ASSIGN(const std::span<const float> logits, engine.logits(0));
    EBB_TRY(take(position, logits));
    if (position + 1 == tokens.size()) break;
    const StepRow row{sequence, tokens[position + 1], true};
    EBB_TRY(engine.step({&row, 1}));
  }
  engine.close_sequence(sequence);
  return true;
}

/// Logits at every position are to be those of a prompt. With a [memory] mode that limits
/// selection, each step would be a decode step's, and what they are would depend on how many rows
/// it has. `instead`: what to use then.
inline Status check_selects_freely(const Engine& engine, const Manifest& manifest,
                                   const char* instead) {
  if (engine.memory() == nullptr || engine.memory()->allowed() == nullptr) return ok_status();
  return make_error(Errc::invalid_argument,
                    "%s: [memory] mode limits what decode selects, and here whole prompts are fed: "
                    "want %s",
                    manifest.path().c_str(), instead);
}

}  // namespace ebb::cli
