// Charts of rows: distributions, estimates with intervals, stacked bars.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/report/charts.h"
#include "tools/report/frame.h"

namespace ebb::report {
namespace {

constexpr double kTop = 30;     // below the title
constexpr double kRow = 40;     // height of a row
constexpr double kNames = 190;  // most that names may take

// Leaves room for names on the left and notes on the right.
PlotArea area_for(const std::vector<std::string>& names, const std::vector<std::string>& notes,
                  double top) {
  double left = 0, right = 0;
  for (const std::string& name : names) left = std::max(left, text_ems(name));
  for (const std::string& note : notes) right = std::max(right, text_ems(note));
  PlotArea area;
  area.left = std::min(kNames, left * Canvas::kFont) + 12;
  area.right = Canvas::kWidth - (right > 0 ? right * Canvas::kFont + 12 : 20);
  area.top = top;
  area.bottom = top + kRow * static_cast<double>(names.size());
  return area;
}

void draw_name(Canvas& canvas, const PlotArea& area, double middle, const std::string& name,
               const std::string& note) {
  canvas.text(area.left - 10, middle + 4, Anchor::end, fit(name, kNames / Canvas::kFont));
  if (!note.empty()) canvas.text(area.right + 10, middle + 4, Anchor::start, note);
}

void draw_box(Canvas& canvas, const PlotArea& area, const Scale& x, double middle,
              const ChartRow& row) {
  const ChartRow::Box& box = *row.box;
  const std::string color = fmt::format("c{}", row.color);
  const auto at = [&](double value) { return area.x(x, value); };
  canvas.line(at(box.low), middle, at(box.high), middle, "data " + color);
  for (const double end : {box.low, box.high}) {
    canvas.line(at(end), middle - 6, at(end), middle + 6, "data " + color);
  }
  canvas.rect(at(box.quarter), middle - 10, at(box.three_quarters) - at(box.quarter), 20,
              "box " + color);
  canvas.line(at(box.middle), middle - 10, at(box.middle), middle + 10, "heavy " + color);
}

}  // namespace

std::string draw(const RowChart& chart) {
  std::vector<double> xs;
  std::vector<std::string> names, notes;
  if (chart.reference) xs.push_back(*chart.reference);
  for (const ChartRow& row : chart.rows) {
    names.push_back(row.name);
    notes.push_back(row.note);
    if (row.box) xs.insert(xs.end(), {row.box->low, row.box->high});
    xs.insert(xs.end(), row.dots.begin(), row.dots.end());
    for (const auto& value : {row.point, row.low, row.high}) {
      if (value) xs.push_back(*value);
    }
  }
  const Scale x(chart.x, xs);
  Canvas canvas(chart.title, chart.description);
  const PlotArea area = area_for(names, notes, kTop);
  const double end = draw_x_axis(canvas, area, chart.x, x, true);
  if (chart.reference) {
    const double at = area.x(x, *chart.reference);
    canvas.line(at, area.top, at, area.bottom, "reference");
  }
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const ChartRow& row = chart.rows[i];
    const double middle = area.top + kRow * (static_cast<double>(i) + 0.5);
    const std::string color = fmt::format("c{}", row.color);
    draw_name(canvas, area, middle, row.name, row.note);
    for (std::size_t k = 0; k < row.dots.size(); ++k) {
      // Seven lanes, taken in an order in which neighbours lie apart.
      const double lane = static_cast<double>(k * 3 % 7) - 3;
      canvas.dot(area.x(x, row.dots[k]), middle + lane * 4.5, "dot " + color);
    }
    if (row.box) draw_box(canvas, area, x, middle, row);
    if (row.low && row.high) {
      canvas.line(area.x(x, *row.low), middle, area.x(x, *row.high), middle, "heavy " + color);
      for (const double bar : {*row.low, *row.high}) {
        canvas.line(area.x(x, bar), middle - 6, area.x(x, bar), middle + 6, "data " + color);
      }
    }
    if (row.point) canvas.marker(area.x(x, *row.point), middle, row.color);
  }
  return canvas.finish(end);
}

std::string draw(const BarChart& chart) {
  // Colors by first use, the last of them for what is left when there are too many names.
  std::map<std::string, double> sums;
  std::vector<std::string> order;
  for (const BarChart::Bar& bar : chart.bars) {
    for (const auto& [name, value] : bar.parts) {
      if (!sums.contains(name)) order.push_back(name);
      sums[name] += value;
    }
  }
  std::vector<std::string> drawn = order;
  if (order.size() > kColors) {
    std::stable_sort(drawn.begin(), drawn.end(),
                     [&](const std::string& a, const std::string& b) { return sums[a] > sums[b]; });
    drawn.resize(kColors - 1);
    std::erase_if(order, [&](const std::string& name) {
      return std::find(drawn.begin(), drawn.end(), name) == drawn.end();
    });
    order.push_back("other");
  }
  const auto color_of = [&order](const std::string& name) {
    const auto found = std::find(order.begin(), order.end(), name);
    return static_cast<int>(std::min<std::ptrdiff_t>(found - order.begin() + 1,
                                                     static_cast<std::ptrdiff_t>(order.size())));
  };
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < order.size(); ++i) {
    legend.push_back({order[i], static_cast<int>(i + 1), LegendEntry::Sign::box});
  }
  std::vector<double> totals{0};
  std::vector<std::string> names, notes;
  for (const BarChart::Bar& bar : chart.bars) {
    names.push_back(bar.name);
    notes.push_back(bar.note);
    double sum = 0;
    for (const auto& [name, value] : bar.parts) sum += value;
    totals.push_back(sum);
  }
  const Scale x(chart.x, totals);
  Canvas canvas(chart.title, chart.description);
  const PlotArea area = area_for(names, notes, draw_legend(canvas, 40, legend));
  const double end = draw_x_axis(canvas, area, chart.x, x, true);
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const BarChart::Bar& bar = chart.bars[i];
    const double middle = area.top + kRow * (static_cast<double>(i) + 0.5);
    draw_name(canvas, area, middle, bar.name, bar.note);
    std::vector<double> by_color(order.size() + 1);
    for (const auto& [name, value] : bar.parts) {
      by_color[static_cast<std::size_t>(color_of(name))] += value;
    }
    double from = 0;
    for (std::size_t color = 1; color < by_color.size(); ++color) {
      if (by_color[color] <= 0) continue;
      const double to = from + by_color[color];
      canvas.rect(area.x(x, from), middle - 12, area.x(x, to) - area.x(x, from), 24,
                  fmt::format("part c{}", color));
      from = to;
    }
  }
  return canvas.finish(end);
}

}  // namespace ebb::report
