// ebb check: everything that happens before the first real step, and one step to see it work. The
// report is put together first and printed at the end: a model that is refused prints nothing.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/session.h"

namespace ebb::cli {
namespace {

std::string describe_model(const Engine& engine) {
  const Loader& loader = engine.loader();
  const ModelShape model = engine.model();
  const SessionShape& session = engine.session();
  return fmt::format(
      "model    {}\n"
      "         {} in {} tensors, digest {}\n"
      "         {} layers, vocabulary {}, made for {} tokens\n"
      "session  {} tokens a sequence, {}, up to {} rows a step\n"
      "device   {}, {} products\n",
      printable(loader.source()), format_bytes(loader.data_bytes()), loader.tensors().size(),
      loader.digest(), model.n_layers, model.vocab_size, model.context_length, session.max_context,
      describe_sequences(session), session.max_rows, engine.compute_info().device,
      engine.compute_info().precision);
}

std::string describe_modules(const Engine& engine) {
  std::string text = fmt::format("\n{:<10} {:<20} {:<8} {}\n", "kind", "module", "version", "file");
  for (const auto& [descriptor, file] : engine.modules()) {
    text += fmt::format("{:<10} {:<20} {:<8} {}\n", descriptor->kind, descriptor->name,
                        descriptor->version, printable(file));
  }
  return text;
}

std::string describe_memory(const Engine& engine) {
  std::string text = "\nmemory by part\n";
  for (const auto& [name, bytes] : engine.parts()) {
    text += fmt::format("  {:<24} {:>12}\n", name, format_bytes(bytes));
  }
  const ComputeInfo info = engine.compute_info();
  text += fmt::format("  {:<24} {:>12}", "the device in all", format_bytes(info.bytes_allocated));
  if (info.bytes_limit > 0) text += fmt::format(" of {}", format_bytes(info.bytes_limit));
  return text + '\n';
}

std::string describe_swapping(const Engine& engine) {
  if (engine.swap() == nullptr) return "\nswapping off: every chunk row stays in compute memory\n";
  const SwapLayout layout = engine.swap()->layout();
  return fmt::format(
      "\nswapping {}: slots for {} of the {} chunks of each of {} layers; host pool {}\n",
      layout.mode == StagingMode::demand ? "demand" : "zero_copy", layout.n_slots, layout.n_chunks,
      layout.n_layers, format_bytes(layout.pool_bytes));
}

std::string describe_forecasts(const Engine& engine) {
  return engine.memory() == nullptr ? "forecasts off: the model's own selection alone\n"
         : engine.memory()->allowed() == nullptr
             ? "forecasts foresee what is needed; the selection is the model's\n"
             : "forecasts decide what may be selected\n";
}

Result<std::string> describe_step(Engine& engine) {
  const std::int32_t token = engine.tokenizer() != nullptr ? engine.tokenizer()->bos() : 0;
  EBB_ASSIGN(const std::int32_t sequence, engine.open_sequence());
  const auto begin = std::chrono::steady_clock::now();
  const StepRow row{sequence, token, true};
  EBB_TRY(engine.step(std::span(&row, 1)));
  EBB_ASSIGN(const std::int32_t next, engine.argmax(0));
  EBB_ASSIGN(const std::span<const float> logits, engine.logits(0));
  if (std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); })) {
    return make_error(Errc::internal, "one step on token %d: logits that are no numbers", token);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return fmt::format("\none step on token {}: token {} follows, {:.1f} ms\n", token, next,
                     seconds * 1e3);
}

Result<int> check(const SessionArgs& args) {
  EBB_ASSIGN(const Manifest manifest, load_manifest(args));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(manifest, args));
  EBB_ASSIGN(const std::string step, describe_step(*engine));
  fmt::print("{}{}{}{}{}{}ok\n", describe_model(*engine), describe_modules(*engine),
             describe_memory(*engine), describe_swapping(*engine), describe_forecasts(*engine),
             step);
  return kDone;
}

}  // namespace

void add_check(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "check", "Load and wire everything, run one step, report modules and memory");
  const auto args = std::make_shared<SessionArgs>();
  add_session_args(*command, *args);
  command->footer(
      "Status 0 means that the manifest can be run. Else nothing is printed on stdout and stderr\n"
      "says what is wrong, one line a mistake.\n"
      "\n"
      "Example:\n"
      "  ebb check config/demo/demo.toml --set engine.max_context=8192");
  command->callback([args, &status] { status = finish(check(*args)); });
}

}  // namespace ebb::cli
