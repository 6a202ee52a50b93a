#include "tools/report/page.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "report_templates.h"  // made by CMake from the .html and .css files of this folder
#include "tools/report/canvas.h"

namespace ebb::report {
namespace {

Error fault(std::string_view what, std::string_view name) {
  return Error{Errc::internal, fmt::format("page template: {} {}", what, name)};
}

// A page of its own: the head, with the `title` and the style, then what is the page's own.
Result<std::string> page(std::string_view text, Values values) {
  values["style"] = std::string(kStyleCss) + kPageCss;
  EBB_ASSIGN(values["head"], fill(kHeadHtml, values));
  return fill(text, values);
}

}  // namespace

Result<std::string> fill(std::string_view text, const Values& values) {
  std::string out;
  while (true) {
    const std::size_t open = text.find("{{");
    out += text.substr(0, open);
    if (open == text.npos) return out;
    const std::size_t close = text.find("}}", open);
    if (close == text.npos) return fault("no end of", text.substr(open, 20));
    std::string_view name = text.substr(open + 2, close - open - 2);
    text.remove_prefix(close + 2);
    const char kind = name.empty() ? ' ' : name.front();
    const bool is_section = kind == '#' || kind == '^';
    if (is_section || kind == '&') name.remove_prefix(1);
    const auto value = values.find(name);
    if (value == values.end()) return fault("no value of", name);
    if (!is_section) {
      out += kind == '&' ? value->second : escape(value->second);
      continue;
    }
    const std::string end = fmt::format("{{{{/{}}}}}", name);
    const std::size_t at = text.find(end);
    if (at == text.npos) return fault("no end of section", name);
    if (value->second.empty() == (kind == '^')) {
      EBB_ASSIGN(const std::string inside, fill(text.substr(0, at), values));
      out += inside;
    }
    text.remove_prefix(at + end.size());
  }
}

Result<std::string> ab_page(Values values) { return page(kAbHtml, std::move(values)); }

Result<std::string> plot_page(std::string_view title, std::string_view note,
                              const std::vector<std::string>& charts) {
  std::string figures;
  for (const std::string& chart : charts) figures += "<figure>\n" + chart + "</figure>\n";
  return page(kPlotHtml,
              {{"title", std::string(title)}, {"note", std::string(note)}, {"charts", figures}});
}

std::string plot_svg(const std::vector<std::string>& charts) {
  constexpr double kMargin = 16, kGap = 24;
  double y = kMargin;
  std::string body;
  for (const std::string& chart : charts) {
    // Each begins with its own <svg ... height="H">: moved to its place.
    constexpr std::string_view kHeight = " height=\"";
    const std::size_t at = chart.find(kHeight) + kHeight.size();
    const double height = std::strtod(chart.c_str() + at, nullptr);
    body += fmt::format("<svg x=\"{}\" y=\"{}\"{}", coordinate(kMargin), coordinate(y),
                        chart.substr(std::string_view("<svg").size()));
    y += height + kGap;
  }
  const double width = Canvas::kWidth + 2 * kMargin;
  const double height = y - kGap + kMargin;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" "
      "height=\"{}\">\n<style>{}</style>\n<rect class=\"paper\" width=\"100%\" "
      "height=\"100%\"/>\n{}</svg>\n",
      width, coordinate(height), width, coordinate(height), kStyleCss, body);
}

}  // namespace ebb::report
