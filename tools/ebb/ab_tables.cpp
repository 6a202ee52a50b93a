// The tables and texts that the forms of a report share.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text.h"
#include "ebb_abi.h"
#include "tools/ebb/ab_report.h"
#include "tools/ebb/session.h"
#include "tools/ebb/swap_counters.h"
#include "tools/report/canvas.h"
#include "tools/report/scale.h"

namespace ebb::cli {
namespace {

constexpr std::size_t kContext = 12;  // tokens of text shown on each side of a difference

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "none" : printable(fmt::format("{}", fmt::join(words, " ")));
}

// Values of a speed or a time with four digits that matter.
std::string value_text(double value) {
  const int digits = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
  return report::grouped(value, digits);
}

// Text of a model on one line, as a programmer would write it.
std::string quoted_lines(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string("\\n") : std::string(1, c);
  return printable(out);
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void analyse(AbReport& report) {
  report.n_rounds = rounds_of(report.passes);
  report.measures = measures_of(report.passes);
  report.tokens = tokens_of(report.passes);
  for (std::size_t side = 0; side < 2; ++side) {
    report.latencies[side] = latencies_of(report.passes, side);
    report.counters[side] = counters_of(report.passes, side);
  }
  report.verdict = verdict_of(report.measures, report.n_rounds);
  report.warnings.clear();
  if (!report.complete) {
    report.warnings.push_back(fmt::format("Partial: interrupted after {} of {} rounds.",
                                          report.n_rounds, report.n_wanted));
  }
  for (const AbRefusal& refusal : report.refusals) {
    report.warnings.push_back(fmt::format("Prompt {} is left out: side {} cannot serve it: {}",
                                          printable(refusal.id, 60), refusal.side,
                                          printable(refusal.why)));
  }
  for (std::string& caution : cautions_of(report.measures, report.tokens, report.sides[0].jobs)) {
    report.warnings.push_back(std::move(caution));
  }
  if (report.sides[0].facts.model != report.sides[1].facts.model) {
    report.warnings.emplace_back("The sides run different models.");
  }
}

AbTable sides_table(const AbReport& report) {
  AbTable table{{{""}, {"A"}, {"B"}}, {}};
  const AbSide &a = report.sides[0], &b = report.sides[1];
  const auto row = [&](const char* name, const auto& text) {
    table.rows.push_back({name, text(a), text(b)});
  };
  row("manifest", [](const AbSide& s) { return printable(s.path); });
  row("overrides", [](const AbSide& s) { return joined(s.overrides); });
  row("its hash", [](const AbSide& s) { return s.manifest.hash(); });
  row("model", [](const AbSide& s) {
    return fmt::format("{}, digest {}", printable(s.facts.source), s.facts.model);
  });
  row("device", [](const AbSide& s) {
    return fmt::format("{}, {} products", s.facts.device, s.facts.precision);
  });
  row("swapping", [](const AbSide& s) {
    if (!s.facts.swaps) return std::string("off");
    return fmt::format("{}, {} slots per layer, {} layers",
                       s.facts.swap.mode == StagingMode::demand ? "demand" : "zero_copy",
                       s.facts.swap.n_slots, s.facts.swap.n_layers);
  });
  return table;
}

AbTable differences_table(const AbReport& report) {
  AbTable table{{{"key"}, {"A"}, {"B"}}, {}};
  for (const AbDifference& difference : report.differences) {
    table.rows.push_back({difference.key, difference.a.empty() ? "not set" : difference.a,
                          difference.b.empty() ? "not set" : difference.b});
  }
  return table;
}

AbTable ratios_table(const AbReport& report) {
  AbTable table{{{"measure"},
                 {"A", true},
                 {"B", true},
                 {"B / A", true},
                 {interval_name(report.measures.size()), true}},
                {}};
  for (const AbMeasure& measure : report.measures) {
    table.rows.push_back({fmt::format("{}, {}", measure.name, measure.unit),
                          value_text(measure.mean_a), value_text(measure.mean_b),
                          ratio_text(measure.ratio),
                          measure.ratio.interval ? interval_text(measure.ratio) : "none"});
  }
  return table;
}

AbTable latency_table(const AbReport& report) {
  AbTable table{{{"ms per token"}}, {}};
  constexpr std::pair<const char*, double> kQuantiles[] = {
      {"5 %", 0.05},  {"25 %", 0.25}, {"median", 0.5}, {"75 %", 0.75},
      {"95 %", 0.95}, {"99 %", 0.99}, {"most", 1}};
  for (const auto& [name, q] : kQuantiles) table.columns.push_back({name, true});
  for (std::size_t side = 0; side < 2; ++side) {
    if (report.latencies[side].empty()) continue;
    std::vector<std::string> row{report.sides[side].label};
    for (const auto& [name, q] : kQuantiles) {
      row.push_back(fmt::format("{:.3f}", 1e3 * sorted_quantile(report.latencies[side], q)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

AbTable counters_table(const AbReport& report) {
  AbTable table{{{"counter"}, {"A", true}, {"B", true}}, {}};
  if (!report.counters[0] && !report.counters[1]) return table;
  // A row of what `show` makes of a side's counters, if it has those that `of` points to.
  const auto add = [&](const char* name, auto of, const auto& show) {
    std::vector<std::string> row{name};
    bool is_any = false;
    for (const std::optional<AbCounters>& counters : report.counters) {
      const bool has = counters && (*counters.*of).has_value();
      row.push_back(has ? show(*(*counters.*of)) : "-");
      is_any |= has;
    }
    if (is_any) table.rows.push_back(std::move(row));
  };
  const auto number = [](const auto& field) {
    return
        [&field](const auto& c) { return report::grouped(static_cast<double>(c.*field.value), 0); };
  };
  for (const SwapField& field : kSwapFields) add(field.name, &AbCounters::swap, number(field));
  add("misses of distinct", &AbCounters::swap,
      [](const SwapCounters& c) { return fmt::format("{:.2f} %", 100 * miss_ratio(c.misses, c)); });
  for (const MemoryField& field : kMemoryFields) {
    add(field.name, &AbCounters::memory, number(field));
  }
  const auto same = [](const std::optional<AbCounters>& counters) {
    return std::string(!counters ? "-" : counters->same ? "yes" : "no");
  };
  table.rows.push_back(
      {"equal in all rounds (but times)", same(report.counters[0]), same(report.counters[1])});
  return table;
}

std::vector<AbMemory> memory_of(const AbSide& side) {
  const AbFacts& facts = side.facts;
  AbMemory device{"device", {}};
  std::uint64_t session = 0;
  for (const auto& [name, bytes] : facts.parts) session += bytes;
  if (facts.device_bytes > session) {
    device.parts.emplace_back("weights and plans", facts.device_bytes - session);
  }
  device.parts.insert(device.parts.end(), facts.parts.begin(), facts.parts.end());
  std::vector<AbMemory> memory{std::move(device)};
  if (facts.swaps) memory.push_back({"host", {{"chunk pool", facts.swap.pool_bytes}}});
  return memory;
}

AbTable memory_table(const AbReport& report) {
  AbTable table{{{"part"}, {"A", true}, {"B", true}}, {}};
  std::map<std::string, std::array<std::uint64_t, 2>> parts;
  std::vector<std::string> order;
  const auto add = [&](const std::string& name, std::size_t side, std::uint64_t bytes) {
    if (!parts.contains(name)) order.push_back(name);
    parts[name][side] += bytes;
  };
  for (std::size_t side = 0; side < 2; ++side) {
    for (const AbMemory& memory : memory_of(report.sides[side])) {
      for (const auto& [name, bytes] : memory.parts) add(memory.place + ": " + name, side, bytes);
    }
  }
  for (const std::string& name : order) {
    const auto text = [&](std::size_t side) {
      return parts[name][side] > 0 ? format_bytes(parts[name][side]) : std::string("-");
    };
    table.rows.push_back({name, text(0), text(1)});
  }
  const auto all = [&report](auto bytes) {
    std::vector<std::string> texts;
    for (const AbSide& side : report.sides) {
      const std::uint64_t n = bytes(side.facts);
      texts.push_back(n > 0 ? format_bytes(n) : "-");
    }
    return texts;
  };
  const auto planned = all([](const AbFacts& facts) { return facts.device_bytes; });
  const auto taken = all([](const AbFacts& facts) { return facts.device_taken; });
  table.rows.push_back({"device, all that is planned", planned[0], planned[1]});
  table.rows.push_back({"device, by the driver's count", taken[0], taken[1]});
  return table;
}

AbTable tokens_table(const AbReport& report) {
  AbTable table{{{"prompt"},
                 {"prompt tokens", true},
                 {"new, A", true},
                 {"new, B", true},
                 {"A = B"},
                 {"A repeats"},
                 {"B repeats"}},
                {}};
  const auto yes = [](bool is_so) { return std::string(is_so ? "yes" : "NO"); };
  for (const AbTokens& tokens : report.tokens) {
    const std::string id = printable(report.sides[0].jobs[tokens.prompt].id, 60);
    if (!tokens.error.empty() || tokens.a == nullptr || tokens.b == nullptr) {
      table.rows.push_back({id, "-", "-", "-", "failed", "-", "-"});
      continue;
    }
    table.rows.push_back(
        {id, fmt::format("{}", tokens.a->n_prompt), fmt::format("{}", tokens.a->tokens.size()),
         fmt::format("{}", tokens.b->tokens.size()),
         tokens.equal ? "yes" : fmt::format("NO, from token {}", tokens.first_difference),
         yes(tokens.a_repeats), yes(tokens.b_repeats)});
  }
  return table;
}

std::string tokens_summary(const AbReport& report) {
  std::size_t n_equal = 0, n_failed = 0;
  bool is_greedy = true;
  for (const AbTokens& tokens : report.tokens) {
    n_failed += !tokens.error.empty();
    n_equal += tokens.error.empty() && tokens.equal && tokens.a_repeats && tokens.b_repeats;
    for (const AbSide& side : report.sides) {
      is_greedy &= side.jobs[tokens.prompt].settings.sampling.temperature <= 0;
    }
  }
  std::string text =
      fmt::format("{} of {} prompts give the same tokens on both sides in every round", n_equal,
                  report.tokens.size());
  if (n_failed > 0) text += fmt::format("; {} failed", n_failed);
  return text + (is_greedy ? "." : ". Tokens were drawn at random, with the seeds of the prompts.");
}

std::vector<AbTokenDifference> token_differences(const AbReport& report) {
  std::vector<AbTokenDifference> all;
  for (const AbTokens& tokens : report.tokens) {
    if (!tokens.error.empty() || tokens.equal) continue;
    const AbSample &a = *tokens.a, &b = *tokens.b;
    const std::size_t at = tokens.first_difference;
    AbTokenDifference difference;
    difference.id = printable(report.sides[0].jobs[tokens.prompt].id, 60);
    difference.where =
        fmt::format("token {} (of {} on A, {} on B)", at, a.tokens.size(), b.tokens.size());
    difference.before = quoted_lines(text_between(a, at > kContext ? at - kContext : 0, at));
    const auto token = [at](const AbSample& sample) {
      return at < sample.tokens.size() ? fmt::format("{}", sample.tokens[at]) : std::string("end");
    };
    difference.token_a = token(a);
    difference.token_b = token(b);
    difference.text_a = quoted_lines(text_between(a, at, at + kContext));
    difference.text_b = quoted_lines(text_between(b, at, at + kContext));
    all.push_back(std::move(difference));
  }
  return all;
}

AbTable provenance_table(const AbReport& report) {
  AbTable table{{{""}, {""}}, {}};
  table.rows = {
      {"command", printable(report.command, 2000)},
      {"measured from", report.date},
      {"program", "ebb " EBB_VERSION},
      {"build of A, B", report.sides[0].facts.build + ", " + report.sides[1].facts.build},
      {"prompts", fmt::format("{}, {} compared", printable(report.input), report.tokens.size())},
      {"engines", report.both_open
                      ? "both open all the time, one at work"
                      : fmt::format("a new one for each turn, warmed up after opening{}",
                                    report.why_not_kept.empty()
                                        ? ""
                                        : "; both did not fit: " + printable(report.why_not_kept))},
  };
  std::string order;
  for (const AbPass& pass : report.passes) {
    if (pass.round > 0) order += pass.place == 0 && !order.empty() ? " " : "";
    if (pass.round > 0) order += pass.side == 0 ? 'A' : 'B';
  }
  table.rows.push_back({"order of rounds", order});
  return table;
}

std::string to_markdown(const AbTable& table) {
  std::vector<std::size_t> widths;
  for (const AbTable::Column& column : table.columns)
    widths.push_back(std::max<std::size_t>(3, column.name.size()));
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], std::min<std::size_t>(60, cell(row[i]).size()));
    }
  }
  std::string text = "|", rule = "|";
  const auto put = [&](std::string& line, std::size_t i, const std::string& value) {
    line += table.columns[i].is_number ? fmt::format(" {:>{}} |", value, widths[i])
                                       : fmt::format(" {:<{}} |", value, widths[i]);
  };
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    put(text, i, table.columns[i].name);
    rule += ' ' + std::string(widths[i] - 1, '-') + (table.columns[i].is_number ? ":" : "-") + " |";
  }
  text += '\n' + rule + '\n';
  for (const auto& row : table.rows) {
    std::string line = "|";
    for (std::size_t i = 0; i < row.size(); ++i) put(line, i, cell(row[i]));
    text += line + '\n';
  }
  return text;
}

std::string to_html(const AbTable& table) {
  std::string text = "<table>\n";
  const bool has_head = std::any_of(table.columns.begin(), table.columns.end(),
                                    [](const auto& column) { return !column.name.empty(); });
  if (has_head) {
    text += "<thead><tr>";
    for (const AbTable::Column& column : table.columns) {
      text += fmt::format("<th scope=\"col\"{}>{}</th>", column.is_number ? " class=\"n\"" : "",
                          report::escape(column.name));
    }
    text += "</tr></thead>\n";
  }
  text += "<tbody>\n";
  for (const auto& row : table.rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == 0) {
        text += fmt::format("<th scope=\"row\">{}</th>", report::escape(row[i]));
      } else {
        text += fmt::format("<td class=\"{}\">{}</td>", table.columns[i].is_number ? "n" : "text",
                            report::escape(row[i]));
      }
    }
    text += "</tr>\n";
  }
  return text + "</tbody>\n</table>\n";
}

}  // namespace ebb::cli
