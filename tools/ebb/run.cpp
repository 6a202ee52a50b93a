// ebb run: a batch of requests, one line of results for each. Everything that can be wrong with the
// input is found before the model is loaded; what is finished is on disk before the next begins.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>

#include "core/text.h"
#include "tools/ebb/batch.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/results_file.h"
#include "tools/ebb/scheduler.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"
#include "tools/trace/recorder.h"

namespace ebb::cli {
namespace {

struct RunArgs {
  SessionArgs session;
  std::string input, output, trace;
  bool resume = false;
  std::int64_t max_tokens = 256;
};

// Feeds the lines that are not done yet to the scheduler and writes down what becomes of them.
class BatchRun {
 public:
  BatchRun(Engine& engine, const GenerationSettings& defaults, Provenance provenance,
           ResultsFile& results)
      : engine_(engine),
        defaults_(defaults),
        provenance_(std::move(provenance)),
        results_(results),
        n_failed_(results.n_failed()) {}

  void add(const Batch::Line& line) {
    lines_.push_back(line);
    work_ += line.text.size();
  }

  Result<int> run(Interrupt& interrupt) {
    progress_ = std::make_unique<Progress>(static_cast<std::int64_t>(lines_.size()), work_,
                                           ::isatty(STDERR_FILENO) == 1);
    start_ = std::chrono::steady_clock::now();
    Hooks hooks;
    hooks.next = [this] { return next(); };
    hooks.finished = [this](const Job& job, const Generation& generation, const Timings& timings) {
      return finished(job, generation, timings);
    };
    hooks.prefilled = [this](const Job& job, std::int64_t fed) {
      progress_->feeding(job.id, job.work, fed, static_cast<std::int64_t>(job.prompt.size()));
    };
    hooks.failed = [this](const Job& job, const Error& why) {
      return failed(job.id, job.settings, job.digest, job.work, why);
    };
    hooks.stopped = [&interrupt] { return interrupt.requested(); };
    const Result<bool> through = run_jobs(engine_, hooks);
    progress_.reset();
    if (!through) return through.error();
    if (!*through) {
      tell("interrupted: {} of {} requests are done; go on with --resume\n", n_done_,
           lines_.size());
      return kInterrupted;
    }
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::string reused =
        n_reused_ > 0 ? fmt::format(" ({} of them shared, and not fed again)", n_reused_) : "";
    tell("{} requests done, {} failed, {:.1f} s, {} prompt{} + {} new tokens\n",
         n_done_ - n_new_failed_, n_new_failed_, elapsed, n_prompt_tokens_, reused, n_new_tokens_);
    return n_failed_ > 0 ? kSomeFailed : kDone;
  }

 private:
  // The next line that can be served; those before it get their error.
  Result<std::optional<Job>> next() {
    while (next_ < lines_.size()) {
      const Batch::Line& line = lines_[next_++];
      EBB_ASSIGN(Request request, parse_request(line.text, defaults_));
      Result<std::vector<std::int32_t>> prompt = encode(request);
      if (prompt) {
        return std::optional<Job>(Job{std::move(request.id), *std::move(prompt),
                                      std::move(request.settings), line.text.size(), line.digest});
      }
      EBB_TRY(failed(request.id, request.settings, line.digest, line.text.size(), prompt.error()));
    }
    return std::optional<Job>();
  }

  Status failed(const std::string& id, const GenerationSettings& settings, std::uint64_t digest,
                std::uint64_t work, const Error& why) {
    EBB_TRY(results_.append(format_failure(id, why, settings, digest, provenance_)));
    ++n_done_;
    ++n_failed_;
    ++n_new_failed_;
    progress_->finished(work, fmt::format("{} failed: {}", printable(id, 60), why.message));
    return ok_status();
  }

  Result<std::vector<std::int32_t>> encode(const Request& request) const {
    if (!request.refusal.empty()) return Error{Errc::invalid_argument, request.refusal};
    EBB_ASSIGN(std::vector<std::int32_t> prompt, encode_prompt(request, engine_.tokenizer()));
    EBB_TRY(check_prompt(engine_, prompt));
    return prompt;
  }

