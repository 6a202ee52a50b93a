// Whether engines that swap have the bits of one that does not (swap_cases.h), on any backend:
// every logit of prompts and of decode, by one and by several sequences a step, and what every
// layer's attention hands on.
//
//   swap_check [tiny] [demo] [flash] [--set k=v]...
//
// Without a name all three models: the tiny synthetic one, the bundled one, and, with fewer
// policies, three layers of V4-Flash's widths. Of the values that can be varied every pair meets.
// On CUDA they are run with and without a graph, unless a setting says which.
// Exit status 1 if a bit differs or too little moved to prove anything, 2 if an engine cannot be
// opened.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "tests/staging/swap_cases.h"

namespace {

using ebb::test::Overrides;
using ebb::test::SwapModel;

std::vector<Overrides> backends(const Overrides& settings) {
  std::string module = "compute_cpu";
  for (const std::string& setting : settings) {
    if (setting.starts_with("compute.module=")) module = setting.substr(15);
  }
  if (module == "compute_cuda") return {{"compute.graph=true"}, {"compute.graph=false"}};
  return {{}};
}

bool check(const SwapModel& model, const Overrides& settings) {
  const auto begin = std::chrono::steady_clock::now();
  ebb::test::SwapCases cases(model, backends(settings), settings);
  const auto choices = ebb::test::pairwise(cases.sizes());
  const ebb::test::SwapOutcome outcome = cases.run(choices, [&](const std::string& fault) {
    std::printf("%s: %s\n", model.name.c_str(), fault.c_str());
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const ebb::SwapCounters& all = outcome.counters;
  std::printf(
      "swapping, %s: %zu of %zu engines right (%zu tokens' logits, %zu rows of attention; %llu "
      "hits, %llu misses, %llu promotions, %llu evictions, %llu prefetched chunks used, %llu "
      "answers refused), %.1f s\n",
      model.name.c_str(), outcome.n_right, choices.size(), outcome.n_logits, outcome.n_attended,
      static_cast<unsigned long long>(all.hits), static_cast<unsigned long long>(all.misses),
      static_cast<unsigned long long>(all.promotions),
      static_cast<unsigned long long>(all.evictions),
      static_cast<unsigned long long>(all.prefetch_used),
      static_cast<unsigned long long>(all.refused), seconds.count());
  const std::string idle = outcome.idle();
  if (!idle.empty()) std::printf("%s: %s\n", model.name.c_str(), idle.c_str());
  return outcome.n_right == choices.size() && idle.empty();
}

int run(int argc, char** argv) {
  const std::vector<SwapModel> models = {ebb::test::tiny_swap_model(), ebb::test::demo_swap_model(),
                                         ebb::test::flash_swap_model()};
  Overrides settings;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto is_named = [&](const SwapModel& model) { return model.name == argument; };
    if (std::any_of(models.begin(), models.end(), is_named)) {
      names.push_back(argument);
    } else if (argument == "--set" && i + 1 < argc) {
      settings.emplace_back(argv[++i]);
    } else {
      throw std::runtime_error("usage: swap_check [tiny] [demo] [flash] [--set k=v]...");
    }
  }
  bool passed = true;
  for (const SwapModel& model : models) {
    if (!names.empty() && std::find(names.begin(), names.end(), model.name) == names.end()) {
      continue;
    }
    passed = check(model, settings) && passed;
  }
  std::printf(passed ? "passed\n" : "FAILED\n");
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ebb::test::run_check("swap_check", run, argc, argv); }
