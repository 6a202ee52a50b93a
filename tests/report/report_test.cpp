#define BOOST_TEST_MODULE report
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <sstream>

#include "tools/report/canvas.h"
#include "tools/report/charts.h"
#include "tools/report/page.h"
#include "tools/report/scale.h"

using namespace ebb;
using namespace ebb::report;
using boost::property_tree::ptree;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> labels(const Axis& axis, const std::vector<double>& values,
                                std::size_t n_marks = 6) {
  const Scale scale(axis, values, n_marks);
  std::vector<std::string> labels;
  for (const double mark : scale.marks()) labels.push_back(scale.label(mark));
  return labels;
}

void check_labels(const std::vector<std::string>& found, const std::vector<std::string>& want) {
  BOOST_TEST(found == want, boost::test_tools::per_element());
}

// The picture as an independent parser sees it: throws unless it is well-formed.
ptree parse(const std::string& svg) {
  std::istringstream text(svg);
  ptree tree;
  boost::property_tree::read_xml(text, tree);
  return tree.get_child("svg");
}

std::vector<ptree> all(const ptree& tree, const std::string& name, const std::string& has = "") {
  std::vector<ptree> found;
  for (const auto& [key, child] : tree) {
    const std::string classes = ' ' + child.get<std::string>("<xmlattr>.class", "") + ' ';
    if (key == name && (has.empty() || classes.find(' ' + has + ' ') != classes.npos)) {
      found.push_back(child);
    }
  }
  return found;
}

std::vector<std::string> texts(const ptree& tree) {
  std::vector<std::string> found;
  for (const ptree& text : all(tree, "text")) found.push_back(text.data());
  return found;
}

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

