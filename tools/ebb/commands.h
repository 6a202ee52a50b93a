#pragma once

namespace CLI {
class App;
}

namespace ebb::cli {

/// Each adds one sub-command to `app`. When the command line names it, parsing runs it and leaves
/// its exit status (exit_status.h) in `status`, which must outlive the parse.
void add_run(CLI::App& app, int& status);
void add_generate(CLI::App& app, int& status);
void add_ab(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_inspect(CLI::App& app, int& status);
void add_modules(CLI::App& app, int& status);
void add_plan(CLI::App& app, int& status);
void add_replay(CLI::App& app, int& status);
void add_eval(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);
void add_dump(CLI::App& app, int& status);

/// The parts of `eval`.
void add_eval_logits(CLI::App& eval, int& status);
void add_eval_needles(CLI::App& eval, int& status);
void add_eval_perplexity(CLI::App& eval, int& status);

}  // namespace ebb::cli
