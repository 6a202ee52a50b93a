#include <fmt/format.h>

#include "ebb_abi.h"
#include "tools/ebb/ab_report.h"
#include "tools/ebb/session.h"
#include "tools/ebb/swap_counters.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

template <class Counters, class Fields>
ordered_json counters_json(const std::optional<Counters>& counters, const Fields& fields) {
  ordered_json object;  // null
  for (const auto& field : fields) {
    if (counters) object[field.name] = *counters.*field.value;
  }
  return object;
}

ordered_json test_json(const SignTest& test) {
  return {{"higher", test.n_up}, {"lower", test.n_down}, {"p", test.p}, {"least_p", test.least_p}};
}

ordered_json interval_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return ordered_json::array({interval->low, interval->high});
}

ordered_json side_json(const AbReport& report, std::size_t i) {
  const AbSide& side = report.sides[i];
  const AbFacts& facts = side.facts;
  ordered_json json{{"label", side.label},
                    {"manifest", side.path},
                    {"overrides", side.overrides},
                    {"hash", side.manifest.hash()},
                    {"effective", side.manifest.effective()},
                    {"model", facts.model},
                    {"source", facts.source},
                    {"device", facts.device},
                    {"precision", facts.precision},
                    {"build", facts.build},
                    {"open_s", facts.open_seconds},
                    {"seed", side.manifest.engine().seed},
                    {"max_sequences", facts.max_sequences}};
  json["modules"] = ordered_json::array();
  for (const AbFacts::Module& module : facts.modules) {
    json["modules"].push_back({{"kind", module.kind},
                               {"name", module.name},
                               {"version", module.version},
                               {"file", module.file}});
  }
  json["memory"] = ordered_json::array();
  for (const AbMemory& memory : memory_of(side)) {
    for (const auto& [name, bytes] : memory.parts) {
      json["memory"].push_back({{"place", memory.place}, {"part", name}, {"bytes", bytes}});
    }
  }
  json["device_bytes_planned"] = facts.device_bytes;
  json["device_bytes_taken"] =
      facts.device_taken > 0 ? ordered_json(facts.device_taken) : ordered_json();
  const auto& counters = report.counters[i];
  const AbCounters of = counters.value_or(AbCounters{});
  json["swap"] = counters_json(of.swap, kSwapFields);
  json["memory_counters"] = counters_json(of.memory, kMemoryFields);
  json["counters_same_in_all_rounds"] = counters ? ordered_json(counters->same) : ordered_json();
  const std::vector<double>& sorted = report.latencies[i];
  json["token_ms"] = {{"n", sorted.size()}};
  for (const auto& [name, q] : {std::pair{"p5", 0.05},
                                {"p25", 0.25},
                                {"p50", 0.5},
                                {"p75", 0.75},
                                {"p95", 0.95},
                                {"p99", 0.99},
                                {"max", 1.0}}) {
    json["token_ms"][name] =
        sorted.empty() ? ordered_json() : ordered_json(1e3 * sorted_quantile(sorted, q));
  }
  return json;
}

ordered_json measure_json(const AbMeasure& measure, std::size_t n_measures) {
  const bool has_interval = measure.ratio.interval.has_value();
  return {
      {"measure", measure.name},
      {"unit", measure.unit},
      {"a", measure.mean_a},
      {"b", measure.mean_b},
      {"ratio", measure.ratio.value},
      {"interval", interval_json(measure.ratio.interval)},
      {"confidence", has_interval ? ordered_json(confidence_of_each(n_measures)) : ordered_json()},
      {"confidence_of_all", has_interval ? ordered_json(0.95) : ordered_json()},
      {"n_rounds", measure.ratios.size()},
      {"a_by_round", measure.a},
      {"b_by_round", measure.b},
      {"ratio_by_round", measure.ratios},
      {"drift_of_a", test_json(measure.drift_a)},
      {"change_of_a", measure.change_a}};
}

