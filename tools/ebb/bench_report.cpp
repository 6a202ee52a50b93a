#include "tools/ebb/bench_report.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <numeric>

#include "core/text.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

/// Bytes of rows and keys that a decode step reads, on average over the steps of the point.
double rows_read(const Engine& engine, const BenchPoint& point) {
  double sum = 0;
  for (std::int64_t pos = point.from; pos < point.to; ++pos) {
    sum += static_cast<double>(engine.bytes_read(pos));
  }
  return sum / static_cast<double>(point.to - point.from) * point.batch;
}

ordered_json or_null(double value) { return value > 0 ? ordered_json(value) : ordered_json(); }

void add_traffic(ordered_json& row, const Engine& engine, const BenchFacts& facts,
                 const BenchPoint& point, double seconds_per_step) {
  const double weights = engine.weight_bytes(point.batch);
  const double kv = rows_read(engine, point);
  const double rate = (weights + kv) / seconds_per_step;
  row["weight_bytes_per_step"] = std::llround(weights);
  row["weight_bytes_per_token"] = std::llround(weights / point.batch);
  row["weight_bytes_are"] = point.batch == 1 ? "exact" : "expected";
  row["kv_bytes_per_step"] = std::llround(kv);
  row["gb_s"] = rate / 1e9;
  row["share_of_read_rate"] =
      facts.read_rate > 0 ? ordered_json(rate / facts.read_rate) : ordered_json();
}

/// A field of a table: the number, or a dash for null.
std::string cell(const ordered_json& row, const char* key, int digits, double unit = 1) {
  const ordered_json& value = row[key];
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>() / unit, digits);
}

std::string csv_field(const ordered_json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != text.npos; at += 2) text.insert(at, 1, '"');
  return '"' + text + '"';
}

}  // namespace

Result<std::string> build_id(const Engine& engine) {
  std::vector<std::string> files{"/proc/self/exe"};
  for (const auto& [descriptor, file] : engine.modules()) files.push_back(file);
  XXH64_hash_t digest = 0;
  for (const std::string& file : files) {
    EBB_ASSIGN(const std::string content, read_file(file));
    digest = XXH3_64bits_withSeed(content.data(), content.size(), digest);
  }
  return fmt::format("{}-{:016x}", EBB_VERSION, digest);
}

