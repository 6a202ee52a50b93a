// ebb replay: policies over the trace of a run, without a model, beside what no policy can beat.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/number_list.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/plot_file.h"
#include "tools/ebb/replay_rows.h"
#include "tools/ebb/session.h"
#include "tools/ebb/swap_counters.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"
#include "tools/trace/oracle_general.h"
#include "tools/trace/reader.h"
#include "tools/trace/recorded_selections.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

struct ReplayArgs {
  std::string trace;
  std::vector<std::string> policies;
  std::vector<std::int64_t> slots;
  std::string staging, json, csv, plot, oracle_general, selections;
  std::int32_t spread = 1;
  bool recover = false, no_bound = false, no_scores = false, verify = false, verbose = false;
  bool births = false;
};

void print_table(const std::vector<ReplayRow>& rows) {
  std::size_t width = 28;  // a policy may be a path with keys
  for (const ReplayRow& row : rows) width = std::max(width, printable(row.policy).size());
  fmt::print("{:<{}} {:>6} {:>12} {:>7} {:>12} {:>8} {:>12} {:>12}\n", "policy", width, "slots",
             "misses", "ratio", "bound", "over", "evictions", "to device");
  for (const ReplayRow& row : rows) {
    const SwapCounters& c = row.counters;
    std::string bound = "-", over = "-";
    if (row.bound) {
      bound = fmt::format("{}", *row.bound);
      if (*row.bound > 0) {
        const auto least = static_cast<double>(*row.bound);
        over = fmt::format("{:.1f} %", 100 * (static_cast<double>(c.misses) - least) / least);
      }
    }
    fmt::print("{:<{}} {:>6} {:>12} {:>6.2f}% {:>12} {:>8} {:>12} {:>12}\n", printable(row.policy),
               width, row.slots, c.misses, 100 * miss_ratio(c.misses, c), bound, over, c.evictions,
               format_bytes(c.h2d_bytes));
  }
}

Status write_reports(const ReplayArgs& args, StagingMode staging,
                     const std::vector<ReplayRow>& rows) {
  if (!args.json.empty()) {
    ordered_json report{{"trace", args.trace}, {"staging", staging_name(staging)}};
    report["rows"] = ordered_json::array();
    for (const ReplayRow& row : rows) {
      report["rows"].push_back(to_json_with_layers(row));
    }
    EBB_TRY(write_file(args.json, to_line(report)));
  }
  if (!args.csv.empty()) {
    std::string text;
    for (const ReplayRow& row : rows) {
      const ordered_json json = to_json(row);
      std::string head, line;
      for (const auto& [key, value] : json.items()) {
        head += (head.empty() ? "" : ",") + key;
        // A policy with keys holds commas.
        line += (line.empty() ? "" : ",") + (value.is_null() ? "" : value.dump());
      }
      if (text.empty()) text = head + "\n";
      text += line + "\n";
    }
    EBB_TRY(write_file(args.csv, text));
  }
  if (args.plot.empty()) return ok_status();
  return write_plot(
      args.plot, "Miss ratios of swap policies",
      fmt::format("{}, {} staging.", printable(args.trace), staging_name(staging)),
      {report::draw(miss_curve(fmt::format("Misses by slots, {} staging", staging_name(staging)),
                               rows, staging))});
}

Status write_exports(const ReplayArgs& args) {
  const auto to = [](OutputFile& file) {
    return [&file](std::span<const std::byte> bytes) { return file.write(bytes); };
  };
  if (!args.oracle_general.empty()) {
    EBB_ASSIGN(OutputFile file, OutputFile::create(args.oracle_general));
    EBB_TRY(trace::export_oracle_general(args.trace, args.recover, args.births, to(file)));
    EBB_TRY(file.commit());
  }
  if (args.selections.empty()) return ok_status();
  EBB_ASSIGN(OutputFile file, OutputFile::create(args.selections));
  EBB_ASSIGN(const trace::RecordedSize size,
             trace::export_selections(args.trace, args.spread, args.recover, to(file)));
  EBB_TRY(file.commit());
  fmt::print("{}: {} layers, {} steps, {} chunks a row\n", printable(args.selections),
             size.n_layers, size.n_steps, size.top_k);
  return ok_status();
}

