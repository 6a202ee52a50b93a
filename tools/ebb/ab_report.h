#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/ebb/ab_analysis.h"
#include "tools/ebb/ab_passes.h"
#include "tools/ebb/ab_sides.h"
#include "tools/ebb/ab_traces.h"

namespace ebb::cli {

/// All that an experiment gave. The three forms of the report are made of it.
struct AbReport {
  explicit AbReport(AbSides both) : sides(std::move(both)) {}

  std::string date;     ///< when the measuring began
  std::string command;  ///< as a shell would take it
  std::string input;
  bool complete = true;  ///< all rounds that were asked for
  std::int32_t n_wanted = 0;
  bool both_open = true;
  std::string why_not_kept;  ///< why they did not stay open though they were to; else empty
  AbSides sides;
  std::vector<AbRefusal> refusals;
  std::vector<AbDifference> differences;
  std::vector<AbPass> passes;  ///< in order of time, the one before the timed rounds included
  std::array<std::optional<AbTrace>, 2> traces;
  std::string trace_note;  ///< why there is no trace of a side that swaps

  // Made of these by analyse().
  std::int32_t n_rounds = 0;
  std::vector<AbMeasure> measures;
  std::vector<AbTokens> tokens;  ///< points into passes
  std::array<std::vector<double>, 2> latencies;
  std::array<std::optional<AbCounters>, 2> counters;
  std::vector<std::string> verdict, warnings;
};

void analyse(AbReport& report);

/// A table in rows of text; columns of numbers stand to the right.
struct AbTable {
  struct Column {
    std::string name;
    bool is_number = false;
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;
};
AbTable sides_table(const AbReport& report);
AbTable differences_table(const AbReport& report);
AbTable ratios_table(const AbReport& report);
AbTable latency_table(const AbReport& report);
AbTable counters_table(const AbReport& report);
AbTable memory_table(const AbReport& report);
AbTable tokens_table(const AbReport& report);
AbTable provenance_table(const AbReport& report);
std::string to_markdown(const AbTable& table);
std::string to_html(const AbTable& table);

/// A side's memory: bars of the charts and rows of the table. Bytes.
struct AbMemory {
  std::string place;  ///< "device" or "host pool"
  std::vector<std::pair<std::string, std::uint64_t>> parts;
};
std::vector<AbMemory> memory_of(const AbSide& side);

/// Where the tokens of a prompt first differ, with the text around, or which side ends.
struct AbTokenDifference {
  std::string id;
  std::string where;             ///< "token 12 of 40 and 38"
  std::string before;            ///< shared text before it; empty without tokenizers
  std::string token_a, token_b;  ///< "317", or "end"
  std::string text_a, text_b;    ///< from there on
};
std::vector<AbTokenDifference> token_differences(const AbReport& report);
std::string tokens_summary(const AbReport& report);

std::string ab_markdown(const AbReport& report);
/// For the terminal: the verdict and the ratios.
std::string ab_summary(const AbReport& report);
Result<std::string> ab_html(const AbReport& report);
nlohmann::ordered_json ab_json(const AbReport& report);

/// Drawn charts; "" where there is nothing to draw.
std::string ratios_chart(const AbReport& report);
std::string rounds_chart(const AbReport& report, const std::string& measure);
std::string latency_chart(const AbReport& report);
std::string hits_chart(const AbReport& report);
std::string curve_chart(const AbReport& report);
std::string memory_chart(const AbReport& report);

}  // namespace ebb::cli
