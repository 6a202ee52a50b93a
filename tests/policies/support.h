#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/host.h"
#include "core/module_loader.h"
#include "modules/swap_common/slot_staging.h"
#include "tests/core/support.h"
#include "tests/policies/driver.h"

namespace ebb::test {

/// The policy of a swap module, made from its .so and opened without slots around it; options as
/// TOML text. All modules here are made by PolicyModule, so that what they hand out is known.
class Policy {
 public:
  Policy(const std::string& name, const SwapShape& shape, std::string_view options = "")
      : host_([](LogLevel, std::string_view) {}, 0), options_(options_of(options)) {
    const ModuleChoice choice{Swap::kKind, name, "", "test"};
    Result<ModulePtr<Swap>> made =
        ModuleLoader(EBB_MODULES_DIR).load<Swap>(choice, host_.host_for(name), *options_);
    if (!made) throw std::runtime_error(made.error().message);
    module_ = *std::move(made);
    if (Status status = (**this).open(shape); !status) {
      throw std::runtime_error(status.error().message);
    }
  }
  SwapPolicy& operator*() { return static_cast<SlotStaging*>(module_.get())->policy(); }

 private:
  HostServices host_;
  std::unique_ptr<Options> options_;
  ModulePtr<Swap> module_;
};

/// Names of the installed policies.
inline std::vector<std::string> all_policies() {
  Result<std::vector<Result<OpenModule>>> modules = list_modules(EBB_MODULES_DIR);
  if (!modules) throw std::runtime_error(modules.error().message);
  std::vector<std::string> names;
  for (const Result<OpenModule>& module : *modules) {
    if (module && module->descriptor->kind == std::string_view(Swap::kKind)) {
      names.emplace_back(module->descriptor->name);
    }
  }
  return names;
}

/// `slots` per layer; room for two sequences.
inline SwapShape shape_of(const TestTrace& trace, std::int64_t slots) {
  return {trace.n_layers, 2, trace.n_chunks, slots * trace.n_layers, trace.top_k};
}

/// Slot counts from as tight as can be to nearly everything.
inline std::vector<std::int64_t> slot_counts(const TestTrace& trace) {
  const std::int64_t k = trace.top_k;
  std::vector<std::int64_t> counts;
  for (const std::int64_t n : {k + 2, k + k / 2, 2 * k, 4 * k}) {
    if (n < trace.n_chunks) counts.push_back(n);
  }
  return counts;
}

inline DriverCounts run(const std::string& policy, const TestTrace& trace, std::int64_t slots,
                        std::string_view options = "", std::int64_t moves = 0) {
  const SwapShape shape = shape_of(trace, slots);
  Policy made(policy, shape, options);
  Driver driver(*made, shape, 1, moves);
  driver.run(trace);
  if (!driver.fault().empty()) throw std::runtime_error(policy + ": " + driver.fault());
  return driver.counts();
}

}  // namespace ebb::test
