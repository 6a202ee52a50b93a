// The page, and its brother in Markdown.

#include <fmt/format.h>

#include <filesystem>

#include "core/text.h"
#include "tools/ebb/ab_report.h"
#include "tools/report/canvas.h"
#include "tools/report/page.h"

namespace ebb::cli {
namespace {

std::string title_of(const AbReport& report) {
  const AbSide &a = report.sides[0], &b = report.sides[1];
  if (report.differences.empty()) {
    return printable(std::filesystem::path(a.path).stem().string()) + " against itself";
  }
  const auto plain = [](const AbSide& side) {
    return side.label.size() > 3 ? side.label.substr(3) : side.label;
  };
  return printable(fmt::format("{} against {}", plain(a), plain(b)));
}

std::string subtitle_of(const AbReport& report) {
  return fmt::format("{} prompts, {} round{}, {}, {}", report.tokens.size(), report.n_rounds,
                     report.n_rounds == 1 ? "" : "s", report.sides[0].facts.device, report.date);
}

// Why there are no charts of swapping, or what they leave out.
std::string note_on_swapping(const AbReport& report) {
  if (!report.trace_note.empty()) return report.trace_note;
  if (report.traces[0] && report.traces[1]) return "";
  if (!report.traces[0] && !report.traces[1]) {
    return "Neither side swaps: every chunk row stays in compute memory.";
  }
  return fmt::format("Side {} does not swap: every chunk row stays in compute memory.",
                     report.traces[0] ? 'B' : 'A');
}

std::string items(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) {
    text += fmt::format("<li>{}</li>\n", report::escape(sentence));
  }
  return text;
}

std::string differences_html(const AbReport& report) {
  std::string text;
  for (const AbTokenDifference& difference : token_differences(report)) {
    text += fmt::format(
        "<h3>{}: first difference at {}</h3>\n<pre>... {}\nA  {:>8}  <del>{}</del>\nB  {:>8}  "
        "<ins>{}</ins></pre>\n",
        report::escape(difference.id), report::escape(difference.where),
        report::escape(difference.before), difference.token_a, report::escape(difference.text_a),
        difference.token_b, report::escape(difference.text_b));
  }
  return text;
}

std::string differences_markdown(const AbReport& report) {
  std::string text;
  for (const AbTokenDifference& difference : token_differences(report)) {
    text += fmt::format(
        "\n{}: first difference at {}\n\n    ... {}\n    A  {:>8}  {}\n    B  {:>8}  {}\n",
        difference.id, difference.where, difference.before, difference.token_a, difference.text_a,
        difference.token_b, difference.text_b);
  }
  return text;
}

std::string bullets(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += "- " + sentence + '\n';
  return text;
}

}  // namespace

Result<std::string> ab_html(const AbReport& report) {
  const AbTable counters = counters_table(report);
  const std::string hits = hits_chart(report), curve = curve_chart(report);
  const std::string note = note_on_swapping(report);
  const bool has_swapping = !hits.empty() || !curve.empty() || !counters.rows.empty();
  report::Values values{
      {"title", title_of(report)},
      {"subtitle", subtitle_of(report)},
      {"warnings", items(report.warnings)},
      {"verdict", items(report.verdict)},
      {"sides", to_html(sides_table(report))},
      {"differences", report.differences.empty() ? "" : to_html(differences_table(report))},
      {"ratios", to_html(ratios_table(report))},
      {"chart_ratios", report.n_rounds > 1 ? ratios_chart(report) : ""},
      {"chart_decode", rounds_chart(report, "decode")},
      {"chart_prefill", rounds_chart(report, "prefill")},
      {"drift", drift_text(report.measures)},
      {"chart_latency", latency_chart(report)},
      {"latency", to_html(latency_table(report))},
      {"swapping", has_swapping ? "yes" : ""},
      {"chart_hits", hits},
      {"chart_curve", curve},
      {"counters", counters.rows.empty() ? "" : to_html(counters)},
      {"note_swapping", note},
      {"chart_memory", memory_chart(report)},
      {"memory", to_html(memory_table(report))},
      {"tokens_summary", tokens_summary(report)},
      {"tokens", to_html(tokens_table(report))},
      {"token_differences", differences_html(report)},
      {"provenance", to_html(provenance_table(report))},
  };
  return report::ab_page(std::move(values));
}

std::string ab_summary(const AbReport& report) {
  std::string text = fmt::format("{}\n{}\n\n", title_of(report), subtitle_of(report));
  if (!report.warnings.empty()) text += bullets(report.warnings) + '\n';
  text += bullets(report.verdict) + '\n';
  return text + to_markdown(ratios_table(report)) + '\n' + tokens_summary(report) + '\n';
}

std::string ab_markdown(const AbReport& report) {
  std::string text = fmt::format("# {}\n\n{}\n", title_of(report), subtitle_of(report));
  const auto section = [&text](const char* name, const std::string& body) {
    if (!body.empty()) text += fmt::format("\n## {}\n\n{}", name, body);
  };
  section("Warnings", bullets(report.warnings));
  section("Verdict", bullets(report.verdict));
  section("What was compared", to_markdown(sides_table(report)));
  section("Where the manifests differ", report.differences.empty()
                                            ? "Nowhere: a comparison of A with itself.\n"
                                            : to_markdown(differences_table(report)));
  section("Speed", to_markdown(ratios_table(report)));
  const std::string drift = drift_text(report.measures);
  if (!drift.empty()) text += '\n' + drift + '\n';
  if (!report.latencies[0].empty() || !report.latencies[1].empty()) {
    section("Latency", to_markdown(latency_table(report)));
  }
  const AbTable counters = counters_table(report);
  const std::string note = note_on_swapping(report);
  section("Swapping", (counters.rows.empty() ? "" : to_markdown(counters)) +
                          (note.empty() ? "" : '\n' + note + '\n'));
  for (std::size_t side = 0; side < 2; ++side) {
    if (!report.traces[side]) continue;
    AbTable table{{{"slots per layer", true}, {"misses", true}, {"share", true}, {"bound", true}},
                  {}};
    for (const ReplayRow& row : report.traces[side]->curve) {
      table.rows.push_back(
          {fmt::format("{}", row.slots), fmt::format("{}", row.counters.misses),
           fmt::format("{:.2f} %", 100 * miss_ratio(row.counters.misses, row.counters)),
           fmt::format("{}", *row.bound)});
    }
    text += fmt::format("\nReplayed, {}:\n\n{}", report.sides[side].label, to_markdown(table));
  }
  section("Memory", to_markdown(memory_table(report)));
  section("Tokens", tokens_summary(report) + "\n\n" + to_markdown(tokens_table(report)) +
                        differences_markdown(report));
  section("Provenance", to_markdown(provenance_table(report)));
  return text;
}

}  // namespace ebb::cli
