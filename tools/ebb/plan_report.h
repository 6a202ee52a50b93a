#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/ebb/footprint.h"

namespace ebb::cli {

/// One context length, in one way of keeping rows.
struct PlannedContext {
  Footprint one;                 ///< with one sequence
  Footprint per_sequence;        ///< what a second one adds: device and host parts only
  std::int64_t n_sequences = 0;  ///< that fit
  bool by_host_limit = false;    ///< it is [swap] host_limit that keeps out one more
};

struct ContextRow {
  std::int64_t tokens = 0;
  PlannedContext resident;
  std::optional<PlannedContext> swapped;  ///< nothing where slots would hold all chunks
};

struct PlanReport {
  Room room;
  std::optional<Footprint> footprint;  ///< nothing if a module refuses
  Footprint per_sequence;
  std::int64_t longest_context = 0;  ///< that fits, tokens
  std::string complaint;             ///< "" if it fits
  std::vector<Suggestion> suggestions;
  std::vector<ContextRow> contexts;
};

/// The parts of `more` less those of `less`; parts that are equal are left out.
Footprint difference(const Footprint& more, const Footprint& less);

/// "--set a=1 --set b=2".
std::string as_options(const std::vector<std::string>& set);

std::string format_text(const PlanReport& report);
std::string format_json(const PlanReport& report);

}  // namespace ebb::cli
