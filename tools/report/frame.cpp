#include "tools/report/frame.h"

#include <fmt/format.h>

namespace ebb::report {
namespace {

constexpr double kRow = 18;  // height of a row of text

}  // namespace

double draw_legend(Canvas& canvas, double y, const std::vector<LegendEntry>& entries) {
  constexpr double kSign = 22, kGap = 18;
  if (entries.empty()) return y;
  double x = 0;
  for (const LegendEntry& entry : entries) {
    const std::string name = fit(entry.name, (Canvas::kWidth - kSign - 6) / Canvas::kFont);
    const double width = kSign + 6 + text_ems(name) * Canvas::kFont;
    if (x > 0 && x + width > Canvas::kWidth) {
      x = 0;
      y += kRow;
    }
    const std::string color = fmt::format("c{}", entry.color);
    if (entry.sign == LegendEntry::Sign::box) {
      canvas.rect(x + 5, y - 10, 12, 12, "fill " + color);
    } else {
      const bool is_dashed = entry.sign == LegendEntry::Sign::dashed;
      canvas.line(x, y - 4, x + kSign, y - 4, (is_dashed ? "data dashed " : "data ") + color);
      if (entry.has_marker) canvas.marker(x + kSign / 2, y - 4, entry.color);
    }
    canvas.text(x + kSign + 6, y, Anchor::start, name);
    x += width + kGap;
  }
  return y + kRow;
}

double draw_x_axis(Canvas& canvas, const PlotArea& area, const Axis& axis, const Scale& scale,
                   bool has_grid) {
  double free_from = -1e9;
  for (const double mark : scale.marks()) {
    const double x = area.x(scale, mark);
    if (x < area.left - 0.5 || x > area.right + 0.5) continue;
    if (has_grid) canvas.line(x, area.top, x, area.bottom, "grid");
    canvas.line(x, area.bottom, x, area.bottom + 4, "axis");
    const std::string label = scale.label(mark);
    const double half = text_ems(label) * Canvas::kFont / 2;
    if (x - half < free_from || x + half > Canvas::kWidth) continue;
    canvas.text(x, area.bottom + 17, Anchor::middle, label, "mark");
    free_from = x + half + 8;
  }
  canvas.line(area.left, area.bottom, area.right, area.bottom, "axis");
  if (axis.label.empty()) return area.bottom + 24;
  canvas.text((area.left + area.right) / 2, area.bottom + 35, Anchor::middle, axis.label, "label");
  return area.bottom + 42;
}

}  // namespace ebb::report
