#include <fmt/format.h>

#include <map>

#include "tools/ebb/bench_report.h"
#include "tools/report/charts.h"

namespace ebb::cli {

std::vector<std::string> bench_charts(const std::vector<nlohmann::ordered_json>& rows) {
  report::LineChart decode, prefill;
  decode.title = "Decode";
  decode.description = "Decode speed in tokens per second by context length.";
  decode.x = {.label = "context, tokens", .unit = report::Unit::tokens, .is_log = true};
  decode.y = {.label = "tokens/s, over all sequences of a step", .from_zero = true};
  prefill.title = "Prefill";
  prefill.description = "Prefill speed in tokens per second by the length that was fed to.";
  prefill.x = {.label = "fed up to, tokens", .unit = report::Unit::tokens, .is_log = true};
  prefill.y = {.label = "tokens/s, from the length before", .from_zero = true};
  std::map<std::int32_t, report::Series> by_batch;
  report::Series fed{.name = "one sequence"};
  for (const nlohmann::ordered_json& row : rows) {
    const std::pair<double, double> point{row["frontier"].get<double>(),
                                          row["tok_s"].get<double>()};
    if (row["phase"] == "prefill") {
      fed.points.push_back(point);
    } else {
      by_batch[row["batch"].get<std::int32_t>()].points.push_back(point);
    }
  }
  int color = 0;
  for (auto& [batch, series] : by_batch) {
    series.name = batch == 1 ? "1 sequence" : fmt::format("{} sequences", batch);
    series.color = color++ % report::kColors + 1;
    decode.series.push_back(std::move(series));
  }
  std::vector<std::string> charts;
  if (!decode.series.empty()) charts.push_back(report::draw(decode));
  if (!fed.points.empty()) {
    prefill.series.push_back(std::move(fed));
    charts.push_back(report::draw(prefill));
  }
  return charts;
}

}  // namespace ebb::cli
