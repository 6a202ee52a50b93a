#include "tools/report/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ebb::report {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

double text_ems(std::string_view text) {
  double ems = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80) continue;  // goes on with a character
    // As in DejaVu Sans, one of the widest that a page may be shown in.
    if (byte >= 0xe3 || std::string_view("mwMW%@").find(c) != std::string_view::npos) {
      ems += 1;
    } else if (std::string_view(" .,:;iljI'|/()").find(c) != std::string_view::npos) {
      ems += 0.4;
    } else {
      ems += c >= 'A' && c <= 'Z' ? 0.72 : 0.64;
    }
  }
  return ems;
}

std::string fit(std::string_view text, double ems) {
  if (text_ems(text) <= ems) return std::string(text);
  std::size_t n = text.size();
  while (n > 0 && text_ems(text.substr(0, n)) + 1 > ems) {
    do --n;
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80);
  }
  return std::string(text.substr(0, n)) + "\u2026";
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

Canvas::Canvas(std::string_view title, std::string_view description)
    : title_(title), description_(description) {
  text(0, 16, Anchor::start, title, "title");
}

void Canvas::line(double x1, double y1, double x2, double y2, std::string_view classes) {
  body_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", classes,
                       coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2));
}

void Canvas::rect(double x, double y, double width, double height, std::string_view classes) {
  body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
                       classes, coordinate(x), coordinate(y), coordinate(std::max(0.0, width)),
                       coordinate(std::max(0.0, height)));
}

void Canvas::path(std::string_view d, std::string_view classes) {
  body_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", classes, d);
}

void Canvas::text(double x, double y, Anchor anchor, std::string_view text,
                  std::string_view classes) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  body_ += fmt::format("<text{} x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                       classes.empty() ? "" : fmt::format(" class=\"{}\"", classes), coordinate(x),
                       coordinate(y), kAnchors[static_cast<int>(anchor)], escape(text));
}

void Canvas::marker(double x, double y, int color) {
  const std::string at = coordinate(x) + ' ' + coordinate(y);
  std::string d;
  switch ((color - 1) % 4) {
    case 0:  // circle
      d = fmt::format("M{} m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", at);
      break;
    case 1:  // square
      d = fmt::format("M{} m-3.2 -3.2h6.4v6.4h-6.4z", at);
      break;
    case 2:  // triangle
      d = fmt::format("M{} m0 -4.2l4 7h-8z", at);
      break;
    default:  // diamond
      d = fmt::format("M{} m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z", at);
  }
  path(d, fmt::format("fill c{}", color));
}

void Canvas::dot(double x, double y, std::string_view classes) {
  body_ += fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"1.6\"/>\n", classes,
                       coordinate(x), coordinate(y));
}

std::string Canvas::finish(double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {} {}\" "
      "width=\"{}\" height=\"{}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n{}</svg>\n",
      kWidth, coordinate(height), kWidth, coordinate(height), escape(title_), escape(description_),
      std::exchange(body_, {}));
}

}  // namespace ebb::report
