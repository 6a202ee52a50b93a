#pragma once

#include <cstdint>
#include <string>

#include "core/api/result.h"
#include "tools/trace/put.h"

namespace ebb::trace {

/// What a file of selections holds: rows by layer and step, and chunks of a row at most.
struct RecordedSize {
  std::uint32_t n_layers = 0, n_steps = 0, top_k = 0;
};

/// Writes the selections of the first sequence that takes two or more steps of its own (one row) as
/// a file for `[attention] selections` (modules/attention_csa/recorded.h has the layout). A chunk
/// of the trace stands for `spread` neighbours: a small model's selections become those of a model
/// that selects `spread` times as many, of a context `spread` times as long. The steps go forwards,
/// then backwards, so that nothing jumps where the file begins anew. Errors: invalid_argument if
/// there are fewer than two such steps, or more than a file holds, before anything is put; io;
/// those of `put`.
Result<RecordedSize> export_selections(const std::string& trace, std::int32_t spread, bool recover,
                                       const Put& put);

}  // namespace ebb::trace
