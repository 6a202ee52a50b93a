// ebb ab: two manifests over the same prompts, round after round in changing order, and a report
// that says what the rounds support and no more.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "core/text.h"
#include "tools/ebb/ab_engines.h"
#include "tools/ebb/ab_report.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/number_list.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/output_folder.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"
#include "tools/trace/recorder.h"

namespace ebb::cli {
namespace {

struct AbArgs {
  std::vector<std::string> manifests, set, set_a, set_b;
  std::string input, output;
  std::int32_t n_rounds = 8;
  std::int64_t max_tokens = 256;
  std::vector<std::int64_t> slots;
  bool keep_open = false, no_trace = false, require_equal = false, verbose = false;
};

Result<AbSide> load_side(const AbArgs& args, std::size_t i) {
  const std::string& path = args.manifests[std::min(i, args.manifests.size() - 1)];
  std::vector<std::string> overrides = args.set;
  const std::vector<std::string>& own = i == 0 ? args.set_a : args.set_b;
  overrides.insert(overrides.end(), own.begin(), own.end());
  // Another module starts its section afresh: keys that both sides share go on top of that.
  std::stable_partition(overrides.begin(), overrides.end(), [](const std::string& text) {
    return text.substr(0, text.find('=')).ends_with(".module");
  });
  EBB_ASSIGN(Manifest manifest, Manifest::load(path, overrides));
  EBB_ASSIGN(const SamplingSettings sampling, SamplingSettings::read(manifest));
  return AbSide{i == 0 ? 'A' : 'B',  "",       path, std::move(overrides),
                std::move(manifest), sampling, {},   {}};
}

// As a shell would take it, for whoever wants to repeat it.
std::string command_line(const AbArgs& args) {
  const auto quoted = [](const std::string& word) {
    const bool is_plain =
        !word.empty() && word.find_first_of(" \t\n\"'\\$`*?[](){}<>|&;#~!") == word.npos;
    if (is_plain) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + '\'';
  };
  std::string text = "ebb ab";
  for (const std::string& manifest : args.manifests) text += ' ' + quoted(manifest);
  const auto all = [&](const char* flag, const std::vector<std::string>& values) {
    for (const std::string& value : values) text += fmt::format(" {} {}", flag, quoted(value));
  };
  all("--set", args.set);
  all("--a", args.set_a);
  all("--b", args.set_b);
  text += fmt::format(" -i {} -o {} --rounds {} --max-tokens {}", quoted(args.input),
                      quoted(args.output), args.n_rounds, args.max_tokens);
  if (!args.slots.empty()) text += fmt::format(" --slots {}", fmt::join(args.slots, ","));
  if (args.keep_open) text += " --keep-open";
  if (args.no_trace) text += " --no-trace";
  if (args.require_equal) text += " --require-equal";
  return text;
}

class Experiment {
 public:
  Experiment(const AbArgs& args, AbReport& report, AbEngines& engines, const OutputFolder& folder,
             const Interrupt& interrupt)
      : args_(args), report_(report), engines_(engines), folder_(folder), stopped_([&interrupt] {
          return interrupt.requested();
        }) {}

  /// Returns false if it was stopped. Whole rounds are in the report then, and what there is of
  /// the last one is not.
  Result<bool> run() {
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      EBB_ASSIGN(const bool is_done, prepare(side));
      if (!is_done) return false;
    }
    for (std::int32_t round = 1; round <= args_.n_rounds; ++round) {
      EBB_ASSIGN(const bool is_done, timed(round));
      if (!is_done) return false;
    }
    return true;
  }

 private:
  // The round before the timed ones warms up and, where a side swaps, records what it selects.
  Result<bool> prepare(std::size_t side) {
    EBB_ASSIGN(const AbEngines::Use use, engines_.use(side));
    const AbSide& is = report_.sides[side];
    std::unique_ptr<trace::Recorder> recorder;
    if (is.facts.swaps && !args_.no_trace) {
      EBB_ASSIGN(recorder, trace::Recorder::create(trace_file(side), *use.engine, is.manifest));
    }
    EBB_ASSIGN(std::optional<AbPass> pass, run_pass(*use.engine, is.jobs, stopped_));
    if (!pass) return false;
    if (recorder) EBB_TRY(recorder->finish());
    keep(*std::move(pass), 0, side, side == 0 ? 0 : 1);
    tell("before the rounds: {} {:.2f} s\n", is.label, report_.passes.back().wall);
    return true;
  }

