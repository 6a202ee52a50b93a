#include <CLI/CLI.hpp>

#include "tools/ebb/commands.h"

namespace ebb::cli {

void add_eval(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand("eval", "Measure quality, or get logits");
  command->require_subcommand(1);
  add_eval_logits(*command, status);
  add_eval_needles(*command, status);
  add_eval_perplexity(*command, status);
}

}  // namespace ebb::cli
