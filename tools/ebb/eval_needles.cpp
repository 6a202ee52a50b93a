// ebb eval needles: is a fact that stands somewhere in a long text found again? An output is right
// if it is the answer and then EOS, nothing else; or, where there are several answers, if each of
// them is in it as a word.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <unordered_map>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/needle_likelihood.h"
#include "tools/ebb/needles.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/scheduler.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

constexpr std::int64_t kMaxAnswerTokens = 64;

struct NeedlesArgs {
  SessionArgs session;
  std::string input, output;
  std::int64_t limit = 0;
  bool count = false;
  bool likelihood = false;
  std::int64_t decode = 0;
  std::string against;
};

/// Whether `word` stands in `text` with no letter or digit on either side.
bool holds_word(std::string_view text, std::string_view word) {
  const auto goes_on = [text](std::size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (std::size_t at = 0; (at = text.find(word, at)) != text.npos; ++at) {
    if ((at == 0 || !goes_on(at - 1)) && !goes_on(at + word.size())) return true;
  }
  return false;
}

/// What became of the needles of one row of the table.
struct Bucket {
  std::int64_t n = 0;
  std::int64_t n_right = 0;
  std::int64_t n_fed_tokens = 0;
  double prefill_seconds = 0;
  std::int64_t n_decode_steps = 0;
  double decode_seconds = 0;

  void add(const Bucket& other) {
    n += other.n;
    n_right += other.n_right;
    n_fed_tokens += other.n_fed_tokens;
    prefill_seconds += other.prefill_seconds;
    n_decode_steps += other.n_decode_steps;
    decode_seconds += other.decode_seconds;
  }
};

class NeedleRun {
 public:
  /// `output`: where a line for each needle goes, or nullptr.
  NeedleRun(Engine& engine, const std::vector<Needle>& needles, OutputFile* output)
      : engine_(engine), needles_(needles), output_(output) {
    for (const Needle& needle : needles_) {
      work_ += needle.prompt.size();
      by_id_.emplace(needle.id, &needle);
    }
  }

  /// One line for each needle: its tokens.
  Status print_counts() const {
    for (const Needle& needle : needles_) {
      EBB_ASSIGN(const std::vector<std::int32_t> prompt, encode(needle));
      fmt::print("{}", to_line({{"id", needle.id}, {"n_tokens", prompt.size()}}));
    }
    return ok_status();
  }

  /// Refuses what cannot be run before anything is.
  Status check() {
    for (const Needle& needle : needles_) {
      EBB_ASSIGN(const std::vector<std::int32_t> prompt, encode(needle));
      if (const Status status = check_prompt(engine_, prompt); !status) {
        return Error{status.error().code, fmt::format("needle {}: {}", printable(needle.id, 60),
                                                      status.error().message)};
      }
    }
    return ok_status();
  }

  Result<bool> run(Interrupt& interrupt) {
    Progress progress(static_cast<std::int64_t>(needles_.size()), work_,
                      ::isatty(STDERR_FILENO) == 1);
    Hooks hooks;
    hooks.next = [this] { return next(); };
    hooks.prefilled = [&progress](const Job& job, std::int64_t fed) {
      progress.feeding(job.id, job.work, fed, static_cast<std::int64_t>(job.prompt.size()));
    };
    hooks.finished = [this, &progress](const Job& job, const Generation& generation,
                                       const Timings& timings) {
      std::string line;
      progress.finished(job.work, score(job, generation, timings, line));
      return output_ != nullptr ? output_->write(std::as_bytes(std::span(line))) : ok_status();
    };
    hooks.stopped = [&interrupt] { return interrupt.requested(); };
    return run_jobs(engine_, hooks);
  }

  void print_table() const {
    std::size_t width = 8;
    for (const auto& [key, bucket] : buckets_) width = std::max(width, key.name().size());
    fmt::print("{:>{}} {:>11} {:>7} {:>17} {:>15} {:>14}\n", "tokens", width, "right/run", "%",
               "95 % interval", "prefill tok/s", "decode tok/s");
    Bucket all;
    for (const auto& [key, bucket] : buckets_) {
      print_row(key.name(), width, bucket);
      all.add(bucket);
    }
    print_row("all", width, all);
  }

 private:
  Result<std::optional<Job>> next() {
    if (next_ == needles_.size()) return std::optional<Job>();
    const Needle& needle = needles_[next_++];
    EBB_ASSIGN(std::vector<std::int32_t> prompt, encode(needle));
    GenerationSettings settings;  // greedy
    settings.max_tokens = kMaxAnswerTokens;
    return std::optional<Job>(Job{needle.id, std::move(prompt), settings, needle.prompt.size()});
  }

  Result<std::vector<std::int32_t>> encode(const Needle& needle) const {
    return engine_.tokenizer()->encode(needle.prompt, true);
  }

  // For people; `line` is for the output.
  std::string score(const Job& job, const Generation& generation, const Timings& timings,
                    std::string& line) {
    const Needle& needle = *by_id_.at(job.id);
    const std::vector<std::string>& answers = needle.answers;
    const auto n_found = std::count_if(
        answers.begin(), answers.end(),
        [&generation](const std::string& one) { return holds_word(generation.text(), one); });
    const bool is_right = answers.empty() ? generation.finish() == FinishReason::stop &&
                                                generation.text() == needle.answer
                                          : n_found == std::ssize(answers);
    const nlohmann::ordered_json answer =
        answers.empty() ? nlohmann::ordered_json(needle.answer) : nlohmann::ordered_json(answers);
    const auto n_prompt = static_cast<std::int64_t>(job.prompt.size());
    Bucket one;
    one.n = 1;
    one.n_right = is_right ? 1 : 0;
    one.n_fed_tokens = n_prompt - timings.n_reused;
    one.prefill_seconds = timings.prefill;
    one.n_decode_steps = static_cast<std::int64_t>(generation.tokens().size()) - 1;
    one.decode_seconds = timings.decode;
    buckets_[{needle.task, n_prompt}].add(one);
    const std::string shown = printable(generation.text(), 40);
    line = to_line({{"id", job.id},
                    {"n_tokens", n_prompt},
                    {"answer", answer},
                    {"text", generation.text()},
                    {"finish_reason", finish_reason_name(generation.finish())},
                    {"right", is_right},
                    {"found", answers.empty() ? (is_right ? 1 : 0) : n_found},
                    {"prefill_s", timings.prefill},
                    {"decode_s", timings.decode}});
    const std::string id = printable(job.id, 60);
    return is_right ? fmt::format("{} right: {}", id, shown)
                    : fmt::format("{} wrong: {} instead of {}", id, shown,
                                  printable(answers.empty() ? needle.answer : answer.dump(), 40));
  }

  static void print_row(const std::string& name, std::size_t width, const Bucket& bucket) {
    const Interval interval = wilson_interval(bucket.n_right, bucket.n);
    const double share = static_cast<double>(bucket.n_right) / static_cast<double>(bucket.n);
    fmt::print("{:>{}} {:>11} {:>7.1f} {:>17} {:>15.1f} {:>14.1f}\n", name, width,
               fmt::format("{}/{}", bucket.n_right, bucket.n), 100 * share,
               fmt::format("{:.1f} to {:.1f}", 100 * interval.low, 100 * interval.high),
               rate(bucket.n_fed_tokens, bucket.prefill_seconds),
               rate(bucket.n_decode_steps, bucket.decode_seconds));
  }

  Engine& engine_;
  const std::vector<Needle>& needles_;
  std::unordered_map<std::string, const Needle*> by_id_;
  std::uint64_t work_ = 0;
  std::size_t next_ = 0;
  std::map<NeedleBucket, Bucket> buckets_;
  OutputFile* output_;
};

Result<int> eval_needles(const NeedlesArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_TRY(check_outputs(
      {{"--input", args.input}, {"--against", args.against}, {"--output", args.output}}));
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const std::vector<Needle> needles, parse_needles(text, args.input, args.limit));
  if (args.count) {
    EBB_ASSIGN(const auto counting, open_engine(manifest, args.session, false, true));
    EBB_TRY(need_tokenizer(*counting, "ebb eval needles"));
    EBB_TRY(NeedleRun(*counting, needles, nullptr).print_counts());
    return kDone;
  }
  Likelihoods other;
  if (!args.against.empty()) {
    EBB_ASSIGN(const std::string lines, read_file(args.against));
    EBB_ASSIGN(other, read_likelihoods(lines, args.against));
  }
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session));
  EBB_TRY(need_tokenizer(*engine, "ebb eval needles"));
  interrupt.arm();
  std::optional<OutputFile> output;
  if (!args.output.empty()) {
    EBB_ASSIGN(OutputFile file, OutputFile::create(args.output));
    output.emplace(std::move(file));
  }
  const auto carry_out = [&](auto run) -> Result<int> {
    EBB_TRY(run.check());
    EBB_ASSIGN(const bool is_through, run.run(interrupt));
    // An interrupted run keeps what it has, and a table is shown whatever becomes of the file.
    const Status kept = output ? output->commit() : ok_status();
    run.print_table();
    EBB_TRY(kept);
    return is_through ? kDone : kInterrupted;
  };
  OutputFile* const lines = output ? &*output : nullptr;
  if (!args.likelihood) return carry_out(NeedleRun(*engine, needles, lines));
  return carry_out(
      LikelihoodRun(*engine, needles, args.decode, args.against.empty() ? nullptr : &other, lines));
}

}  // namespace

