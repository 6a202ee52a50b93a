#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"

namespace CLI {
class App;
}

namespace ebb::cli {

/// What every command that runs a model takes from the command line.
struct SessionArgs {
  std::string manifest;
  std::vector<std::string> set;
  bool verbose = false;
};

/// Adds MANIFEST, --set and -v.
void add_session_args(CLI::App& app, SessionArgs& args);

// What several commands take, each with its own words for it, or for a manifest of its own.
void add_override_arg(CLI::App& app, const char* flag, std::vector<std::string>& overrides,
                      const char* says);
void add_verbose_arg(CLI::App& app, bool& verbose);
/// -i, a file of lines as `ebb run` takes them.
void add_batch_arg(CLI::App& app, std::string& input, const char* says);
void add_max_tokens_arg(CLI::App& app, std::int64_t& max_tokens, const char* says);

/// `modules` beside the running program.
std::string modules_folder();

/// Warnings and errors go to stderr, with `verbose` the rest too. Until release(), lines are held
/// back: a model that is refused gives its one line of error and nothing else, unless verbose.
class LogGate {
 public:
  explicit LogGate(bool verbose);
  LogSink sink() const;  ///< may outlive the gate
  void release();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

Result<Manifest> load_manifest(const SessionArgs& args);
/// `all_logits`, `rehearsal`: see EngineOptions.
Result<std::unique_ptr<Engine>> open_engine(const Manifest& manifest, const SessionArgs& args,
                                            bool all_logits = false, bool rehearsal = false);
/// The options' modules_folder and log are filled in.
Result<std::unique_ptr<Engine>> open_engine(const Manifest& manifest, const SessionArgs& args,
                                            EngineOptions options);
/// The error of an engine that did not open, with what a user may not know: why this build can lack
/// the module that the manifest names.
Error with_advice(const Manifest& manifest, Error error);

/// Whether a prompt can be fed: invalid_argument if it is empty, longer than max_context or holds
/// an id outside the vocabulary.
Status check_prompt(const Engine& engine, std::span<const std::int32_t> tokens);

/// The tokenizer, or invalid_argument that says what it was needed for.
Result<const Tokenizer*> need_tokenizer(const Engine& engine, const char* what_for);

/// The whole of a regular file; `limit` in bytes. "-" is standard input.
Result<std::string> read_file(const std::string& path,
                              std::uint64_t limit = std::uint64_t{1} << 34);

/// "3 sequences", and how many more may hold prefixes.
std::string describe_sequences(const SessionShape& session);

/// "1.50 GiB", "512 B".
std::string format_bytes(std::uint64_t bytes);

/// The time, ISO 8601: "2026-12-01T08:30:00Z".
std::string now_utc();

/// Tokens per second, or 0 where no time was taken.
double rate(std::int64_t tokens, double seconds);

}  // namespace ebb::cli