/// Whether a row is the run once more, but for keys that were asked for.
bool repeats(const trace::Header& header, StagingMode staging, const std::string& policy,
             std::int64_t slots) {
  return parse_policy(policy).name == header.policy && slots == header.slots &&
         static_cast<std::uint32_t>(staging) == header.staging;
}

// Compares the rows that repeat the run with its counters.
int verify(const trace::Header& header, StagingMode staging,
           const std::vector<trace::Counter>& online, const std::vector<ReplayRow>& rows) {
  bool is_equal = true;
  for (const ReplayRow& row : rows) {
    if (!repeats(header, staging, row.policy, row.slots)) continue;
    for (const trace::Counter& counter : trace::counters_of(row.counters)) {
      for (const trace::Counter& wanted : online) {
        if (wanted.name != counter.name || wanted.value == counter.value) continue;
        is_equal = false;
        tell("ebb: {}: {} {}, the run had {}\n", printable(row.policy), counter.name, counter.value,
             wanted.value);
      }
    }
  }
  if (is_equal) fmt::print("equal to the run\n");
  return is_equal ? kDone : kSomeFailed;
}

Result<int> replay_all(const ReplayArgs& args) {
  LogGate gate(args.verbose);
  EBB_TRY(check_outputs({{"TRACE", args.trace},
                         {"--json", args.json},
                         {"--csv", args.csv},
                         {"--plot", args.plot},
                         {"--oracle-general", args.oracle_general},
                         {"--selections", args.selections}}));
  EBB_TRY(probe_plot(args.plot));
  for (const std::string& path : {args.json, args.csv, args.oracle_general, args.selections}) {
    EBB_TRY(probe_file(path));
  }
  EBB_ASSIGN(trace::Reader reader, trace::Reader::open(args.trace, args.recover));
  const trace::Header header = reader.header();
  StagingMode staging = static_cast<StagingMode>(header.staging);
  if (args.staging == "demand") staging = StagingMode::demand;
  if (args.staging == "zero_copy") staging = StagingMode::zero_copy;
  std::vector<std::int64_t> slots = args.slots;
  if (slots.empty()) slots.push_back(header.slots);
  std::vector<PolicySpec> policies;
  for (const std::string& text : args.policies) policies.push_back(parse_policy(text));
  if (policies.empty()) policies.push_back(parse_policy(header.policy));

  EBB_ASSIGN(const trace::Contents contents, trace::read_contents(reader, !args.no_bound));
  if (!reader.torn().empty()) tell("ebb: {}\n", reader.torn());
  bool can_verify = false;
  for (const PolicySpec& spec : policies) {
    for (const std::int64_t n : slots) can_verify |= repeats(header, staging, spec.text, n);
  }
  if (args.verify && (!can_verify || contents.counters.empty())) {
    return make_error(
        Errc::invalid_argument, "--verify: %s: want policy %s, %u slots, %s staging",
        can_verify ? "the trace was not ended and has no counters" : "no replay repeats the run",
        printable(header.policy).c_str(), header.slots,
        staging_name(static_cast<StagingMode>(header.staging)));
  }
  std::vector<std::uint64_t> bounds;
  if (!args.no_bound) bounds = miss_bounds(contents, staging, slots);
  const ReplaySource source{args.trace, staging, args.recover, !args.no_scores, ""};
  std::vector<ReplayRow> rows;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    for (const PolicySpec& spec : policies) {
      EBB_ASSIGN(std::vector<SwapCounters> layers,
                 replay_policy(source, spec, slots[i], gate.sink()));
      const SwapCounters sum = total(layers);
      rows.push_back({spec.text, slots[i], std::move(layers), sum, std::nullopt});
      if (!args.no_bound) rows.back().bound = bounds[i];
    }
  }
  gate.release();
  EBB_TRY(write_exports(args));
  const Status written = write_reports(args, staging, rows);
  fmt::print("{}: {} staging, {} layers, {} steps with {} selections\n", printable(args.trace),
             staging_name(staging), header.n_layers, contents.n_logged_steps,
             contents.n_selections);
  print_table(rows);
  EBB_TRY(written);
  if (args.verify) return verify(header, staging, contents.counters, rows);
  return kDone;
}

}  // namespace

