#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/ebb/ab_report.h"
#include "tools/ebb/session.h"
#include "tools/report/charts.h"

namespace ebb::cli {
namespace {

constexpr std::size_t kBins = 200;  // steps are drawn in so many groups at most
constexpr std::size_t kDots = 200;

int color_of(std::size_t side) { return static_cast<int>(side) + 1; }

// The unit in which bytes are drawn: the largest of which there is a whole one.
std::pair<double, const char*> byte_unit(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = 1;
  std::size_t unit = 0;
  while (bytes / size >= 1024 && unit + 1 < std::size(kUnits)) {
    size *= 1024;
    ++unit;
  }
  return {size, kUnits[unit]};
}

std::vector<std::pair<double, double>> bound_points(const AbTrace& trace) {
  std::vector<std::pair<double, double>> points;
  for (const ReplayRow& row : trace.curve) {
    points.emplace_back(static_cast<double>(row.slots), miss_ratio(*row.bound, row.counters));
  }
  return points;
}

}  // namespace

std::string ratios_chart(const AbReport& report) {
  if (report.measures.empty()) return "";
  report::RowChart chart;
  chart.title = "B over A";
  chart.description = "Ratios of B to A by measure, with intervals that hold all at once in 95 %.";
  chart.reference = 1;
  for (const AbMeasure& measure : report.measures) {
    report::ChartRow row;
    row.name = measure.name + (measure.is_speed ? " speed" : "");
    row.color = color_of(1);
    row.point = measure.ratio.value;
    row.note = ratio_text(measure.ratio);
    if (measure.ratio.interval) {
      row.low = measure.ratio.interval->low;
      row.high = measure.ratio.interval->high;
      row.note += fmt::format(" ({})", interval_text(measure.ratio));
    }
    chart.rows.push_back(std::move(row));
  }
  return report::draw(chart);
}

std::string rounds_chart(const AbReport& report, const std::string& name) {
  const auto found = std::find_if(report.measures.begin(), report.measures.end(),
                                  [&](const AbMeasure& measure) { return measure.name == name; });
  if (found == report.measures.end()) return "";
  report::LineChart chart;
  chart.title = fmt::format("{} by round", name);
  chart.title.front() = static_cast<char>(std::toupper(chart.title.front()));
  chart.description =
      fmt::format("{} speed of both sides in each of {} rounds.", name, found->a.size());
  chart.x = {.label = "round", .is_whole = true};
  chart.y = {.label = found->unit};
  for (std::size_t side = 0; side < 2; ++side) {
    report::Series series{.name = report.sides[side].label, .color = color_of(side)};
    const std::vector<double>& values = side == 0 ? found->a : found->b;
    for (std::size_t i = 0; i < values.size(); ++i) {
      series.points.emplace_back(static_cast<double>(i + 1), values[i]);
    }
    series.has_markers = values.size() <= 60;
    chart.series.push_back(std::move(series));
  }
  return report::draw(chart);
}

std::string latency_chart(const AbReport& report) {
  report::RowChart chart;
  chart.title = "Time per token";
  chart.description = "Distribution of the time from one token to the next on both sides.";
  chart.x = {.label = "ms"};
  for (std::size_t side = 0; side < 2; ++side) {
    const std::vector<double>& sorted = report.latencies[side];
    if (sorted.empty()) continue;
    const auto at = [&sorted](double q) { return 1e3 * sorted_quantile(sorted, q); };
    report::ChartRow row;
    row.name = report.sides[side].label;
    row.color = color_of(side);
    row.box = report::ChartRow::Box{at(0.05), at(0.25), at(0.5), at(0.75), at(0.95)};
    row.note = fmt::format("median {:.{}f} ms", at(0.5), at(0.5) < 10 ? 3 : 1);
    for (std::size_t i = 0; i < kDots; ++i) {
      row.dots.push_back(at((static_cast<double>(i) + 0.5) / kDots));
    }
    chart.rows.push_back(std::move(row));
  }
  return chart.rows.empty() ? "" : report::draw(chart);
}

std::string hits_chart(const AbReport& report) {
  report::LineChart chart;
  chart.title = "Hit rate over steps";
  chart.description = "Share of selected chunks that had a slot, by decode step.";
  chart.x = {.label = "decode step", .from_zero = true, .is_whole = true};
  chart.y = {.label = "selected chunks that had a slot", .unit = report::Unit::percent};
  for (std::size_t side = 0; side < 2; ++side) {
    const auto& trace = report.traces[side];
    if (!trace || trace->distinct.empty()) continue;
    report::Series series{.name = report.sides[side].label,
                          .color = color_of(side),
                          .is_dashed = side == 1,
                          .has_markers = false};
    const std::size_t n = trace->distinct.size();
    const std::size_t per_bin = (n + kBins - 1) / kBins;
    if (per_bin > 1) chart.x.label = fmt::format("decode step, mean of {}", per_bin);
    for (std::size_t from = 0; from < n; from += per_bin) {
      const std::size_t end = std::min(n, from + per_bin);
      double hits = 0, all = 0;
      for (std::size_t i = from; i < end; ++i) {
        hits += trace->hits[i];
        all += trace->distinct[i];
      }
      series.points.emplace_back(static_cast<double>(from + end + 1) / 2, hits / all);
    }
    chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? "" : report::draw(chart);
}

std::string curve_chart(const AbReport& report) {
  report::LineChart chart;
  chart.title = "Misses by slots";
  chart.description =
      "Share of selected chunks that had no slot, by slots per layer, and the least possible.";
  chart.x = {.label = "slots per layer", .is_log = true};
  chart.y = {.label = "misses, share of selected chunks",
             .unit = report::Unit::percent,
             .from_zero = true};
  std::vector<report::Series> bounds;
  for (std::size_t side = 0; side < 2; ++side) {
    const auto& trace = report.traces[side];
    if (!trace || trace->curve.empty()) continue;
    report::Series series{.name = report.sides[side].label, .color = color_of(side)};
    for (const ReplayRow& row : trace->curve) {
      series.points.emplace_back(static_cast<double>(row.slots),
                                 miss_ratio(row.counters.misses, row.counters));
    }
    chart.series.push_back(std::move(series));
    bounds.push_back({.name = fmt::format("{}: {}", report.sides[side].name,
                                          trace->staging == StagingMode::demand ? "Belady's bound"
                                                                                : "least possible"),
                      .points = bound_points(*trace),
                      .color = color_of(side),
                      .is_dashed = true,
                      .has_markers = false});
  }
  // Sides that select the same share a bound.
  if (bounds.size() == 2 && bounds[0].points == bounds[1].points) {
    bounds.pop_back();
    bounds[0].name = bounds[0].name.substr(3) + ", both sides";
    bounds[0].color = 0;
  }
  for (report::Series& bound : bounds) chart.series.push_back(std::move(bound));
  return chart.series.empty() ? "" : report::draw(chart);
}

std::string memory_chart(const AbReport& report) {
  report::BarChart chart;
  chart.title = "Memory by part";
  chart.description = "Bytes planned on the device and on the host, by part, on both sides.";
  double most = 0;
  std::vector<std::pair<std::string, AbMemory>> bars;
  for (const AbSide& side : report.sides) {
    for (AbMemory& memory : memory_of(side)) {
      double sum = 0;
      for (const auto& [name, bytes] : memory.parts) sum += static_cast<double>(bytes);
      most = std::max(most, sum);
      bars.emplace_back(fmt::format("{}, {}", side.name, memory.place), std::move(memory));
    }
  }
  std::stable_sort(bars.begin(), bars.end(),
                   [](const auto& a, const auto& b) { return a.second.place < b.second.place; });
  const auto [size, unit] = byte_unit(most);
  chart.x = {.label = unit, .from_zero = true};
  for (auto& [name, memory] : bars) {
    report::BarChart::Bar bar{name, {}, ""};
    std::uint64_t sum = 0;
    for (const auto& [part, bytes] : memory.parts) {
      bar.parts.emplace_back(part, static_cast<double>(bytes) / size);
      sum += bytes;
    }
    bar.note = format_bytes(sum);
    chart.bars.push_back(std::move(bar));
  }
  return report::draw(chart);
}

}  // namespace ebb::cli
