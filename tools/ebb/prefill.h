#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/engine.h"

namespace ebb::cli {

/// Feeds `tokens` to a sequence in steps of up to max_rows(); if `wants_logits`, logits(0) are then
/// those of the last token. `progress`, if set, hears the tokens fed after every step, and stops
/// the feeding by false (then the call returns false). Errors: of Engine::step.
inline Result<bool> prefill(Engine& engine, std::int32_t sequence,
                            std::span<const std::int32_t> tokens,
                            const std::function<bool(std::int64_t)>& progress = nullptr,
                            bool wants_logits = true) {
  std::vector<StepRow> rows;
  for (std::size_t fed = 0; fed < tokens.size();) {
    const std::size_t end =
        std::min(tokens.size(), fed + static_cast<std::size_t>(engine.max_rows()));
    rows.clear();
    for (; fed < end; ++fed) {
      rows.push_back({sequence, tokens[fed], wants_logits && fed + 1 == tokens.size()});
    }
    EBB_TRY(engine.step(rows));
    if (progress && !progress(static_cast<std::int64_t>(fed)) && fed < tokens.size()) return false;
  }
  return true;
}

}  // namespace ebb::cli