  Result<bool> timed(std::int32_t round) {
    const std::size_t n_before = report_.passes.size();
    const std::size_t first = first_side(round);
    for (const std::size_t side : {first, 1 - first}) {
      EBB_ASSIGN(const AbEngines::Use use, engines_.use(side));
      const AbSide& is = report_.sides[side];
      if (use.is_fresh) EBB_TRY(warm_up(*use.engine, is.jobs, stopped_));
      EBB_ASSIGN(std::optional<AbPass> pass, run_pass(*use.engine, is.jobs, stopped_));
      if (!pass) {
        report_.passes.resize(n_before);
        return false;
      }
      keep(*std::move(pass), round, side, side == first ? 0 : 1);
    }
    const AbPass& one = report_.passes[n_before];
    const AbPass& two = report_.passes[n_before + 1];
    const double a = one.side == 0 ? one.wall : two.wall;
    const double b = one.side == 0 ? two.wall : one.wall;
    tell("round {} of {}, {}: A {:.2f} s, B {:.2f} s\n", round, args_.n_rounds,
         first == 0 ? "AB" : "BA", a, b);
    return true;
  }

  void keep(AbPass pass, std::int32_t round, std::size_t side, std::int32_t place) {
    pass.round = round;
    pass.side = side;
    pass.place = place;
    report_.passes.push_back(std::move(pass));
  }

  std::string trace_file(std::size_t side) const {
    return folder_.file(side == 0 ? "a.trace" : "b.trace");
  }

  const AbArgs& args_;
  AbReport& report_;
  AbEngines& engines_;
  const OutputFolder& folder_;
  const std::function<bool()> stopped_;
};

Status study(const AbArgs& args, AbReport& report, const OutputFolder& folder) {
  bool swaps = false;
  LogGate gate(args.verbose);
  for (std::size_t side = 0; side < 2; ++side) {
    swaps |= report.sides[side].facts.swaps;
    if (!report.sides[side].facts.swaps || args.no_trace) continue;
    EBB_ASSIGN(report.traces[side],
               study_trace(report.sides[side], folder.file(side == 0 ? "a.trace" : "b.trace"),
                           args.slots, gate.sink()));
  }
  if (swaps && args.no_trace) report.trace_note = "No selections were recorded (--no-trace).";
  return ok_status();
}

Status write_report(const AbReport& report, OutputFolder& folder) {
  EBB_ASSIGN(const std::string page, ab_html(report));
  EBB_TRY(write_file(folder.file("report.html"), page));
  EBB_TRY(write_file(folder.file("report.md"), ab_markdown(report)));
  for (const AbSide& side : report.sides) {
    EBB_TRY(write_file(folder.file(side.name == 'A' ? "a.manifest.toml" : "b.manifest.toml"),
                       side.manifest.effective()));
  }
  EBB_TRY(write_file(folder.file("report.json"), to_line(ab_json(report))));
  return folder.commit();
}

int status_of(const AbArgs& args, const AbReport& report) {
  if (!report.complete) return kInterrupted;
  const bool any_failed = !report.refusals.empty() ||
                          std::any_of(report.tokens.begin(), report.tokens.end(),
                                      [](const AbTokens& tokens) { return !tokens.error.empty(); });
  const bool all_equal = std::all_of(
      report.tokens.begin(), report.tokens.end(),
      [](const AbTokens& tokens) { return tokens.equal && tokens.a_repeats && tokens.b_repeats; });
  return any_failed || (args.require_equal && !all_equal) ? kSomeFailed : kDone;
}

Result<int> ab(const AbArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(AbSide side_a, load_side(args, 0));
  EBB_ASSIGN(AbSide side_b, load_side(args, 1));
  AbReport report({std::move(side_a), std::move(side_b)});
  report.command = command_line(args);
  report.input = args.input;
  report.n_wanted = args.n_rounds;
  report.differences = differences_of(report.sides[0].manifest, report.sides[1].manifest);
  label_sides(report.sides, report.differences);
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const Batch batch, Batch::read(text, args.input, {}));
  EBB_ASSIGN(OutputFolder folder, OutputFolder::create(args.output));
  // From here on the folder has to be cleaned up.
  interrupt.arm();
  AbEngines engines(report.sides, args.verbose, [&](AbSide& side, Engine& engine) {
    side.jobs = make_jobs(side, engine, batch, args.max_tokens, report.refusals);
    return ok_status();
  });
  EBB_TRY(engines.open(args.keep_open));
  EBB_TRY(keep_common_jobs(report.sides, report.refusals));
  report.both_open = engines.both();
  report.why_not_kept = engines.why_not_kept();
  if (!report.why_not_kept.empty()) {
    tell("every turn has a new engine: {}\n", printable(report.why_not_kept));
  }

