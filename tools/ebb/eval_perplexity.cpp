// ebb eval perplexity: how well the model predicts a text, in nats per token. The context of every
// prediction is BOS and all of the text before it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/logit_feed.h"
#include "tools/ebb/session.h"
#include "tools/ebb/statistics.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

constexpr std::size_t kPart = 512;  // predictions

struct PerplexityArgs {
  SessionArgs session;
  std::string input;
  std::int64_t tokens = 0;
  std::int64_t decode = 0;
  bool json = false;
};

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void print_report(const std::vector<double>& losses, bool json) {
  std::vector<double> parts;  // the last one may be shorter
  for (std::size_t at = 0; at < losses.size(); at += kPart) {
    parts.push_back(mean(std::span(losses).subspan(at, std::min(kPart, losses.size() - at))));
  }
  // Neighbouring predictions go up and down together, so the interval is taken over whole parts.
  const std::size_t n_whole = losses.size() / kPart;
  const double half_width = mean_of(std::span(parts).first(n_whole)).half_width;
  const double all = mean(losses);
  if (json) {
    nlohmann::ordered_json report{{"n_predictions", losses.size()},
                                  {"mean_nll", all},
                                  {"perplexity", std::exp(all)},
                                  {"part_tokens", kPart},
                                  {"mean_nll_by_part", parts}};
    report["interval_95"] = n_whole < 2
                                ? nlohmann::ordered_json(nullptr)
                                : nlohmann::ordered_json{all - half_width, all + half_width};
    fmt::print("{}", to_line(report));
    return;
  }
  fmt::print("{:>16} {:>10}\n", "predictions", "mean nll");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    fmt::print("{:>16} {:>10.4f}\n",
               fmt::format("{}..{}", i * kPart + 1, std::min((i + 1) * kPart, losses.size())),
               parts[i]);
  }
  fmt::print("{:>16} {:>10.6f} nats per token, perplexity {:.3f}", losses.size(), all,
             std::exp(all));
  if (n_whole >= 2) {
    fmt::print(", 95 % interval {:.4f} to {:.4f} ({} parts)", all - half_width, all + half_width,
               n_whole);
  }
  fmt::print("\n");
}

Result<int> eval_perplexity(const PerplexityArgs& args) {
  const Interrupt interrupt;  // there is nothing to keep: a signal ends the program
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine,
             open_engine(manifest, args.session, args.decode == 0));
  if (args.decode == 0) EBB_TRY(check_selects_freely(*engine, manifest, "--decode N"));
  EBB_ASSIGN(const Tokenizer* const tokenizer, need_tokenizer(*engine, "ebb eval perplexity"));
  EBB_ASSIGN(std::vector<std::int32_t> tokens, tokenizer->encode(text, false));
  const auto n_text = static_cast<std::int64_t>(tokens.size());
  const std::int64_t n = args.tokens > 0 ? args.tokens : n_text;
  if (n_text == 0 || n > n_text) {
    return make_error(Errc::invalid_argument, "%s: %lld tokens: want at least %lld",
                      printable(args.input).c_str(), static_cast<long long>(n_text),
                      static_cast<long long>(std::max<std::int64_t>(n, 1)));
  }
  tokens.resize(static_cast<std::size_t>(n));
  // The last token is predicted and never fed.
  std::vector<std::int32_t> fed(tokens);
  fed.insert(fed.begin(), tokenizer->bos());
  fed.pop_back();
  if (const Status status = check_prompt(*engine, fed); !status) {
    return make_error(status.error().code, "%s: %s; --tokens N takes the first N",
                      printable(args.input).c_str(), status.error().message.c_str());
  }
  std::vector<double> losses;
  losses.reserve(fed.size());
  if (args.decode > n) {
    return make_error(Errc::invalid_argument, "--decode %lld: there are %lld tokens",
                      static_cast<long long>(args.decode), static_cast<long long>(n));
  }
  const auto take = [&](std::size_t position, std::span<const float> logits) {
    losses.push_back(nll(logits, tokens[position]));
    if (!std::isnan(losses.back())) return ok_status();
    return Status(
        make_error(Errc::internal, "after %zu tokens: logits that are no numbers", position + 1));
  };
  if (args.decode > 0) {
    const std::size_t n_prompt = fed.size() - static_cast<std::size_t>(args.decode) + 1;
    EBB_TRY(feed_one_by_one(*engine, fed, n_prompt, take));
  } else {
    EBB_TRY(feed_for_logits(*engine, fed, engine->max_rows(), true, take));
  }
  print_report(losses, args.json);
  return kDone;
}

}  // namespace

void add_eval_perplexity(CLI::App& eval, int& status) {
  CLI::App* const command = eval.add_subcommand(
      "perplexity", "Mean negative log-likelihood of a text, in nats per token");
  const auto args = std::make_shared<PerplexityArgs>();
  add_session_args(*command, args->session);
  command->add_option("-i,--input", args->input, "Plain text, UTF-8")
      ->required()
      ->check(file_name())
      ->type_name("FILE.txt");
  command->add_option("--tokens", args->tokens, "Only the first N tokens of the text")
      ->check(whole_within(1, INT64_MAX))
      ->type_name("N");
  command
      ->add_option("--decode", args->decode,
                   "Feed the last N tokens one by one, as decode does, and count only these: what "
                   "swapping and [memory] modes do shows there")
      ->check(whole_within(1, INT64_MAX))
      ->type_name("N");
  command->add_flag("--json", args->json, "One JSON object instead of a table");
  command->footer(
      "BOS goes before the text. Means are given for every 512 predictions too, and the 95 %\n"
      "interval is taken over those parts (Student's t): it says how much the text varies.");
  command->callback([args, &status] { status = finish(eval_perplexity(*args)); });
}

}  // namespace ebb::cli
