#include "tools/ebb/ab_traces.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "tools/ebb/swap_counters.h"

namespace ebb::cli {
namespace {

constexpr int kCounts = 8;

std::vector<std::int64_t> spread(std::int64_t low, std::int64_t high, std::int64_t own) {
  std::set<std::int64_t> counts{own};
  for (int i = 0; i < kCounts && low < high; ++i) {
    const double share = static_cast<double>(i) / (kCounts - 1);
    counts.insert(
        std::llround(static_cast<double>(low) *
                     std::pow(static_cast<double>(high) / static_cast<double>(low), share)));
  }
  return {counts.begin(), counts.end()};
}

}  // namespace

Result<AbTrace> study_trace(const AbSide& side, const std::string& path,
                            const std::vector<std::int64_t>& wanted, const LogSink& log) {
  EBB_ASSIGN(trace::Reader reader, trace::Reader::open(path, false));
  const trace::Header header = reader.header();
  EBB_ASSIGN(const trace::Contents contents, trace::read_contents(reader, true));
  AbTrace study;
  study.file = std::filesystem::path(path).filename().string();
  study.staging = static_cast<StagingMode>(header.staging);
  study.slots = header.slots;
  const ReplaySource source{path, study.staging, false, true, side.manifest.modules_folder()};
  const PolicySpec policy{header.policy, header.policy, "",
                          side.manifest.module(Swap::kKind)->folder};

  SwapCounters before;
  EBB_ASSIGN(
      const std::vector<SwapCounters> own,
      replay_policy(source, policy, study.slots, log, [&](const SwapCounters& counters) {
        if (counters.distinct > before.distinct) {
          study.distinct.push_back(static_cast<std::uint32_t>(counters.distinct - before.distinct));
          study.hits.push_back(static_cast<std::uint32_t>(counters.hits - before.hits));
        }
        before = counters;
      }));
  std::vector<std::int64_t> slots = wanted;
  if (slots.empty()) {
    const std::int64_t least = header.top_k;
    const bool takes_least = replay_policy(source, policy, least, [](auto...) {}).has_value();
    slots = spread(takes_least ? least : study.slots, contents.most_chunks, study.slots);
  }
  const std::vector<std::uint64_t> bounds = miss_bounds(contents, study.staging, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Result<std::vector<SwapCounters>> layers = own;
    if (slots[i] != study.slots) layers = replay_policy(source, policy, slots[i], log);
    if (layers) {
      const SwapCounters sum = total(*layers);
      study.curve.push_back({header.policy, slots[i], *std::move(layers), sum, bounds[i]});
    } else if (layers.error().code != Errc::invalid_argument) {
      return layers.error();
    }
  }
  return study;
}

}  // namespace ebb::cli
