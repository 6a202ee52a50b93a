#pragma once

#include <cstdint>
#include <vector>

#include "tests/policies/driver.h"

namespace ebb::test {

/// `k` chunks a step, going round `n` chunks again and again.
TestTrace loop_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps);
/// Half of each selection is always the same; the rest goes through all chunks once.
TestTrace scan_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps);
/// Loop, scan, churn and Zipf by turns, `phase` steps each.
TestTrace phase_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::int32_t phase);
/// Each chunk with a probability by a Zipf law over a shuffled order; k different ones a step.
TestTrace zipf_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                     double exponent, std::uint64_t seed);
/// A walk: `churn` members of the selection are replaced each step; of those that enter, a share
/// of 60 % left a short time ago, the others are drawn by an affinity that drifts. With `scored`,
/// a noisy forecast of the next 64 steps comes every 64 steps.
TestTrace churn_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::int32_t churn, std::uint64_t seed, bool scored = false);
/// Every layer behaves differently: some stay, some loop, some churn; chunks are born on the way.
TestTrace mixed_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::uint64_t seed);
/// Against whoever keeps what LRU gives up: random selections out of everything but the `window`
/// last ones, so that nothing old is worth keeping, after a loop that made it look so.
TestTrace bait_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                     std::uint64_t seed);

/// The trace with scores every 64 steps that say nothing: noise.
TestTrace with_noise(TestTrace trace, std::uint64_t seed);
/// The births of the first step in a step of their own.
TestTrace with_prefill(TestTrace trace);

/// Those above at a size that a test can afford.
std::vector<TestTrace> all_traces();

/// The trace with a chunk born every `every` steps from `n_start` on, selections cut to those born.
TestTrace growing(TestTrace trace, std::int32_t n_start, std::int32_t every);

}  // namespace ebb::test