void add_eval_needles(CLI::App& eval, int& status) {
  CLI::App* const command = eval.add_subcommand(
      "needles", "Are facts found again in long texts? Right answers by length");
  const auto args = std::make_shared<NeedlesArgs>();
  add_session_args(*command, args->session);
  command
      ->add_option("-i,--input", args->input,
                   "One JSON object a line: id, prompt (text with special strings), answer or\n"
                   "answers (a list), and maybe task; tools/make_needles.py makes such files")
      ->required()
      ->check(file_name())
      ->type_name("FILE.jsonl");
  command->add_option("-o,--output", args->output, "What became of each needle, one line each")
      ->check(output_file())
      ->type_name("FILE.jsonl");
  command->add_option("--limit", args->limit, "Only the first N needles")
      ->check(whole_within(1, INT64_MAX))
      ->type_name("N");
  command->add_flag("--count", args->count, "Print the tokens of each needle and run nothing")
      ->excludes("--output");
  CLI::Option* const likelihood = command->add_flag(
      "--likelihood", args->likelihood,
      "How likely each right answer is: nats per token, the answer being fed token by token");
  likelihood->excludes("--count");
  command
      ->add_option("--decode", args->decode,
                   "With --likelihood: feed the last N tokens of each prompt one by one too, so\n"
                   "that a forecast is in effect before the answer begins: 2 are enough")
      ->check(whole_within(1, INT64_MAX))
      ->needs(likelihood)
      ->type_name("N");
  command
      ->add_option("--against", args->against,
                   "With --likelihood: an --output of another run, to show differences to, needle\n"
                   "by needle")
      ->check(file_name())
      ->needs(likelihood)
      ->type_name("FILE.jsonl");
  command->footer(
      "An output is right if it is the answer and then the end token; of several answers, if each\n"
      "is in it as a word. Decoding is greedy, at most 64 tokens. Rows are by task, if the lines\n"
      "have one, and by length: up to so many tokens and more than half of that. The interval is\n"
      "Wilson's. Several sequences share the decode time if max_sequences > 1.\n"
      "With --likelihood an answer is right if each of its tokens, and then the end token, is the\n"
      "most likely one. Each needle gives its mean over tokens; means over needles, and of\n"
      "differences, have Student's intervals; perplexity is exp of the mean.");
  command->callback([args, &status] { status = finish(eval_needles(*args)); });
}

}  // namespace ebb::cli
