#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/ebb/prefill.h"

// Engines for tests: a manifest made of text, opened through the real loader.

namespace ebb::test {

/// A manifest of a GGUF model on the CPU, to vary by --set strings.
inline std::string cpu_manifest(const std::string& model, bool tokenizer) {
  return "[loader]\nmodule = \"loader_gguf\"\npath = \"" + model + "\"\n" +
         (tokenizer ? "[tokenizer]\nmodule = \"tokenizer_gguf\"\n" : "") +
         "[compute]\nmodule = \"compute_cpu\"\n[comm]\nmodule = \"comm_self\"\n"
         "[attention]\nmodule = \"attention_csa\"\n[decoder]\nmodule = \"decoder_deepseek4\"\n";
}

inline std::string synthetic_manifest() {
  return "[loader]\nmodule = \"loader_synthetic\"\n[compute]\nmodule = \"compute_cpu\"\n"
         "[comm]\nmodule = \"comm_self\"\n[attention]\nmodule = \"attention_csa\"\n"
         "[decoder]\nmodule = \"decoder_deepseek4\"\n";
}

/// Opens the manifest `text` with overrides; throws with the engine's message if it cannot. `log`
/// hears every line; without it, warnings go to stderr.
inline std::unique_ptr<Engine> open_engine(const std::string& text,
                                           const std::vector<std::string>& overrides,
                                           bool all_logits = false, const LogSink& log = nullptr,
                                           const std::vector<std::int32_t>& kept_layers = {},
                                           bool rehearsal = false) {
  char path[] = "/tmp/ebb-test-XXXXXX";  // several threads open engines at once
  const int file = mkstemp(path);
  if (file < 0) throw std::runtime_error("no temporary file");
  close(file);
  std::ofstream(path) << text;
  Result<Manifest> manifest = Manifest::load(path, overrides);
  std::filesystem::remove(path);
  if (!manifest) throw std::runtime_error(manifest.error().message);
  EngineOptions options;
  options.modules_folder = EBB_MODULES_DIR;
  options.all_logits = all_logits;
  options.kept_layers = kept_layers;
  options.rehearsal = rehearsal;
  options.log = [](LogLevel level, std::string_view line) {
    if (level >= LogLevel::warning) std::cerr << line << '\n';
  };
  if (log) options.log = log;
  Result<std::unique_ptr<Engine>> engine = Engine::open(*manifest, options);
  if (!engine) throw std::runtime_error(engine.error().message);
  return std::move(*engine);
}

inline void require(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

template <class T>
T require(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

/// Logits of every position (or, if only_last, of the last) of one prompt, fed in steps of
/// `chunk` tokens.
inline std::vector<std::vector<float>> prompt_logits(Engine& engine,
                                                     std::span<const std::int32_t> tokens,
                                                     std::size_t chunk, bool only_last = false) {
  const std::int32_t sequence = require(engine.open_sequence());
  std::vector<std::vector<float>> all;
  for (std::size_t fed = 0; fed < tokens.size(); fed += chunk) {
    std::vector<StepRow> rows;
    for (std::size_t i = fed; i < std::min(tokens.size(), fed + chunk); ++i) {
      rows.push_back({sequence, tokens[i], !only_last || i + 1 == tokens.size()});
    }
    require(engine.step(rows));
    std::int32_t out = 0;
    for (const StepRow& row : rows) {
      if (!row.wants_logits) continue;
      const std::span<const float> logits = require(engine.logits(out++));
      all.emplace_back(logits.begin(), logits.end());
    }
  }
  engine.close_sequence(sequence);
  return all;
}

/// Greedy continuation of a prompt; does not stop at any token.
inline std::vector<std::int32_t> greedy(Engine& engine, std::span<const std::int32_t> tokens,
                                        std::size_t n) {
  const std::int32_t sequence = require(engine.open_sequence());
  require(cli::prefill(engine, sequence, tokens));
  std::vector<std::int32_t> out;
  while (true) {
    out.push_back(require(engine.argmax(0)));
    if (out.size() == n) break;
    const StepRow row{sequence, out.back(), true};
    require(engine.step({&row, 1}));
  }
  engine.close_sequence(sequence);
  return out;
}

/// main() of a check program: what `run` returns, or 2 and what went wrong if it throws.
inline int run_check(const char* name, int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << '\n';
    return 2;
  }
}

inline std::int32_t argmax(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace ebb::test