std::vector<ordered_json> bench_rows(const Engine& engine, const BenchPlan& plan,
                                     const BenchFacts& facts,
                                     const std::vector<BenchPoint>& points) {
  const ComputeInfo compute = engine.compute_info();
  std::vector<ordered_json> rows;
  double fed_tokens = 0, fed_seconds = 0;
  for (const BenchPoint& point : points) {
    const double median = quantile(point.seconds, 0.5);
    const auto n_tokens = static_cast<double>(point.to - point.from);
    const double sum = std::accumulate(point.seconds.begin(), point.seconds.end(), 0.0);
    const auto n_samples = static_cast<double>(point.seconds.size());
    ordered_json row;
    row["phase"] = point.is_prefill ? "prefill" : "decode";
    row["frontier"] = point.frontier;
    row["batch"] = point.batch;
    row["kv"] = plan.synthetic ? "synthetic" : "model";
    row["from"] = point.from;
    row["to"] = point.to;
    row["n_samples"] = point.seconds.size();
    row["ms_median"] = median * 1e3;
    row["ms_p10"] = quantile(point.seconds, 0.1) * 1e3;
    row["ms_p90"] = quantile(point.seconds, 0.9) * 1e3;
    row["tok_s"] = point.is_prefill ? n_tokens / median : point.batch * n_samples / sum;
    row["tok_s_from_0"] = nullptr;
    for (const char* key : {"weight_bytes_per_step", "weight_bytes_per_token", "weight_bytes_are",
                            "kv_bytes_per_step", "gb_s", "share_of_read_rate"}) {
      row[key] = nullptr;
    }
    if (point.is_prefill) {
      fed_tokens += n_tokens;
      fed_seconds += median;
      if (!plan.synthetic) row["tok_s_from_0"] = fed_tokens / fed_seconds;
    } else {
      add_traffic(row, engine, facts, point, median);
    }
    row["read_rate_gb_s"] = or_null(facts.read_rate / 1e9);
    row["launches"] = engine.launches(point.is_prefill ? engine.max_rows() : point.batch);
    row["device_bytes_planned"] = compute.bytes_allocated;
    row["device_bytes_taken"] =
        compute.bytes_taken > 0 ? ordered_json(compute.bytes_taken) : ordered_json();
    row["open_s"] = facts.open_seconds;
    row["device"] = compute.device;
    row["precision"] = compute.precision;
    row["model"] = engine.loader().digest();
    row["source"] = engine.loader().source();
    row["manifest"] = facts.manifest;
    row["seed"] = facts.seed;
    row["build"] = facts.build;
    row["date"] = facts.date;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string bench_csv(const std::vector<ordered_json>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line, header;
    for (const auto& [key, value] : rows[i].items()) {
      if (!line.empty() || !header.empty()) line += ',', header += ',';
      header += key;
      line += csv_field(value);
    }
    if (i == 0) text += header + '\n';
    text += line + '\n';
  }
  return text;
}

std::string bench_json(const std::vector<ordered_json>& rows, bool complete) {
  const ordered_json report{{"complete", complete}, {"rows", rows}};
  return report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string bench_table(const Engine& engine, const BenchFacts& facts,
                        const std::vector<ordered_json>& rows) {
  const ComputeInfo compute = engine.compute_info();
  std::string text = fmt::format(
      "model    {}, digest {}, opened in {:.2f} s\n"
      "device   {}, {} products\n",
      printable(engine.loader().source()), engine.loader().digest(), facts.open_seconds,
      compute.device, compute.precision);
  if (facts.read_rate > 0) text += fmt::format("reads    {:.1f} GB/s\n", facts.read_rate / 1e9);
  text += fmt::format("memory   {} planned", format_bytes(compute.bytes_allocated));
  if (compute.bytes_taken > 0) {
    text += fmt::format(", {} by the driver's count ({:+.2f} %)", format_bytes(compute.bytes_taken),
                        100 * (static_cast<double>(compute.bytes_taken) /
                                   static_cast<double>(compute.bytes_allocated) -
                               1));
  }
  text += fmt::format("\nrun      build {}, manifest {}, seed {}, {}\n\n", facts.build,
                      facts.manifest, facts.seed, facts.date);
  text += fmt::format(
      "{:<8} {:>9} {:>6} {:>9} {:>10} {:>10} {:>10} {:>10} {:>11} {:>9} {:>8} "
      "{:>6} {:>8}\n",
      "phase", "context", "batch", "kv", "ms median", "ms p10", "ms p90", "tok/s", "weight MB/t",
      "kv MB", "GB/s", "share", "launches");
  for (const ordered_json& row : rows) {
    const ordered_json& share = row["share_of_read_rate"];
    text += fmt::format(
        "{:<8} {:>9} {:>6} {:>9} {:>10} {:>10} {:>10} {:>10} {:>11} {:>9} {:>8} {:>6} {:>8}\n",
        row["phase"].get<std::string>(), row["frontier"].get<std::int64_t>(),
        row["batch"].get<std::int32_t>(), row["kv"].get<std::string>(), cell(row, "ms_median", 3),
        cell(row, "ms_p10", 3), cell(row, "ms_p90", 3), cell(row, "tok_s", 2),
        cell(row, "weight_bytes_per_token", 2, 1e6), cell(row, "kv_bytes_per_step", 2, 1e6),
        cell(row, "gb_s", 1),
        share.is_null() ? "-" : fmt::format("{:.1f}%", 100 * share.get<double>()),
        row["launches"].get<std::int64_t>());
  }
  return text;
}

}  // namespace ebb::cli