double number(const ptree& tree, const char* attribute) {
  return tree.get<double>(std::string("<xmlattr>.") + attribute);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(scale)

BOOST_AUTO_TEST_CASE(marks_are_round_and_cover_the_values) {
  check_labels(labels({}, {0.3, 9.7}), {"0", "2", "4", "6", "8", "10"});
  check_labels(labels({}, {812, 847}), {"810", "820", "830", "840", "850"});
  check_labels(labels({}, {0.962, 1.013}),
               {"0.96", "0.97", "0.98", "0.99", "1.00", "1.01", "1.02"});
  check_labels(labels({.from_zero = true}, {812, 1240}), {"0", "500", "1,000", "1,500"});
  check_labels(labels({.unit = Unit::percent}, {0.1, 0.42}, 5),
               {"10 %", "20 %", "30 %", "40 %", "50 %"});
}

BOOST_AUTO_TEST_CASE(counts_are_marked_by_whole_numbers_from_the_first_to_the_last) {
  check_labels(labels({.is_whole = true}, {1, 3}), {"1", "2", "3"});
  const std::vector<double> ends{1, 3};
  const Scale scale({.is_whole = true}, ends);
  BOOST_TEST(scale.place(1) == 0);
  BOOST_TEST(scale.place(3) == 1);
}

BOOST_AUTO_TEST_CASE(logarithmic_axes_are_marked_by_powers_of_two) {
  check_labels(labels({.unit = Unit::tokens, .is_log = true}, {512, 3000, 65536}),
               {"512", "1K", "2K", "4K", "8K", "16K", "32K", "64K"});
  const std::vector<double> ends{64, 1024};
  const Scale scale({.is_log = true}, ends);
  BOOST_TEST(scale.place(256) == 0.5);
  // Less than two octaves are drawn evenly.
  check_labels(labels({.is_log = true}, {100, 300}), {"100", "150", "200", "250", "300"});
}

BOOST_AUTO_TEST_CASE(one_value_none_and_values_that_are_no_numbers_have_an_axis) {
  const std::vector<double> one{5}, odd{kNan, 2, std::numeric_limits<double>::infinity(), 4};
  BOOST_TEST(Scale({}, one).place(5) == 0.5, boost::test_tools::tolerance(1e-9));
  const Scale none({}, {});
  BOOST_TEST(none.low() == 0);
  BOOST_TEST(none.high() == 1);
  BOOST_TEST(Scale({}, odd).low() == 2);
  BOOST_TEST(Scale({}, odd).high() == 4);
  const std::vector<double> zero{0};
  BOOST_TEST(Scale({.from_zero = true}, zero).high() > 0);
}

BOOST_AUTO_TEST_CASE(numbers_have_groups) {
  BOOST_TEST(grouped(1234567.5, 1) == "1,234,567.5");
  BOOST_TEST(grouped(999, 0) == "999");
  BOOST_TEST(grouped(-1234, 0) == "-1,234");
  BOOST_TEST(grouped(-0.001, 2) == "0.00");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(charts)

BOOST_AUTO_TEST_CASE(text_from_outside_cannot_become_markup) {
  BOOST_TEST(escape("<b a=\"1\">&\x01") == "&lt;b a=&quot;1&quot;&gt;&amp; ");
  LineChart chart;
  chart.title = "</title><script>";
  chart.series = {{.name = "a < b & \"c\"", .points = {{0, 1}, {1, 2}}}};
  const ptree svg = parse(draw(chart));
  BOOST_TEST(svg.get<std::string>("title") == "</title><script>");
  BOOST_TEST(has(texts(svg), "a < b & \"c\""));
}

BOOST_AUTO_TEST_CASE(long_names_are_cut_between_characters) {
  BOOST_TEST(fit("short", 10) == "short");
  const std::string cut = fit("\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4", 3);
  BOOST_TEST(cut.ends_with("\u2026"));
  BOOST_TEST(text_ems(cut) <= 3.1);
  BOOST_TEST(cut.size() % 2 == 1);  // whole two-byte characters, and three bytes of the ellipsis
}

BOOST_AUTO_TEST_CASE(a_line_goes_through_its_points_and_leaves_gaps) {
  LineChart chart;
  chart.title = "t";
  chart.x = {.label = "x"};
  chart.y = {.label = "y", .from_zero = true};
  chart.series = {{.name = "one", .points = {{0, 0}, {1, 10}, {2, kNan}, {3, 5}}},
                  {.name = "two", .points = {{0, 10}, {3, 10}}, .color = 2, .is_dashed = true}};
  const ptree svg = parse(draw(chart));
  const std::vector<ptree> lines = all(svg, "path", "data");
  BOOST_REQUIRE(lines.size() == 2u);
  const auto d = lines[0].get<std::string>("<xmlattr>.d");
  BOOST_TEST(std::count(d.begin(), d.end(), 'M') == 2);  // it begins again behind the gap
  BOOST_TEST(std::count(d.begin(), d.end(), 'L') == 1);
  // Its start is the plot's lower left corner: where the axis begins.
  const std::vector<ptree> axes = all(svg, "line", "axis");
  const ptree& axis = axes.back();
  const std::string corner = coordinate(number(axis, "x1")) + ' ' + coordinate(number(axis, "y1"));
  BOOST_TEST(d.starts_with('M' + corner), d << " does not start at " << corner);
  BOOST_TEST(all(svg, "path", "dashed").size() == 1u);
  // Three markers of points and one in the legend, for each series as many as it has values.
  BOOST_TEST(all(svg, "path", "c1").size() == 1u + 3 + 1);
  BOOST_TEST(all(svg, "path", "c2").size() == 1u + 2 + 1);
  for (const char* text : {"t", "x", "y", "one", "two", "0", "10"}) {
    BOOST_TEST(has(texts(svg), text), text);
  }
}

BOOST_AUTO_TEST_CASE(a_chart_of_nothing_is_still_one) {
  BOOST_CHECK_NO_THROW(parse(draw(LineChart{})));
  BOOST_CHECK_NO_THROW(parse(draw(RowChart{})));
  BOOST_CHECK_NO_THROW(parse(draw(BarChart{})));
}

BOOST_AUTO_TEST_CASE(boxes_and_intervals_lie_where_their_values_are) {
  RowChart chart;
  chart.x = {.label = "ms"};
  chart.reference = 2;
  ChartRow box{.name = "box", .dots = {1, 2, 3}};
  box.box = ChartRow::Box{1, 1.5, 2, 2.5, 3};
  ChartRow estimate{.name = "estimate", .color = 2, .note = "2.0 (1.0 to 3.0)"};
  estimate.point = 2;
  estimate.low = 1;
  estimate.high = 3;
  chart.rows = {box, estimate};
  const ptree svg = parse(draw(chart));
  const ptree reference = all(svg, "line", "reference").at(0);
  const ptree rect = all(svg, "rect", "box").at(0);
  BOOST_TEST(number(reference, "x1") == number(rect, "x") + number(rect, "width") / 2,
             boost::test_tools::tolerance(1e-3));
  const std::vector<ptree> dots = all(svg, "circle", "dot");
  BOOST_REQUIRE(dots.size() == 3u);
  BOOST_TEST(number(dots[1], "cx") == number(reference, "x1"), boost::test_tools::tolerance(1e-3));
  bool is_found = false;
  for (const ptree& line : all(svg, "line", "heavy")) {
    is_found |=
        number(line, "x1") == number(dots[0], "cx") && number(line, "x2") == number(dots[2], "cx");
  }
  BOOST_TEST(is_found, "the interval from 1 to 3");
}

BOOST_AUTO_TEST_CASE(parts_of_a_bar_follow_each_other_and_keep_their_colors) {
  BarChart chart;
  chart.x = {.label = "MiB", .from_zero = true};
  chart.bars = {{"A", {{"weights", 6}, {"slots", 2}}, "8"}, {"B", {{"slots", 4}}, "4"}};
  const ptree svg = parse(draw(chart));
  const std::vector<ptree> parts = all(svg, "rect", "part");
  BOOST_REQUIRE(parts.size() == 3u);
  BOOST_TEST(number(parts[0], "width") == 3 * number(parts[1], "width"),
             boost::test_tools::tolerance(2e-3));
  BOOST_TEST(number(parts[0], "x") + number(parts[0], "width") == number(parts[1], "x"),
             boost::test_tools::tolerance(1e-3));
  BOOST_TEST(parts[1].get<std::string>("<xmlattr>.class") == "part c2");
  BOOST_TEST(parts[2].get<std::string>("<xmlattr>.class") == "part c2");
}

BOOST_AUTO_TEST_CASE(too_many_parts_have_a_common_one_for_the_least) {
  BarChart chart;
  chart.bars = {{"A", {}, ""}};
  for (int i = 1; i <= 12; ++i) chart.bars[0].parts.emplace_back("part " + std::to_string(i), i);
  const ptree svg = parse(draw(chart));
  const std::vector<ptree> parts = all(svg, "rect", "part");
  BOOST_REQUIRE(parts.size() == static_cast<std::size_t>(kColors));
  // 1 to 5 together are 15; the largest by itself is 12.
  BOOST_TEST(number(parts.back(), "width") / number(parts[6], "width") == 15.0 / 12,
             boost::test_tools::tolerance(0.02));
  BOOST_TEST(has(texts(svg), "other"));
  BOOST_TEST(!has(texts(svg), "part 5"));
  BOOST_TEST(has(texts(svg), "part 6"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(page)

BOOST_AUTO_TEST_CASE(templates_are_filled) {
  const Values values{{"name", "a<b"}, {"some", "x"}, {"none", ""}};
  const auto filled = [&](const char* text) {
    const Result<std::string> out = fill(text, values);
    return out ? *out : "error: " + out.error().message;
  };
  BOOST_TEST(filled("1 {{name}} 2") == "1 a&lt;b 2");
  BOOST_TEST(filled("{{&name}}") == "a<b");
  BOOST_TEST(filled("{{#some}}[{{name}}]{{/some}}{{#none}}no{{/none}}") == "[a&lt;b]");
  BOOST_TEST(filled("{{^some}}no{{/some}}{{^none}}yes{{/none}}") == "yes");
  BOOST_TEST(filled("{{#some}}{{#none}}no{{/none}}{{^none}}in{{/none}}{{/some}}") == "in");
  BOOST_TEST(filled("{{other}}").starts_with("error: page template: no value of other"));
  BOOST_TEST(filled("{{#some}}").starts_with("error: "));
  BOOST_TEST(filled("{{name").starts_with("error: "));
}

BOOST_AUTO_TEST_CASE(a_page_of_charts_needs_nothing_from_outside) {
  LineChart chart;
  chart.title = "speed";
  chart.series = {{.name = "a", .points = {{1, 2}, {2, 3}}}};
  const Result<std::string> page = plot_page("a & b", "note", {draw(chart), draw(chart)});
  BOOST_REQUIRE(page);
  BOOST_TEST(page->find("<title>a &amp; b</title>") != page->npos);
  BOOST_TEST(page->find("<script") == page->npos);
  BOOST_TEST(page->find("href") == page->npos);
  BOOST_TEST(page->find("@import") == page->npos);
  BOOST_TEST(page->find("url(") == page->npos);
}

BOOST_AUTO_TEST_CASE(charts_in_one_picture_stand_below_each_other) {
  LineChart chart;
  chart.series = {{.name = "a", .points = {{1, 2}, {2, 3}}}};
  const ptree svg = parse(plot_svg({draw(chart), draw(chart)}));
  const std::vector<ptree> inner = all(svg, "svg");
  BOOST_REQUIRE(inner.size() == 2u);
  BOOST_TEST(number(inner[1], "y") >= number(inner[0], "y") + number(inner[0], "height"));
  BOOST_TEST(number(svg, "height") >= number(inner[1], "y") + number(inner[1], "height"));
  BOOST_TEST(svg.get<std::string>("style").find("prefers-color-scheme: dark") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
