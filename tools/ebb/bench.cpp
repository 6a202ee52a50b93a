// ebb bench: how fast a manifest feeds and decodes at growing context lengths, and what share of
// the device's read rate that is. What was measured is reported even if the run ends early.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "tools/ebb/bench_plan.h"
#include "tools/ebb/bench_report.h"
#include "tools/ebb/bench_run.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/plot_file.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

struct BenchArgs {
  SessionArgs session;
  std::string frontiers;
  std::string batches = "1";
  std::int64_t n_steps = 32;
  std::int32_t n_rounds = 1;
  std::string fill = "model";
  std::string csv, json, plot;
};

Result<BenchPlan> make_plan(const BenchArgs& args) {
  BenchPlan plan;
  const auto named = [](const char* flag, const Error& error) {
    return Error{error.code, fmt::format("{} {}", flag, error.message)};
  };
  if (!args.frontiers.empty()) {
    Result<std::vector<std::int64_t>> lengths = parse_lengths(args.frontiers);
    if (!lengths) return named("--frontiers", lengths.error());
    plan.frontiers = *std::move(lengths);
  }
  Result<std::vector<std::int32_t>> batches = parse_batches(args.batches);
  if (!batches) return named("--batch", batches.error());
  plan.batches = *std::move(batches);
  plan.n_steps = args.n_steps;
  plan.n_rounds = args.n_rounds;
  plan.synthetic = args.fill == "synthetic";
  return plan;
}

/// The device's read rate, or 0 with a word on stderr where there is no room to measure it.
Result<double> read_rate(Engine& engine) {
  const Result<double> rate = engine.measure_read_rate();
  if (rate || rate.error().code != Errc::out_of_memory) return rate;
  tell("ebb: warning: {}; no share of the read rate is given\n", rate.error().message);
  return 0.0;
}

Status write_files(const BenchArgs& args, const BenchFacts& facts,
                   const std::vector<nlohmann::ordered_json>& rows, bool is_whole) {
  if (!args.csv.empty()) EBB_TRY(write_file(args.csv, bench_csv(rows)));
  if (!args.json.empty()) EBB_TRY(write_file(args.json, bench_json(rows, is_whole)));
  if (args.plot.empty() || rows.empty()) return ok_status();
  const std::string note =
      fmt::format("{}{}, {} products; build {}, manifest {}, {}.",
                  is_whole ? "" : "Partial: the measuring was ended early. ",
                  rows[0]["device"].get<std::string>(), rows[0]["precision"].get<std::string>(),
                  facts.build, facts.manifest, facts.date);
  return write_plot(args.plot, "Speed by context length", note, bench_charts(rows));
}

Result<int> bench(const BenchArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_ASSIGN(BenchPlan plan, make_plan(args));
  EBB_TRY(fit_plan(plan, {.max_context = manifest.engine().max_context,
                          .max_decode = manifest.engine().max_sequences}));
  EBB_TRY(check_outputs({{"MANIFEST", args.session.manifest},
                         {"--csv", args.csv},
                         {"--json", args.json},
                         {"--plot", args.plot}}));
  EBB_TRY(probe_file(args.csv));
  EBB_TRY(probe_file(args.json));
  EBB_TRY(probe_plot(args.plot));
  const auto begin = std::chrono::steady_clock::now();
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session));
  BenchFacts facts;
  facts.open_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EBB_ASSIGN(facts.build, build_id(*engine));
  EBB_ASSIGN(facts.read_rate, read_rate(*engine));
  facts.date = now_utc();
  facts.manifest = manifest.hash();
  facts.seed = manifest.engine().seed;

  BenchRun run(*engine, plan, facts.seed);
  interrupt.arm();
  const Result<bool> through = run.run(
      {[&] { return interrupt.requested(); }, [](const std::string& line) { tell("{}\n", line); }});
  const auto rows = bench_rows(*engine, plan, facts, run.points());
  // What was measured is shown if it cannot be written, and written if it cannot be shown.
  const Status written = write_files(args, facts, rows, through && *through);
  fmt::print("{}", bench_table(*engine, facts, rows));
  EBB_TRY(written);
  if (!through) return through.error();
  if (*through) return kDone;
  tell("interrupted: {} rows were measured before\n", rows.size());
  return kInterrupted;
}

}  // namespace

void add_bench(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("bench", "Measure prefill and decode speed at growing context lengths");
  const auto args = std::make_shared<BenchArgs>();
  add_session_args(*command, args->session);
  command
      ->add_option("--frontiers", args->frontiers,
                   "Context lengths to decode at, K = 1024; default: those of 2K,4K,16K,64K,256K\n"
                   "that [engine] max_context has room for")
      ->check(some_text("want numbers with commas between"))
      ->type_name("N,N,...");
  command
      ->add_option("--new", args->n_steps, "Decode steps to count at each length, for each batch")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("N");
  command
      ->add_option("--batch", args->batches,
                   "Sequences that decode in one step, up to [engine] max_sequences")
      ->capture_default_str()
      ->check(some_text("want numbers with commas between"))
      ->type_name("N,N,...");
  command->add_option("--rounds", args->n_rounds, "Measure everything so many times")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  command
      ->add_option(
          "--fill", args->fill,
          "How a context comes to its length. model: by feeding random tokens.\n"
          "synthetic: its rows and keys are random numbers, and only the last step's worth\n"
          "of the first sequence is fed; quick, for lengths that take long to feed")
      ->capture_default_str()
      ->check(CLI::IsMember({"model", "synthetic"}));
  command->add_option("--csv", args->csv, "One line per row, to this file")
      ->check(output_file())
      ->type_name("FILE");
  command->add_option("--json", args->json, "{\"complete\", \"rows\": [...]}, to this file")
      ->check(output_file())
      ->type_name("FILE");
  command
      ->add_option("--plot", args->plot, "Draw decode and prefill speed by context, to this file")
      ->check(file_name())
      ->type_name("FILE.svg|FILE.html");
  command->footer(
      "A prefill row is the time to feed one sequence from one length to the next; a decode row\n"
      "holds the steps of a batch, each with its tokens read back. tok/s is over all sequences of\n"
      "a batch. Weight bytes are counted from the model's tensors: exactly for one sequence, and\n"
      "for more as expected of rows that choose their experts evenly and independently. kv bytes\n"
      "are the rows and index keys read by one step. The share is (weights + kv) per second, of\n"
      "the rate at which this device was just seen to read memory. launches: graph nodes, or the\n"
      "CPU's phases, of one step. Every row of the files says what it was measured on.\n"
      "\n"
      "Ctrl-C reports what is measured (status 130).\n"
      "\n"
      "Example:\n"
      "  ebb bench config/synthetic_eighth.toml --frontiers 512,2K --new 16 --csv eighth.csv");
  command->callback([args, &status] { status = finish(bench(*args)); });
}

}  // namespace ebb::cli
