// ebb eval logits: token ids in, logits out, for comparing with another engine.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <memory>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/interrupt.h"
#include "tools/ebb/logit_feed.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/session.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "logits are written as they stand");

struct LogitsArgs {
  SessionArgs session;
  std::string input, output;
  bool all = false;
  std::int32_t chunk = 0;
};

using Prompts = std::vector<std::vector<std::int32_t>>;

Result<Prompts> parse_prompts(const std::string& text, const std::string& name) {
  const auto fail = [&name](std::string_view why) {
    return Error{Errc::invalid_argument, fmt::format("{}: {}", printable(name), why)};
  };
  Result<nlohmann::json> parsed = parse_json(text);
  if (!parsed) return fail(parsed.error().message);
  const nlohmann::json* list = &*parsed;
  if (list->is_object() && list->contains("prompts")) list = &list->at("prompts");
  if (!list->is_array() || list->empty()) return fail("want a list of prompts");
  Prompts prompts;
  for (const nlohmann::json& one : *list) {
    const bool has_key = one.is_object() && one.contains("tokens");
    if (!read_ids(has_key ? one.at("tokens") : one, prompts.emplace_back())) {
      return fail(fmt::format("prompt {}: want a list of token ids", prompts.size() - 1));
    }
  }
  return prompts;
}

Result<int> eval_logits(const LogitsArgs& args) {
  Interrupt interrupt;
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  EBB_ASSIGN(const std::string text, read_file(args.input));
  EBB_ASSIGN(const Prompts prompts, parse_prompts(text, args.input));
  EBB_TRY(check_outputs({{"--input", args.input}, {"--output", args.output}}));
  interrupt.arm();  // from here on there is a file to take away
  EBB_ASSIGN(OutputFile output, OutputFile::create(args.output));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args.session, args.all));
  if (args.all) EBB_TRY(check_selects_freely(*engine, manifest, "--set memory.mode=off"));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (const Status status = check_prompt(*engine, prompts[i]); !status) {
      return make_error(status.error().code, "%s: prompt %zu: %s", printable(args.input).c_str(), i,
                        status.error().message.c_str());
    }
  }
  const std::int32_t chunk = args.chunk > 0 ? args.chunk : engine->max_rows();
  if (chunk > engine->max_rows()) {
    return make_error(Errc::invalid_argument,
                      "--chunk %d: a step takes up to %d rows ([engine] prefill_chunk)", chunk,
                      engine->max_rows());
  }
  std::int64_t n_rows = 0;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    EBB_TRY(feed_for_logits(
        *engine, prompt, chunk, args.all,
        [&](std::size_t, std::span<const float> logits) {
          ++n_rows;
          return output.write(std::as_bytes(logits));
        },
        [&interrupt] { return interrupt.requested(); }));
    if (interrupt.requested()) {
      tell("interrupted: nothing was written\n");
      return kInterrupted;
    }
  }
  EBB_TRY(output.commit());
  fmt::print("{}: {} rows of {} float32\n", printable(args.output), n_rows,
             engine->model().vocab_size);
  return kDone;
}

}  // namespace

void add_eval_logits(CLI::App& eval, int& status) {
  CLI::App* const command =
      eval.add_subcommand("logits", "Token ids in, raw logits out, to compare with another engine");
  const auto args = std::make_shared<LogitsArgs>();
  add_session_args(*command, args->session);
  command
      ->add_option("-i,--input", args->input,
                   "Prompts: [[ids], ...], [{\"tokens\": [ids]}, ...] or {\"prompts\": either}")
      ->required()
      ->check(file_name())
      ->type_name("FILE.json");
  command
      ->add_option("-o,--output", args->output,
                   "Little-endian float32 [rows, vocabulary]; appears when all is done")
      ->required()
      ->check(output_file())
      ->type_name("FILE.f32");
  command->add_flag("--all", args->all, "A row for every position, not for each prompt's last");
  command->add_option("--chunk", args->chunk, "Tokens per step; default: [engine] prefill_chunk")
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  command->footer(
      "Example:\n"
      "  ebb eval logits config/demo/demo.toml --set compute.precision=exact -i prompts.json -o "
      "logits.f32");
  command->callback([args, &status] { status = finish(eval_logits(*args)); });
}

}  // namespace ebb::cli