  report.date = now_utc();
  Experiment experiment(args, report, engines, folder, interrupt);
  EBB_ASSIGN(report.complete, experiment.run());
  if (rounds_of(report.passes) == 0) {
    tell("interrupted before the end of the first round: there is no report\n");
    return kInterrupted;
  }
  EBB_TRY(study(args, report, folder));
  analyse(report);
  // What was measured is said, whatever becomes of the report.
  const Status written = write_report(report, folder);
  fmt::print("{}", ab_summary(report));
  EBB_TRY(written);
  if (!report.complete) tell("interrupted: {} holds a partial report\n", printable(args.output));
  return status_of(args, report);
}

}  // namespace

void add_ab(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "ab", "Compare two manifests over the same prompts, round by round, with a report");
  const auto args = std::make_shared<AbArgs>();
  command
      ->add_option("MANIFEST", args->manifests,
                   "Side A and side B; or one for both, that --a and --b tell apart")
      ->required()
      ->expected(1, 2)
      ->check(file_name())
      ->type_name("A.toml [B.toml]");
  add_batch_arg(*command, args->input, "Requests, as `ebb run` takes them; - is stdin");
  command
      ->add_option("-o,--output", args->output,
                   "Folder for the report: report.html, report.md, report.json, the effective\n"
                   "manifests, and traces of sides that swap; must be new or empty")
      ->required()
      ->check(output_file())
      ->type_name("FOLDER");
  add_override_arg(*command, "--a", args->set_a, "Override one key of side A; may be repeated");
  add_override_arg(*command, "--b", args->set_b, "Override one key of side B; may be repeated");
  add_override_arg(*command, "--set", args->set, "Override one key of both sides; may be repeated");
  command
      ->add_option("--rounds", args->n_rounds,
                   "Timed rounds; each runs all prompts on both sides. Intervals need two")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  add_max_tokens_arg(*command, args->max_tokens,
                     "New tokens per request where its line does not say");
  add_number_list(*command, "--slots", args->slots,
                  "Slots per layer of the miss-ratio curve; default: eight numbers that suit", 1,
                  std::int64_t{1} << 24);
  command->add_flag("--keep-open", args->keep_open,
                    "Keep both engines open, if they fit, instead of a new one for each turn; for\n"
                    "models that take long to open: where memory lies may favour one side then");
  command->add_flag("--no-trace", args->no_trace,
                    "Record no selections: no hit rates and no miss-ratio curve");
  command->add_flag("--require-equal", args->require_equal,
                    "Fail (status 1) unless all tokens are equal between sides and rounds");
  add_verbose_arg(*command, args->verbose);
  command->footer(
      "A round runs the prompts on one side, then on the other: AB BA BA AB ... (ABBA BAAB),\n"
      "after one round that is not timed. Each prompt of a round gives a ratio of B to A; a round\n"
      "is the mean of their logarithms, and intervals are over rounds: all ratios that are shown\n"
      "lie in theirs at once in 95 % of experiments. One round supports no\n"
      "claim and gets no interval. A sign test looks for drift of A itself; tokens are compared\n"
      "prompt by prompt. Other tokens are no error unless --require-equal says so.\n"
      "\n"
      "A prompt that a side cannot serve is left out on both (status 1). Ctrl-C reports the "
      "rounds\n"
      "that are finished, and says that it is partial (status 130).\n"
      "\n"
      "Examples:\n"
      "  ebb ab lru.toml adaptive.toml -i prompts.jsonl -o report\n"
      "  ebb ab config/demo/demo.toml --a swap.module=swap_lru --b swap.module=swap_adaptive \\\n"
      "      -i config/demo/prompts.jsonl -o report --rounds 12");
  command->callback([args, &status] { status = finish(ab(*args)); });
}

}  // namespace ebb::cli
