#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/scale.h"

// Three kinds of charts, drawn as SVG that needs no script. They keep to a width of 720 units;
// colors, light and dark, come from style.css.

namespace ebb::report {

/// Color of a series: 1..kColors for what is compared, 0 for what it is compared with.
inline constexpr int kColors = 8;

struct Series {
  std::string name = {};
  std::vector<std::pair<double, double>> points = {};  ///< ascending by x; NaN leaves a gap
  int color = 1;
  bool is_dashed = false;
  bool has_markers = true;
};

/// Lines over a common x.
struct LineChart {
  std::string title;
  std::string description;  ///< what it shows, for who cannot see it
  Axis x, y;
  std::vector<Series> series;
};
std::string draw(const LineChart& chart);

/// One row of a RowChart. Everything is optional but the name.
struct ChartRow {
  struct Box {  ///< a distribution: whiskers, box and its middle
    double low, quarter, middle, three_quarters, high;
  };
  std::string name = {};
  int color = 1;
  std::optional<Box> box = {};
  std::vector<double> dots = {};              ///< single values, spread over the row's height
  std::optional<double> point = {};           ///< an estimate
  std::optional<double> low = {}, high = {};  ///< and its interval
  std::string note = {};                      ///< at the right end
};

/// Rows of distributions or of estimates over a common axis.
struct RowChart {
  std::string title, description;
  Axis x;
  std::vector<ChartRow> rows;
  std::optional<double> reference;  ///< a vertical line
};
std::string draw(const RowChart& chart);

/// Bars that are stacked from parts; equal names have equal colors. Beyond kColors names, the least
/// parts are drawn together as "other".
struct BarChart {
  struct Bar {
    std::string name;
    std::vector<std::pair<std::string, double>> parts;
    std::string note;  ///< at the right end
  };
  std::string title, description;
  Axis x;
  std::vector<Bar> bars;
};
std::string draw(const BarChart& chart);

}  // namespace ebb::report
