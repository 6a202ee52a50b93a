// ebb generate: one prompt, its continuation streamed to stdout.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tools/ebb/batch.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/scheduler.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

struct GenerateArgs {
  SessionArgs session;
  std::string prompt, file, system;
  bool has_file = false, raw = false, chat = false, specials = false, think = false;
  std::int64_t max_tokens = 256;
  std::optional<double> temperature, top_p;
  std::optional<std::int32_t> top_k;
  std::optional<std::int64_t> seed;
  std::vector<std::string> stops;
  bool ignore_eos = false;
};

GenerationSettings settings_of(const GenerateArgs& args, const SamplingSettings& sampling) {
  GenerationSettings settings;
  settings.max_tokens = args.max_tokens;
  settings.stops = args.stops;
  settings.ignore_eos = args.ignore_eos;
  settings.sampling = sampling;
  if (args.temperature) settings.sampling.temperature = *args.temperature;
  if (args.top_p) settings.sampling.top_p = *args.top_p;
  if (args.top_k) settings.sampling.top_k = *args.top_k;
  if (args.seed) settings.sampling.seed = static_cast<std::uint64_t>(*args.seed);
  return settings;
}

Request request_of(const GenerateArgs& args, std::string text) {
  Request request;
  if (args.chat) {
    if (!args.system.empty()) request.messages.push_back({"system", args.system, ""});
    request.messages.push_back({"user", std::move(text), ""});
    request.thinking = args.think;
  } else {
    request.prompt = std::move(text);
    request.specials = args.specials;
  }
  return request;
}

Result<int> generate(const GenerateArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_ASSIGN(const SamplingSettings sampling, SamplingSettings::read(manifest));
  std::string text = args.prompt;
  if (args.has_file) {
    EBB_ASSIGN(text, read_file(args.file));
  }
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session));
  EBB_TRY(need_tokenizer(*engine, "ebb generate"));
  EBB_ASSIGN(std::vector<std::int32_t> prompt,
             encode_prompt(request_of(args, std::move(text)), engine->tokenizer()));
  EBB_TRY(check_prompt(*engine, prompt));

  std::optional<Job> job(Job{"prompt", std::move(prompt), settings_of(args, sampling)});
  std::string summary;
  Hooks hooks;
  hooks.next = [&job]() -> Result<std::optional<Job>> { return std::exchange(job, {}); };
  hooks.token = [](const Job&, Generation& generation) {
    const std::string_view piece = generation.take_text();
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  hooks.finished = [&summary](const Job& done, const Generation& generation,
                              const Timings& timings) {
    const auto n_prompt = static_cast<std::int64_t>(done.prompt.size());
    const auto n_new = static_cast<std::int64_t>(generation.tokens().size());
    summary = fmt::format(
        "prefill {} tokens in {:.2f} s ({:.1f}/s), decode {} tokens in {:.2f} s ({:.1f}/s), {}",
        n_prompt, timings.prefill, rate(n_prompt, timings.prefill), n_new, timings.decode,
        rate(n_new - 1, timings.decode), finish_reason_name(generation.finish()));
    return ok_status();
  };
  // Nobody is there to read on, or nothing can be written any more: main says so.
  hooks.stopped = [&interrupt] { return interrupt.requested() || std::ferror(stdout) != 0; };
  interrupt.arm();
  EBB_ASSIGN(const bool is_through, run_jobs(*engine, hooks));
  if (std::ferror(stdout) != 0) return kDone;
  std::fputc('\n', stdout);
  if (!is_through) return kInterrupted;
  tell("{}\n", summary);
  return kDone;
}

void add_prompt_options(CLI::App& command, GenerateArgs& args) {
  CLI::Option* const text = command.add_option("-p,--prompt", args.prompt, "The prompt");
  CLI::Option* const file =
      command.add_option("-f,--file", args.file, "A file that holds the prompt; - is stdin");
  text->type_name("TEXT")->excludes(file);
  file->type_name("FILE");
  CLI::Option* const raw =
      command.add_flag("--raw", args.raw, "The prompt is plain text, BOS goes before it (default)");
  CLI::Option* const chat =
      command.add_flag("--chat", args.chat, "The prompt is what the user says in the chat form");
  CLI::Option* const specials = command.add_flag(
      "--specials", args.specials, "Special strings in the prompt are tokens, nothing is added");
  raw->excludes(chat)->excludes(specials);
  chat->excludes(specials);
  command.add_option("--system", args.system, "With --chat: the system message")
      ->type_name("TEXT")
      ->needs(chat);
  command.add_flag("--think", args.think, "With --chat: let the model think first")->needs(chat);
}

}  // namespace

void add_generate(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("generate", "Continue one prompt, streamed to stdout");
  const auto args = std::make_shared<GenerateArgs>();
  add_session_args(*command, args->session);
  add_prompt_options(*command, *args);
  add_max_tokens_arg(*command, args->max_tokens, "New tokens at most");
  command
      ->add_option("--temp", args->temperature,
                   "Sampling temperature; 0 takes the most probable token ([sampling])")
      ->check(number_within(0, 100))
      ->type_name("T");
  command->add_option("--top-p", args->top_p, "Keep the most probable tokens of this mass")
      ->check(number_within(0, 1))
      ->type_name("P");
  command->add_option("--top-k", args->top_k, "Keep this many tokens; 0 keeps all")
      ->check(CLI::Range(0, 1 << 24))
      ->type_name("K");
  command->add_option("-s,--seed", args->seed, "Seed of the draws")
      ->check(whole_within(0, INT64_MAX))
      ->type_name("N");
  command->add_option("--stop", args->stops, "End before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", args->ignore_eos, "Go on after the end token");
  command->footer(
      "The text goes to stdout, timings go to stderr.\n"
      "\n"
      "Examples:\n"
      "  ebb generate config/demo/demo.toml -p \"It was a dark\" -n 40\n"
      "  ebb generate config/demo/demo.toml --chat -f question.txt --temp 0.7 --seed 1");
  command->callback([args, command, &status] {
    if (command->count("--prompt") + command->count("--file") == 0) {
      throw CLI::RequiredError("--prompt or --file");
    }
    args->has_file = command->count("--file") > 0;
    for (const std::string& stop : args->stops) {
      if (stop.empty()) throw CLI::ValidationError("--stop", "want some text");
    }
    status = finish(generate(*args));
  });
}

}  // namespace ebb::cli
