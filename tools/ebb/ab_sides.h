#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/ebb/batch.h"
#include "tools/ebb/scheduler.h"

namespace ebb::cli {

/// What an engine says of itself, noted when it was opened alone or second.
struct AbFacts {
  std::string device, precision, model, source, build;
  double open_seconds = 0;
  std::vector<std::pair<std::string, std::uint64_t>> parts;  ///< bytes of the session, by part
  std::uint64_t device_bytes = 0;  ///< planned: the session and what importing weights copied
  std::uint64_t device_taken = 0;  ///< by the driver's count; 0 if it does not count
  bool swaps = false;
  SwapLayout swap;
  std::int32_t max_sequences = 1;
  struct Module {
    std::string kind, name, version, file;
  };
  std::vector<Module> modules;
};

/// A request that one side cannot serve: it is left out on both.
struct AbRefusal {
  std::string id;
  char side = 'A';
  std::string why;
};

/// One of the two things that are compared.
struct AbSide {
  char name = 'A';
  std::string label;  ///< "A: swap_lru", for charts and tables
  std::string path;
  std::vector<std::string> overrides;
  Manifest manifest;
  SamplingSettings sampling;
  AbFacts facts;
  std::vector<Job> jobs;  ///< by prompt, the same prompts on both sides
};
using AbSides = std::array<AbSide, 2>;

/// A key whose value differs, as TOML spells it; "" where a side lacks the key.
struct AbDifference {
  std::string key, a, b;
};
std::vector<AbDifference> differences_of(const Manifest& a, const Manifest& b);

/// "A: VALUE" if the manifests differ in one value, else "A: FILE" if the files have different
/// names, else "A".
void label_sides(AbSides& sides, const std::vector<AbDifference>& differences);

Result<AbFacts> facts_of(Engine& engine, double open_seconds);

/// A side's jobs for all lines of the batch, in order; one that cannot be served has no prompt and
/// is told in `refusals`.
std::vector<Job> make_jobs(const AbSide& side, const Engine& engine, const Batch& batch,
                           std::int64_t max_tokens, std::vector<AbRefusal>& refusals);

/// Removes the jobs that either side lacks. Errors: invalid_argument if none is left.
Status keep_common_jobs(AbSides& sides, const std::vector<AbRefusal>& refusals);

}  // namespace ebb::cli
