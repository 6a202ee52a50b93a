#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/host.h"
#include "tools/report/charts.h"
#include "tools/trace/replay.h"

namespace ebb::cli {

/// NAME, or NAME:key=value,key=value with the module's keys as TOML spells them.
struct PolicySpec {
  std::string text, name, keys;
  std::string folder = "";  ///< that a name with '/' starts from; "" is the current one
};
PolicySpec parse_policy(const std::string& text);

/// "demand" or "zero_copy".
const char* staging_name(StagingMode mode);

/// The trace that policies are run over.
struct ReplaySource {
  std::string path;
  StagingMode staging = StagingMode::demand;  ///< not the trace's, if one wants to know
  bool recover = false;
  bool with_scores = true;  ///< what the run's scorers foresaw
  std::string modules;      ///< folder of bare module names; "": the program's
};

/// One policy with one number of slots.
struct ReplayRow {
  std::string policy;
  std::int64_t slots = 0;
  std::vector<SwapCounters> layers;
  SwapCounters counters;  ///< their sum
  std::optional<std::uint64_t> bound;
};

/// Runs a policy over a trace with `slots` per layer. The keys are the run's, then what the policy
/// says. Counters by layer; `stepped`: see trace::replay. Errors: of the trace and of the module.
Result<std::vector<SwapCounters>> replay_policy(
    const ReplaySource& source, const PolicySpec& policy, std::int64_t slots, const LogSink& log,
    const std::function<void(const SwapCounters&)>& stepped = {});

/// The fewest misses possible over all sequences, for each number of slots.
std::vector<std::uint64_t> miss_bounds(const trace::Contents& contents, StagingMode staging,
                                       std::span<const std::int64_t> slots);

/// Misses of what is selected, or 0 of nothing.
double miss_ratio(std::uint64_t misses, const SwapCounters& counters);

/// Counters by name, of all layers together, miss_ratio and bound.
nlohmann::ordered_json to_json(const ReplayRow& row);
/// The same, with the counters of each layer as "layers".
nlohmann::ordered_json to_json_with_layers(const ReplayRow& row);

/// Miss ratio by slots: a line per policy, in order of first appearance, and the bound's where rows
/// have one.
report::LineChart miss_curve(const std::string& title, const std::vector<ReplayRow>& rows,
                             StagingMode staging);

}  // namespace ebb::cli
