// A long context and many steps behind it: nothing may grow, and a second run must give the same
// bits.
//
//   endurance_check [--context N] [--steps N] [--set k=v]...
//
// Two engines, one after the other, feed N random tokens to a small synthetic model and decode N
// steps greedily. The logits of every step go into a digest. What the driver says is taken of the
// device's memory is compared before and after the steps; a backend without a driver that counts
// (the CPU's) is judged by the digest alone, and the report says so. Exit status 1 if it fails.

#include <cinttypes>
#include <cstdio>
#include <random>

#include "tests/engine/harness.h"

namespace {

using ebb::test::require;

struct Outcome {
  std::uint64_t digest = 0xCBF29CE484222325U;  // FNV-1a of the logits
  std::uint64_t taken_before = 0;
  std::uint64_t taken_after = 0;
  std::uint64_t planned = 0;
};

Outcome run_once(const std::vector<std::string>& settings, std::int64_t context,
                 std::int64_t n_steps) {
  const auto engine = ebb::test::open_engine(ebb::test::synthetic_manifest(), settings);
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(context));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(engine->model().vocab_size));
  }
  const std::int32_t sequence = require(engine->open_sequence());
  require(ebb::cli::prefill(*engine, sequence, tokens));
  Outcome outcome;
  for (std::int64_t step = 0; step <= n_steps; ++step) {
    const ebb::StepRow row{sequence, require(engine->argmax(0)), true};
    require(engine->step({&row, 1}));
    for (const std::byte byte : std::as_bytes(require(engine->logits(0)))) {
      outcome.digest = (outcome.digest ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3U;
    }
    // The first step loads the kernels of decode.
    if (step == 0) outcome.taken_before = engine->compute_info().bytes_taken;
  }
  outcome.taken_after = engine->compute_info().bytes_taken;
  outcome.planned = engine->compute_info().bytes_allocated;
  return outcome;
}

int run(int argc, char** argv) {
  std::int64_t context = 1024, n_steps = 100;
  std::vector<std::string> settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (i + 1 == argc) throw std::runtime_error(word + ": what?");
    if (word == "--context") {
      context = std::stol(argv[++i]);
    } else if (word == "--steps") {
      n_steps = std::stol(argv[++i]);
    } else if (word == "--set") {
      settings.emplace_back(argv[++i]);
    } else {
      throw std::runtime_error("usage: endurance_check [--context N] [--steps N] [--set k=v]...");
    }
  }
  settings.push_back("engine.max_context=" + std::to_string(context + n_steps + 1));
  settings.push_back("loader.context_length=" + std::to_string(context + n_steps + 1));
  Outcome outcomes[2];
  bool passed = true;
  for (Outcome& outcome : outcomes) {
    outcome = run_once(settings, context, n_steps);
    std::printf("%" PRId64 " tokens, %" PRId64 " steps: logits %016" PRIx64 ", %" PRIu64
                " bytes planned, ",
                context, n_steps, outcome.digest, outcome.planned);
    if (outcome.taken_before == 0) {
      std::printf("no driver counts this memory\n");
    } else {
      std::printf("%" PRIu64 " taken before the steps, %" PRIu64 " after\n", outcome.taken_before,
                  outcome.taken_after);
    }
    passed = passed && outcome.taken_after == outcome.taken_before;
  }
  passed = passed && outcomes[0].digest == outcomes[1].digest;
  std::printf(passed ? "passed\n" : "FAILED\n");
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ebb::test::run_check("endurance_check", run, argc, argv); }