  Status finished(const Job& job, const Generation& generation, const Timings& timings) {
    EBB_TRY(results_.append(
        format_result(job, generation, timings, engine_.tokenizer() != nullptr, provenance_)));
    ++n_done_;
    const auto n_prompt = static_cast<std::int64_t>(job.prompt.size());
    const auto n_new = static_cast<std::int64_t>(generation.tokens().size());
    const std::int64_t n_fed = n_prompt - timings.n_reused;
    n_prompt_tokens_ += n_prompt;
    n_reused_ += timings.n_reused;
    n_new_tokens_ += n_new;
    progress_->finished(
        job.work,
        fmt::format("{} {}: {} prompt tokens{} at {:.0f}/s, {} new at {:.1f}/s",
                    printable(job.id, 60), finish_reason_name(generation.finish()), n_fed,
                    n_fed < n_prompt ? fmt::format(" after {} shared ones", timings.n_reused) : "",
                    rate(n_fed, timings.prefill), n_new, rate(n_new - 1, timings.decode)));
    return ok_status();
  }

  Engine& engine_;
  const GenerationSettings& defaults_;
  Provenance provenance_;
  ResultsFile& results_;
  std::unique_ptr<Progress> progress_;
  std::vector<Batch::Line> lines_;
  std::uint64_t work_ = 0;
  std::size_t next_ = 0;
  std::size_t n_done_ = 0;
  int n_failed_;  // those of earlier runs included
  int n_new_failed_ = 0;
  std::int64_t n_prompt_tokens_ = 0;
  std::int64_t n_reused_ = 0;
  std::int64_t n_new_tokens_ = 0;
  std::chrono::steady_clock::time_point start_;
};

std::string record_name(const std::string& output) { return output + ".manifest.toml"; }

// Beside the results: under the plain name, or, if results of another manifest are there already,
// under one with the hash. Written, but for its name.
Result<OutputFile> record_manifest(const Manifest& manifest, const ResultsFile& results,
                                   const std::string& output) {
  const std::vector<std::string>& before = results.manifests();
  const bool is_first = before.empty() || before.front() == manifest.hash();
  if (!is_first) {
    tell(
        "ebb: warning: {} holds results of manifest {}; this run's is {}, and its results "
        "say so\n",
        printable(output), printable(before.front(), 32), manifest.hash());
  }
  EBB_ASSIGN(OutputFile record,
             OutputFile::create(is_first ? record_name(output)
                                         : output + ".manifest." + manifest.hash() + ".toml"));
  std::error_code error;
  const std::string source = std::filesystem::absolute(manifest.path(), error).string();
  const std::string text = fmt::format(
      "# Manifest {} with all that it extends and --set, as a record.\n"
      "# Relative paths start from the folder of the file that named\n"
      "# them ({} or what it extends), those of --set from\n# {}.\n\n{}",
      manifest.hash(), printable(source), printable(std::filesystem::current_path(error).string()),
      manifest.effective());
  EBB_TRY(record.write(std::as_bytes(std::span(text))));
  return record;
}

// Results that are there must be of the requests as they are now: else one file would hold answers
// to two questions of one name, or answers of two lengths.
Status check_answered(const Batch& batch, const ResultsFile& results, const RunArgs& args) {
  for (const Batch::Line& line : batch.lines()) {
    const auto found = results.answered().find(line.id);
    if (found == results.answered().end()) continue;
    const auto& [digest, max_tokens] = found->second;
    const std::string where =
        fmt::format("{}: id {} of {}:{}", printable(args.output), printable(line.id, 60),
                    printable(args.input), line.number);
    if (!digest.empty() && digest != digest_text(line.digest)) {
      return Error{Errc::invalid_argument,
                   where + " has a result, but of another request: name another output"};
    }
    if (max_tokens >= 0 && max_tokens != line.max_tokens) {
      return Error{
          Errc::invalid_argument,
          fmt::format("{} has a result with max_tokens {}, now it is {}: say -n {}, or name "
                      "another output",
                      where, max_tokens, line.max_tokens, max_tokens)};
    }
  }
  return ok_status();
}

Result<int> run(const RunArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  GenerationSettings defaults;
  defaults.max_tokens = args.max_tokens;
  EBB_ASSIGN(defaults.sampling, SamplingSettings::read(manifest));
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const Batch batch, Batch::read(text, args.input, defaults));
  EBB_TRY(check_outputs({{"MANIFEST", args.session.manifest},
                         {"--input", args.input},
                         {"--output", args.output},
                         {"the record of the manifest", record_name(args.output)},
                         {"--trace", args.trace}}));
  EBB_ASSIGN(ResultsFile results, ResultsFile::open(args.output, args.resume));
  EBB_TRY(check_answered(batch, results, args));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session));

  const Provenance provenance{std::string(engine->loader().digest()), manifest.hash()};
  for (const std::string& model : results.models()) {
    if (model == provenance.model) continue;
    return make_error(Errc::invalid_argument,
                      "%s: holds results of model %s, the manifest names model %s: name another "
                      "output",
                      printable(args.output).c_str(), printable(model, 80).c_str(),
                      provenance.model.c_str());
  }
  EBB_ASSIGN(OutputFile record, record_manifest(manifest, results, args.output));
  std::unique_ptr<trace::Recorder> recorder;
  if (!args.trace.empty()) {
    EBB_ASSIGN(recorder, trace::Recorder::create(args.trace, *engine, manifest));
  }
  EBB_TRY(record.commit());  // nothing is refused from here on
  BatchRun batch_run(*engine, defaults, provenance, results);
  for (const Batch::Line& line : batch.lines()) {
    if (!results.answered().contains(line.id)) batch_run.add(line);
  }
  interrupt.arm();
  Result<int> outcome = batch_run.run(interrupt);
  if (outcome && recorder) EBB_TRY(recorder->finish());
  return outcome;
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand("run", "Run a batch of prompts without supervision");
  const auto args = std::make_shared<RunArgs>();
  add_session_args(*command, args->session);
  add_batch_arg(*command, args->input, "Requests, one JSON object a line; - is stdin");
  command
      ->add_option("-o,--output", args->output,
                   "Results, one JSON object a line in order of finishing; the effective manifest\n"
                   "goes to FILE.jsonl.manifest.toml")
      ->required()
      ->check(output_file())
      ->type_name("FILE.jsonl");
  command->add_flag(
      "--resume", args->resume,
      "Go on with an output: skip the ids in it, cut off a torn last line; refused if a\n"
      "request in it, or the -n it was run with, is another now");
  command
      ->add_option("--trace", args->trace,
                   "Also record what is selected, for `ebb replay`; for manifests that swap")
      ->check(output_file())
      ->type_name("FILE");
  add_max_tokens_arg(*command, args->max_tokens,
                     "New tokens per request where its line does not say");
  command->footer(
      "Each line is in OpenAI's Batch shape:\n"
      "  {\"custom_id\": \"a\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hi\"}]}}\n"
      "or short:\n"
      "  {\"id\": \"b\", \"prompt\": \"Once upon a time\", \"max_tokens\": 40}\n"
      "  {\"id\": \"c\", \"tokens\": [0, 17, 32], \"temperature\": 0.7, \"seed\": 1}\n"
      "Settings: max_tokens, temperature, top_p, top_k, seed, stop, ignore_eos; \"thinking\" with\n"
      "messages. BOS goes before a \"prompt\", which is plain text unless the line says\n"
      "\"specials\": true: then special strings in it are tokens, and nothing is added.\n"
      "\n"
      "A line that is no request stops the program before the model is loaded (status 2). A "
      "request\n"
      "that cannot be served, say one too long, gets a result with its error (status 1 at the "
      "end).\n"
      "A result is on disk before the next one; Ctrl-C keeps what is finished (status 130).\n"
      "[engine] max_sequences is how many requests decode together; with prefix_sequences, what\n"
      "prompts begin with in common is fed once.\n"
      "\n"
      "Example:\n"
      "  ebb run config/demo/demo.toml -i config/demo/prompts.jsonl -o results.jsonl");
  command->callback([args, &status] { status = finish(run(*args)); });
}

}  // namespace ebb::cli
