#pragma once

#include <string>
#include <string_view>

namespace ebb::report {

/// `text` as content or quoted attribute of HTML and SVG. Control characters, which neither may
/// hold, become spaces.
std::string escape(std::string_view text);

/// Width of `text` in ems, in the sans-serif fonts that pages use; rather too wide than too narrow,
/// since nobody can measure it here. Counts characters, not bytes.
double text_ems(std::string_view text);

/// `text`, cut at its end with an ellipsis if it is wider than `ems`.
std::string fit(std::string_view text, double ems);

enum class Anchor { start, middle, end };

/// One SVG picture under construction. Coordinates are user units, the origin at the top left; at
/// full size a unit is a CSS pixel. What things look like is said by classes of style.css.
class Canvas {
 public:
  static constexpr double kWidth = 720;
  static constexpr double kFont = 12;  ///< size of text, but for the title

  /// `title` is drawn; both are read out to who cannot see the picture.
  Canvas(std::string_view title, std::string_view description);

  void line(double x1, double y1, double x2, double y2, std::string_view classes);
  void rect(double x, double y, double width, double height, std::string_view classes);
  void path(std::string_view d, std::string_view classes);
  void text(double x, double y, Anchor anchor, std::string_view text,
            std::string_view classes = {});
  /// A point of the series with this color: each color has a shape of its own, for who prints in
  /// grey.
  void marker(double x, double y, int color);
  /// A dot without a shape.
  void dot(double x, double y, std::string_view classes);

  /// The picture, `height` units high. The canvas is empty then.
  std::string finish(double height);

 private:
  std::string title_, description_, body_;
};

/// "12.5", "12" for 12.0: a coordinate or a length.
std::string coordinate(double value);

}  // namespace ebb::report
