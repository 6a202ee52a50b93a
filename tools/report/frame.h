#pragma once

#include <string>
#include <vector>

#include "tools/report/canvas.h"
#include "tools/report/scale.h"

namespace ebb::report {

/// One entry of a legend.
struct LegendEntry {
  enum class Sign { line, dashed, box };
  std::string name;
  int color = 1;
  Sign sign = Sign::line;
  bool has_marker = false;
};

/// Draws entries in as many rows as they need, the first at `y`; returns where the next row would
/// be.
double draw_legend(Canvas& canvas, double y, const std::vector<LegendEntry>& entries);

/// The rectangle that data is drawn in.
struct PlotArea {
  double left = 0, top = 0, right = 0, bottom = 0;
  double x(const Scale& scale, double value) const {
    return left + (right - left) * scale.place(value);
  }
  double y(const Scale& scale, double value) const {
    return bottom - (bottom - top) * scale.place(value);
  }
};

/// Grid lines, marks and label below the area; marks that would touch are left out. Returns where
/// the picture may end.
double draw_x_axis(Canvas& canvas, const PlotArea& area, const Axis& axis, const Scale& scale,
                   bool has_grid);

}  // namespace ebb::report