ordered_json sample_json(const AbReport& report, const AbPass& pass, std::size_t prompt) {
  const AbSample& sample = pass.samples[prompt];
  const auto n_new = static_cast<std::int64_t>(sample.tokens.size());
  ordered_json json{{"round", pass.round},
                    {"side", std::string(1, report.sides[pass.side].name)},
                    {"id", report.sides[pass.side].jobs[prompt].id},
                    {"prompt_tokens", sample.n_prompt},
                    {"cached_tokens", sample.timings.n_reused},
                    {"completion_tokens", n_new},
                    {"finish_reason", finish_reason_name(sample.finish)},
                    {"queue_s", sample.timings.queue},
                    {"prefill_s", sample.timings.prefill},
                    {"decode_s", sample.timings.decode},
                    {"prefill_tokens_per_s",
                     rate(sample.n_prompt - sample.timings.n_reused, sample.timings.prefill)},
                    {"decode_tokens_per_s", rate(n_new - 1, sample.timings.decode)}};
  ordered_json times = ordered_json::array();
  for (const double seconds : sample.token_seconds) times.push_back(1e3 * seconds);
  json["token_ms"] = std::move(times);
  json["error"] = sample.error.empty() ? ordered_json() : ordered_json(sample.error);
  return json;
}

ordered_json tokens_json(const AbReport& report, const AbTokens& tokens) {
  ordered_json json{{"id", report.sides[0].jobs[tokens.prompt].id},
                    {"equal", tokens.error.empty() && tokens.equal},
                    {"a_repeats", tokens.a_repeats},
                    {"b_repeats", tokens.b_repeats},
                    {"first_difference", nullptr},
                    {"error", nullptr}};
  if (!tokens.error.empty()) {
    json["error"] = tokens.error;
    return json;
  }
  if (!tokens.equal) json["first_difference"] = tokens.first_difference;
  json["a"] = tokens.a->tokens;
  json["b"] = tokens.b->tokens;
  json["text_a"] = tokens.a->text;
  json["text_b"] = tokens.b->text;
  return json;
}

ordered_json trace_json(const std::optional<AbTrace>& trace) {
  if (!trace) return nullptr;
  ordered_json json{{"file", trace->file},
                    {"staging", staging_name(trace->staging)},
                    {"slots", trace->slots},
                    {"distinct_by_step", trace->distinct},
                    {"hits_by_step", trace->hits}};
  json["curve"] = ordered_json::array();
  for (const ReplayRow& row : trace->curve) json["curve"].push_back(to_json_with_layers(row));
  return json;
}

}  // namespace

ordered_json ab_json(const AbReport& report) {
  ordered_json json{
      {"report", "ebb ab"},
      {"version", 1},
      {"ebb", EBB_VERSION},
      {"complete", report.complete},
      {"date", report.date},
      {"command", report.command},
      {"prompts", report.input},
      {"rounds_wanted", report.n_wanted},
      {"rounds", report.n_rounds},
      {"engines", report.both_open ? "both open" : "new for each turn"},
      {"why_not_kept_open",
       report.why_not_kept.empty() ? ordered_json() : ordered_json(report.why_not_kept)},
      {"verdict", report.verdict},
      {"warnings", report.warnings}};
  json["sides"] = {{"A", side_json(report, 0)}, {"B", side_json(report, 1)}};
  const auto list = [&json](const char* name) -> ordered_json& {
    return json[name] = ordered_json::array();
  };
  ordered_json& differences = list("differences");
  for (const AbDifference& one : report.differences) {
    differences.push_back({{"key", one.key}, {"a", one.a}, {"b", one.b}});
  }
  ordered_json& refusals = list("left_out");
  for (const AbRefusal& one : report.refusals) {
    refusals.push_back({{"id", one.id}, {"side", std::string(1, one.side)}, {"why", one.why}});
  }
  ordered_json& measures = list("measures");
  for (const AbMeasure& measure : report.measures) {
    measures.push_back(measure_json(measure, report.measures.size()));
  }
  ordered_json& tokens = list("tokens");
  for (const AbTokens& one : report.tokens) tokens.push_back(tokens_json(report, one));
  json["traces"] = {{"A", trace_json(report.traces[0])}, {"B", trace_json(report.traces[1])}};
  ordered_json& passes = list("passes");
  for (const AbPass& pass : report.passes) {
    passes.push_back({{"round", pass.round},
                      {"side", std::string(1, report.sides[pass.side].name)},
                      {"place", pass.place},
                      {"wall_s", pass.wall},
                      {"swap", counters_json(pass.swap, kSwapFields)},
                      {"memory", counters_json(pass.memory, kMemoryFields)}});
  }
  ordered_json& samples = list("samples");
  for (const AbPass& pass : report.passes) {
    for (std::size_t prompt = 0; prompt < pass.samples.size(); ++prompt) {
      samples.push_back(sample_json(report, pass, prompt));
    }
  }
  return json;
}

}  // namespace ebb::cli
