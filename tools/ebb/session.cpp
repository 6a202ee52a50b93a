#include "tools/ebb/session.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "core/text.h"
#include "tools/ebb/sampler.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {

void add_session_args(CLI::App& app, SessionArgs& args) {
  app.add_option("MANIFEST", args.manifest, "TOML file that names the model and the modules")
      ->required()
      ->check(file_name())
      ->type_name("FILE");
  add_override_arg(app, "--set", args.set,
                   "Override one key of the manifest, e.g. compute.threads=2; may be repeated");
  add_verbose_arg(app, args.verbose);
}

void add_override_arg(CLI::App& app, const char* flag, std::vector<std::string>& overrides,
                      const char* says) {
  app.add_option(flag, overrides, says)->type_name("SECTION.KEY=VALUE")->allow_extra_args(false);
}

void add_verbose_arg(CLI::App& app, bool& verbose) {
  app.add_flag("-v,--verbose", verbose, "Show what the modules have to say, on stderr");
}

void add_batch_arg(CLI::App& app, std::string& input, const char* says) {
  app.add_option("-i,--input", input, says)
      ->required()
      ->check(file_name())
      ->type_name("FILE.jsonl");
}

void add_max_tokens_arg(CLI::App& app, std::int64_t& max_tokens, const char* says) {
  app.add_option("-n,--max-tokens", max_tokens, says)
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->type_name("N");
}

std::string modules_folder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "modules" : (program.parent_path() / "modules").string();
}

struct LogGate::State {
  explicit State(bool is_verbose) : verbose(is_verbose), is_open(is_verbose) {}
  std::mutex mutex;  // modules may log from any thread
  const bool verbose;
  bool is_open;
  std::vector<std::string> held;
};

LogGate::LogGate(bool verbose) : state_(std::make_shared<State>(verbose)) {}

LogSink LogGate::sink() const {
  return [state = state_](LogLevel level, std::string_view text) {
    if (level < LogLevel::warning && !state->verbose) return;
    const char* label = level == LogLevel::warning ? "warning: "
                        : level == LogLevel::error ? "error: "
                                                   : "";
    const std::lock_guard lock(state->mutex);
    std::string line = fmt::format("ebb: {}{}\n", label, text);
    if (state->is_open) {
      std::fputs(line.c_str(), stderr);
    } else {
      state->held.push_back(std::move(line));
    }
  };
}

void LogGate::release() {
  const std::lock_guard lock(state_->mutex);
  state_->is_open = true;
  for (const std::string& line : state_->held) std::fputs(line.c_str(), stderr);
  state_->held.clear();
}

Result<Manifest> load_manifest(const SessionArgs& args) {
  EBB_ASSIGN(Manifest manifest, Manifest::load(args.manifest, args.set));
  EBB_TRY(SamplingSettings::read(manifest));  // a mistake is one where nothing is drawn too
  return manifest;
}

Result<std::unique_ptr<Engine>> open_engine(const Manifest& manifest, const SessionArgs& args,
                                            bool all_logits, bool rehearsal) {
  EngineOptions options;
  options.all_logits = all_logits;
  options.rehearsal = rehearsal;
  return open_engine(manifest, args, std::move(options));
}

Result<std::unique_ptr<Engine>> open_engine(const Manifest& manifest, const SessionArgs& args,
                                            EngineOptions options) {
  LogGate gate(args.verbose);
  options.modules_folder = modules_folder();
  options.log = gate.sink();
  Result<std::unique_ptr<Engine>> engine = Engine::open(manifest, options);
  if (!engine) return with_advice(manifest, engine.error());
  gate.release();
  return engine;
}

Error with_advice(const Manifest& manifest, Error error) {
  const ModuleChoice* const compute = manifest.module("compute");
  if (compute == nullptr || error.code != Errc::not_found) return error;
  if (error.message.starts_with(compute->where + " = \"compute_cuda\": ")) {
    error.message += "; compute_cuda is built only where nvcc is found and EBB_CUDA is not OFF";
  }
  return error;
}

Status check_prompt(const Engine& engine, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return make_error(Errc::invalid_argument, "the prompt is empty");
  const std::int64_t max_context = engine.session().max_context;
  if (static_cast<std::int64_t>(tokens.size()) > max_context) {
    return make_error(Errc::invalid_argument,
                      "the prompt has %zu tokens: [engine] max_context allows %lld", tokens.size(),
                      static_cast<long long>(max_context));
  }
  const std::int32_t vocab_size = engine.model().vocab_size;
  for (const std::int32_t id : tokens) {
    if (id < 0 || id >= vocab_size) {
      return make_error(Errc::invalid_argument, "token id %d: want 0..%d", id, vocab_size - 1);
    }
  }
  return ok_status();
}

Result<const Tokenizer*> need_tokenizer(const Engine& engine, const char* what_for) {
  if (engine.tokenizer() != nullptr) return engine.tokenizer();
  return make_error(Errc::invalid_argument, "%s needs a [tokenizer] in the manifest", what_for);
}

Result<std::string> read_file(const std::string& path, std::uint64_t limit) {
  const std::string name = printable(path);
  const bool is_stdin = path == "-";
  std::error_code error;
  if (!is_stdin && !std::filesystem::is_regular_file(path, error)) {
    const bool exists = std::filesystem::exists(path, error);
    return make_error(exists ? Errc::invalid_argument : Errc::not_found, "%s: %s", name.c_str(),
                      exists ? "not a regular file" : "no such file");
  }
  std::FILE* const file = is_stdin ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return make_error(Errc::invalid_argument, "%s: cannot open: %s", name.c_str(),
                      std::generic_category().message(errno).c_str());
  }
  std::string text;
  std::array<char, 65536> piece;
  for (std::size_t n; (n = std::fread(piece.data(), 1, piece.size(), file)) > 0;) {
    if (text.size() + n > limit) break;
    text.append(piece.data(), n);
  }
  const bool failed = std::ferror(file) != 0;
  const bool is_whole = std::feof(file) != 0;
  if (!is_stdin) std::fclose(file);
  if (failed) return make_error(Errc::io, "%s: reading failed", name.c_str());
  if (!is_whole) {
    return make_error(Errc::invalid_argument, "%s: over %s", name.c_str(),
                      format_bytes(limit).c_str());
  }
  return text;
}

std::string describe_sequences(const SessionShape& session) {
  const std::int32_t n_prefixes = session.max_open - session.max_decode;
  return fmt::format("{} sequence{}{}", session.max_decode, session.max_decode == 1 ? "" : "s",
                     n_prefixes == 0 ? "" : fmt::format(" and {} for prefixes", n_prefixes));
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace ebb::cli
