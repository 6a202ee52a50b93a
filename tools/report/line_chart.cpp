#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/report/charts.h"
#include "tools/report/frame.h"

namespace ebb::report {
namespace {

constexpr double kHeight = 220;  // of the plot

std::string path_of(const Series& series, const PlotArea& area, const Scale& x, const Scale& y) {
  std::string d;
  bool is_open = false;
  for (const auto& [at, value] : series.points) {
    if (!std::isfinite(at) || !std::isfinite(value)) {
      is_open = false;
      continue;
    }
    d += fmt::format("{}{} {}", is_open ? 'L' : 'M', coordinate(area.x(x, at)),
                     coordinate(area.y(y, value)));
    is_open = true;
  }
  return d;
}

}  // namespace

std::string draw(const LineChart& chart) {
  std::vector<double> xs, ys;
  std::vector<LegendEntry> legend;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (!std::isfinite(y)) continue;
      xs.push_back(x);
      ys.push_back(y);
    }
    legend.push_back({series.name, series.color,
                      series.is_dashed ? LegendEntry::Sign::dashed : LegendEntry::Sign::line,
                      series.has_markers});
  }
  const Scale x(chart.x, xs, 10), y(chart.y, ys, 5);
  double widest = 0;
  for (const double mark : y.marks()) widest = std::max(widest, text_ems(y.label(mark)));

  Canvas canvas(chart.title, chart.description);
  const double label_y = draw_legend(canvas, 40, legend) + 4;
  canvas.text(0, label_y, Anchor::start, chart.y.label, "label");
  PlotArea area{widest * Canvas::kFont + 10, label_y + 14, Canvas::kWidth - 14, 0};
  area.bottom = area.top + kHeight;
  for (const double mark : y.marks()) {
    const double at = area.y(y, mark);
    canvas.line(area.left, at, area.right, at, "grid");
    canvas.text(area.left - 6, at + 4, Anchor::end, y.label(mark), "mark");
  }
  const double end = draw_x_axis(canvas, area, chart.x, x, false);
  for (const Series& series : chart.series) {
    canvas.path(path_of(series, area, x, y),
                fmt::format("data {}c{}", series.is_dashed ? "dashed " : "", series.color));
    if (!series.has_markers) continue;
    for (const auto& [at, value] : series.points) {
      if (std::isfinite(value)) canvas.marker(area.x(x, at), area.y(y, value), series.color);
    }
  }
  return canvas.finish(end);
}

}  // namespace ebb::report
