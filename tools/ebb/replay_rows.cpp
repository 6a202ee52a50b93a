#include "tools/ebb/replay_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/module_loader.h"
#include "core/options_toml.h"
#include "core/text.h"
#include "tools/ebb/session.h"

namespace ebb::cli {
namespace {

// The run's keys of [swap], then what was asked for. Another policy has other keys than the run's:
// only those that all share are kept for it.
Result<toml::table> swap_keys(const trace::Header& header, const PolicySpec& policy,
                              std::int64_t slots, StagingMode staging) {
  constexpr std::string_view kShared[] = {"host_limit", "sink_tokens", "recent_tokens",
                                          "max_promotions", "max_prefetch"};
  EBB_ASSIGN(const toml::table run, parse_toml(header.keys, "the trace"));
  EBB_ASSIGN(toml::table keys, parse_toml(policy.keys, "--policy " + policy.text));
  for (const auto& [key, value] : run) {
    const bool is_shared =
        std::find(std::begin(kShared), std::end(kShared), key.str()) != std::end(kShared);
    if (is_shared || policy.name == header.policy) keys.insert(key, value);
  }
  keys.insert_or_assign("slots", slots);
  keys.insert_or_assign("staging", staging_name(staging));
  return keys;
}

}  // namespace

PolicySpec parse_policy(const std::string& text) {
  PolicySpec policy{text, text.substr(0, text.find(':')), "", ""};
  if (policy.name.size() == text.size()) return policy;
  policy.keys = text.substr(policy.name.size() + 1);
  std::replace(policy.keys.begin(), policy.keys.end(), ',', '\n');
  return policy;
}

const char* staging_name(StagingMode mode) {
  return mode == StagingMode::demand ? "demand" : "zero_copy";
}

Result<std::vector<SwapCounters>> replay_policy(
    const ReplaySource& source, const PolicySpec& policy, std::int64_t slots, const LogSink& log,
    const std::function<void(const SwapCounters&)>& stepped) {
  EBB_ASSIGN(trace::Reader reader, trace::Reader::open(source.path, source.recover));
  EBB_ASSIGN(toml::table keys, swap_keys(reader.header(), policy, slots, source.staging));
  const std::unique_ptr<Options> options =
      make_options(Swap::kKind, std::make_shared<const toml::table>(std::move(keys)));
  const ModuleChoice choice{Swap::kKind, policy.name, policy.folder, "--policy"};
  const ModuleLoader modules(source.modules.empty() ? modules_folder() : source.modules);
  return trace::replay(reader, modules, choice, *options, log, source.with_scores, stepped);
}

std::vector<std::uint64_t> miss_bounds(const trace::Contents& contents, StagingMode staging,
                                       std::span<const std::int64_t> slots) {
  std::vector<std::uint64_t> bounds(slots.size());
  for (const trace::Accesses& accesses : contents.sequences) {
    const trace::Bound bound(accesses);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      bounds[i] +=
          staging == StagingMode::demand ? bound.demand(slots[i]) : bound.zero_copy(slots[i]);
    }
  }
  return bounds;
}

double miss_ratio(std::uint64_t misses, const SwapCounters& counters) {
  return counters.distinct > 0
             ? static_cast<double>(misses) / static_cast<double>(counters.distinct)
             : 0;
}

nlohmann::ordered_json to_json(const ReplayRow& row) {
  nlohmann::ordered_json json{{"policy", row.policy}, {"slots", row.slots}};
  for (const trace::Counter& counter : trace::counters_of(row.counters)) {
    json[counter.name] = counter.value;
  }
  json["miss_ratio"] = miss_ratio(row.counters.misses, row.counters);
  json["bound"] = row.bound ? nlohmann::ordered_json(*row.bound) : nlohmann::ordered_json();
  return json;
}

nlohmann::ordered_json to_json_with_layers(const ReplayRow& row) {
  nlohmann::ordered_json json = to_json(row);
  json["layers"] = nlohmann::ordered_json::array();
  for (const SwapCounters& layer : row.layers) {
    nlohmann::ordered_json counters;
    for (const trace::Counter& counter : trace::counters_of(layer)) {
      counters[counter.name] = counter.value;
    }
    json["layers"].push_back(std::move(counters));
  }
  return json;
}

report::LineChart miss_curve(const std::string& title, const std::vector<ReplayRow>& rows,
                             StagingMode staging) {
  report::LineChart chart;
  chart.title = title;
  chart.x = {.label = "slots per layer", .is_log = true};
  chart.y = {.label = "misses, share of selected chunks",
             .unit = report::Unit::percent,
             .from_zero = true};
  report::Series bound{.name = staging == StagingMode::demand ? "Belady's bound" : "least possible",
                       .color = 0,
                       .is_dashed = true,
                       .has_markers = false};
  std::vector<std::string> names;
  for (const ReplayRow& row : rows) {
    auto found = std::find(names.begin(), names.end(), row.policy);
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(row.policy);
      chart.series.push_back({.name = printable(row.policy.substr(row.policy.rfind('/') + 1), 80),
                              .color = static_cast<int>(at % report::kColors) + 1});
    }
    const auto slots = static_cast<double>(row.slots);
    chart.series[at].points.emplace_back(slots, miss_ratio(row.counters.misses, row.counters));
    if (row.bound && at == 0) {
      bound.points.emplace_back(slots, miss_ratio(*row.bound, row.counters));
    }
  }
  if (!bound.points.empty()) chart.series.push_back(std::move(bound));
  for (report::Series& series : chart.series) std::sort(series.points.begin(), series.points.end());
  chart.description = fmt::format(
      "Share of selected chunks that had no slot, by slots per layer, "
      "for {} policies in {} staging.",
      names.size(), staging_name(staging));
  return chart;
}

}  // namespace ebb::cli
