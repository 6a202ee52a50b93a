#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/ebb/bench_run.h"

namespace ebb::cli {

/// What all rows of a benchmark have in common.
struct BenchFacts {
  std::string build;  ///< version, and a digest of the program's and the modules' files
  std::string date;   ///< UTC, ISO 8601, when the measuring began
  double open_seconds = 0;
  double read_rate = 0;  ///< bytes per second the device was seen to read; 0 = not measured
  std::string manifest;  ///< Manifest::hash
  std::uint64_t seed = 0;
};

/// Reads the files of the program and of the engine's modules. Errors: io.
Result<std::string> build_id(const Engine& engine);

/// One object per point, all with the same keys in the same order; null where a key says nothing.
std::vector<nlohmann::ordered_json> bench_rows(const Engine& engine, const BenchPlan& plan,
                                               const BenchFacts& facts,
                                               const std::vector<BenchPoint>& points);

/// A header and one line per row; commas, quotes and line feeds in a text are quoted (RFC 4180).
std::string bench_csv(const std::vector<nlohmann::ordered_json>& rows);
std::string bench_json(const std::vector<nlohmann::ordered_json>& rows, bool complete);
/// Drawn: speed of decode by context, a line per batch, and of prefill. Without rows: nothing.
std::vector<std::string> bench_charts(const std::vector<nlohmann::ordered_json>& rows);
/// For people: what was measured on, then the rows.
std::string bench_table(const Engine& engine, const BenchFacts& facts,
                        const std::vector<nlohmann::ordered_json>& rows);

}  // namespace ebb::cli
