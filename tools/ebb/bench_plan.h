#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/api/result.h"
#include "core/api/session.h"

namespace ebb::cli {

/// What a benchmark measures and in which order.
struct BenchPlan {
  std::vector<std::int64_t> frontiers;  ///< context lengths, ascending, tokens
  std::vector<std::int32_t> batches;    ///< sequences per decode step, descending
  std::int64_t n_steps = 0;             ///< decode steps counted per frontier and batch
  std::int32_t n_rounds = 1;
  bool synthetic = false;  ///< contexts are filled with random rows, not fed

  /// Decode steps at one frontier: the first of every batch is not counted.
  std::int64_t decoded() const { return (n_steps + 1) * static_cast<std::int64_t>(batches.size()); }
};

/// "2K,4096,1M" as ascending numbers of tokens, K being 1024. Errors: invalid_argument that names
/// the part which is none, or is 0, or beyond 2^24.
Result<std::vector<std::int64_t>> parse_lengths(std::string_view text);

/// "1,4,16" as descending numbers, each 1..1024.
Result<std::vector<std::int32_t>> parse_batches(std::string_view text);

/// Fits the plan to a session, of which max_context and max_decode count. Without frontiers of
/// the user's it takes those of 2K, 4K, 16K, 64K and 256K that the session has room for, or else
/// the longest context that it has. Errors: invalid_argument if a frontier, or a batch, goes beyond
/// the session's limits, or, where contexts are fed, if decode at a frontier runs into the next
/// one.
Status fit_plan(BenchPlan& plan, const SessionShape& session);

}  // namespace ebb::cli
