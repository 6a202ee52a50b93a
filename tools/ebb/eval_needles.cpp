// ebb eval needles: is a fact that stands somewhere in a long text found again? An output is right
// if it is the answer and then EOS, nothing else.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <unordered_map>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/lines.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/progress.h"
#include "tools/ebb/scheduler.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"

namespace ebb::cli {
namespace {

constexpr std::int64_t kMaxAnswerTokens = 64;

struct NeedlesArgs {
  SessionArgs session;
  std::string input, output;
  std::int64_t limit = 0;
};

struct Needle {
  std::string id, prompt, answer;
};

/// Of the needles whose prompt has at most `key` tokens and more than half of that.
struct Bucket {
  std::int64_t n = 0;
  std::int64_t n_right = 0;
  std::int64_t n_prompt_tokens = 0;
  double prefill_seconds = 0;
  std::int64_t n_decode_steps = 0;
  double decode_seconds = 0;

  void add(const Bucket& other) {
    n += other.n;
    n_right += other.n_right;
    n_prompt_tokens += other.n_prompt_tokens;
    prefill_seconds += other.prefill_seconds;
    n_decode_steps += other.n_decode_steps;
    decode_seconds += other.decode_seconds;
  }
};

// Other keys of a line (depth, length, what another engine said) are the file's own business.
Result<std::vector<Needle>> parse_needles(std::string_view text, const std::string& name,
                                          std::int64_t limit) {
  std::vector<Needle> needles;
  std::unordered_map<std::string, int> line_of_id;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (is_blank(line)) continue;
    if (limit > 0 && static_cast<std::int64_t>(needles.size()) == limit) break;
    const auto fail = [&name, number](std::string_view why) {
      return Error{Errc::invalid_argument, fmt::format("{}:{}: {}", printable(name), number, why)};
    };
    const Result<nlohmann::json> parsed = parse_json(line);
    if (!parsed) return fail(parsed.error().message);
    const auto field = [&parsed](const char* key) -> std::string {
      const auto found = parsed->find(key);
      return found != parsed->end() && found->is_string() ? found->get<std::string>() : "";
    };
    if (!parsed->is_object()) return fail("want a JSON object");
    Needle needle{field("id"), field("prompt"), field("answer")};
    if (needle.id.empty() || needle.prompt.empty() || needle.answer.empty()) {
      return fail("want id, prompt and answer, all text");
    }
    if (const auto [first, is_new] = line_of_id.emplace(needle.id, number); !is_new) {
      return fail(
          fmt::format("id {} stands in line {} already", printable(needle.id, 60), first->second));
    }
    needles.push_back(std::move(needle));
  }
  if (needles.empty()) {
    return Error{Errc::invalid_argument, printable(name) + ": no needle in it"};
  }
  return needles;
}

class NeedleRun {
 public:
  /// `output`: where a line for each needle goes, or nullptr.
  NeedleRun(Engine& engine, const std::vector<Needle>& needles, OutputFile* output)
      : engine_(engine), needles_(needles), output_(output) {
    for (const Needle& needle : needles_) {
      work_ += needle.prompt.size();
      answers_.emplace(needle.id, needle.answer);
    }
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
    fmt::print("{:>8} {:>11} {:>7} {:>17} {:>15} {:>14}\n", "tokens", "right/run", "%",
               "95 % interval", "prefill tok/s", "decode tok/s");
    Bucket all;
    for (const auto& [limit, bucket] : buckets_) {
      print_row(fmt::format("<={}", limit), bucket);
      all.add(bucket);
    }
    print_row("all", all);
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
    const std::string& answer = answers_.at(job.id);
    const bool is_right = generation.finish() == FinishReason::stop && generation.text() == answer;
    const auto n_prompt = static_cast<std::int64_t>(job.prompt.size());
    Bucket one;
    one.n = 1;
    one.n_right = is_right ? 1 : 0;
    one.n_prompt_tokens = n_prompt;
    one.prefill_seconds = timings.prefill;
    one.n_decode_steps = static_cast<std::int64_t>(generation.tokens().size()) - 1;
    one.decode_seconds = timings.decode;
    std::int64_t limit = 1;
    while (limit < n_prompt) limit *= 2;
    buckets_[limit].add(one);
    const std::string shown = printable(generation.text(), 40);
    line = to_line({{"id", job.id},
                    {"n_tokens", n_prompt},
                    {"answer", answer},
                    {"text", generation.text()},
                    {"finish_reason", finish_reason_name(generation.finish())},
                    {"right", is_right},
                    {"prefill_s", timings.prefill},
                    {"decode_s", timings.decode}});
    const std::string id = printable(job.id, 60);
    return is_right ? fmt::format("{} right: {}", id, shown)
                    : fmt::format("{} wrong: {} instead of {}", id, shown, printable(answer, 40));
  }

  static void print_row(const std::string& name, const Bucket& bucket) {
    const Interval interval = wilson_interval(bucket.n_right, bucket.n);
    const double share = static_cast<double>(bucket.n_right) / static_cast<double>(bucket.n);
    fmt::print("{:>8} {:>11} {:>7.1f} {:>17} {:>15.1f} {:>14.1f}\n", name,
               fmt::format("{}/{}", bucket.n_right, bucket.n), 100 * share,
               fmt::format("{:.1f} to {:.1f}", 100 * interval.low, 100 * interval.high),
               rate(bucket.n_prompt_tokens, bucket.prefill_seconds),
               rate(bucket.n_decode_steps, bucket.decode_seconds));
  }

  Engine& engine_;
  const std::vector<Needle>& needles_;
  std::unordered_map<std::string, std::string> answers_;
  std::uint64_t work_ = 0;
  std::size_t next_ = 0;
  std::map<std::int64_t, Bucket> buckets_;
  OutputFile* output_;
};

Result<int> eval_needles(const NeedlesArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const std::vector<Needle> needles, parse_needles(text, args.input, args.limit));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session));
  EBB_TRY(need_tokenizer(*engine, "ebb eval needles"));
  interrupt.arm();
  std::optional<OutputFile> output;
  if (!args.output.empty()) {
    EBB_ASSIGN(OutputFile file, OutputFile::create(args.output));
    output.emplace(std::move(file));
  }
  NeedleRun run(*engine, needles, output ? &*output : nullptr);
  EBB_TRY(run.check());
  EBB_ASSIGN(const bool is_through, run.run(interrupt));
  // An interrupted run keeps what it has.
  if (output) EBB_TRY(output->commit());
  run.print_table();
  return is_through ? kDone : kInterrupted;
}

}  // namespace

void add_eval_needles(CLI::App& eval, int& status) {
  CLI::App* const command = eval.add_subcommand(
      "needles", "Are facts found again in long texts? Right answers by length");
  const auto args = std::make_shared<NeedlesArgs>();
  add_session_args(*command, args->session);
  command
      ->add_option("-i,--input", args->input,
                   "One JSON object a line: id, prompt (text with special strings), answer")
      ->required()
      ->type_name("FILE.jsonl");
  command->add_option("-o,--output", args->output, "What became of each needle, one line each")
      ->type_name("FILE.jsonl");
  command->add_option("--limit", args->limit, "Only the first N needles")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->footer(
      "An output is right if it is the answer and then the end token. Decoding is greedy. The\n"
      "interval is Wilson's. Several sequences share the decode time if max_sequences > 1.");
  command->callback([args, &status] { status = finish(eval_needles(*args)); });
}

}  // namespace ebb::cli