void add_replay(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "replay",
      "Run swap policies over the trace of a run, and compare them with the best possible");
  const auto args = std::make_shared<ReplayArgs>();
  command->add_option("TRACE", args->trace, "A file that `ebb run --trace` wrote")
      ->required()
      ->check(file_name())
      ->type_name("TRACE");
  command
      ->add_option(
          "--policy", args->policies,
          "A swap module, with keys of [swap] if need be (NAME:key=value,key=value); may be\n"
          "given several times; default: the run's")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_number_list(*command, "--slots", args->slots,
                  "Slots per layer, as in [swap]; default: the run's", 1, std::int64_t{1} << 24);
  command->add_option("--staging", args->staging, "demand or zero_copy; default: the run's")
      ->check(CLI::IsMember({"demand", "zero_copy"}))
      ->type_name("MODE");
  command
      ->add_option("--json", args->json, "Also write all counters as JSON, those of each layer too")
      ->check(output_file())
      ->type_name("FILE");
  command->add_option("--csv", args->csv, "And as CSV, one line per policy and number of slots")
      ->check(output_file())
      ->type_name("FILE");
  CLI::Option* const selections =
      command
          ->add_option(
              "--selections", args->selections,
              "Also write the steps of the first sequence that decodes alone for [attention]\n"
              "selections, to measure with")
          ->check(output_file())
          ->type_name("FILE");
  command
      ->add_option("--spread", args->spread,
                   "With --selections: neighbouring chunks that one chunk of the trace stands for")
      ->needs(selections)
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  command
      ->add_option("--plot", args->plot,
                   "Also draw the miss ratio by slots, a line per policy, and the bound's")
      ->check(file_name())
      ->type_name("FILE.svg|FILE.html");
  CLI::Option* const oracle_general =
      command
          ->add_option("--oracle-general", args->oracle_general,
                       "Write the selections for libCacheSim, as oracleGeneral")
          ->check(output_file())
          ->type_name("FILE");
  command
      ->add_flag("--births", args->births,
                 "With --oracle-general: a record too where a chunk is completed and gets a slot")
      ->needs(oracle_general);
  command->add_flag("--no-bound", args->no_bound,
                    "Leave out the bound, which holds 8 bytes per selection in memory");
  CLI::Option* const no_scores = command->add_flag(
      "--no-scores", args->no_scores,
      "Leave out what the run's scorers foresaw: no prefetch, no scores for policies");
  command->add_flag("--recover", args->recover, "Use a torn trace up to where it can be read");
  command
      ->add_flag("--verify", args->verify,
                 "Fail (status 1) if a replay of the run itself has other counters than it had")
      ->excludes(no_scores);
  command->add_flag("-v,--verbose", args->verbose, "Show what modules have to say, on stderr");
  command->footer(
      "The bound is the number of misses that no policy can go below without prefetching:\n"
      "Belady's choice with the future known (demand), or the least that reading misses in place\n"
      "allows (zero_copy). `over` is how far a policy is above it.\n"
      "\n"
      "Example:\n"
      "  ebb replay run.trace --policy swap_lru --policy swap_adaptive --slots 64,128,256");
  command->callback([args, &status] { status = finish(replay_all(*args)); });
}

}  // namespace ebb::cli
