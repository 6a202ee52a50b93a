// P1 to P4: what a step of decode asks of the host and of the bus, counted. The times that follow
// from it on a GPU stand in docs/performance.md; P5 is in tests/program/test_plan.py.

#define BOOST_TEST_MODULE swap_performance
#define BOOST_TEST_DYN_LINK
#include <time.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <numeric>

#include "tests/staging/simulator.h"
#include "tests/staging/swapping.h"

namespace {

using ebb::Engine;
using ebb::StepRow;
using ebb::SwapCounters;
using ebb::test::open_engine;
using ebb::test::Overrides;
using ebb::test::random_tokens;
using ebb::test::require;
using ebb::test::swapping;
using ebb::test::synthetic_manifest;
using ebb::test::operator+;

constexpr std::int64_t kContext = 200;  // 50 chunks; the tiny model selects 8
const Overrides kSizes = {"engine.max_context=" + std::to_string(kContext),
                          "engine.prefill_chunk=64", "loader.window=8",
                          "compute.module=" EBB_POLICIES_DIR "/compute_tap.so"};
const Overrides kScorers = {"memory.module=memory_flash", "memory.mode=exact", "memory.interval=8",
                            "memory.scorer=[{module=\"scorer_recent\"}]"};

/// What was asked of the device so far.
struct Asked {
  long starts = 0, starts_beside = 0, writes = 0, reads = 0, waits = 0, waits_beside = 0;

  explicit Asked(const Engine& engine) {
    const std::string name = engine.compute_info().device;
    BOOST_REQUIRE(std::sscanf(name.c_str(), "compute_tap %ld %ld %ld %ld %ld %ld", &starts,
                              &starts_beside, &writes, &reads, &waits, &waits_beside) == 6);
  }
};

/// A prompt of 100 tokens, and then `n` greedy steps of decode.
std::int32_t begin(Engine& engine) {
  const std::int32_t sequence = require(engine.open_sequence());
  require(ebb::cli::prefill(engine, sequence, random_tokens(100, 4)));
  return sequence;
}
void decode(Engine& engine, std::int32_t sequence, int n) {
  for (int i = 0; i < n; ++i) {
    const StepRow row{sequence, require(engine.argmax(0)), true};
    require(engine.step({&row, 1}));
  }
}

}  // namespace

// A step is one launch, one write of its token and position, and one wait for the token before.
// Swapping adds a wait that finds nothing to wait for, since the token has been read by then, in
// demand as well, where the device calls the host and not the other way round; scorers run beside,
// and what they answer is asked for after the step has been launched.
BOOST_AUTO_TEST_CASE(P1_a_step_waits_for_its_token_and_for_nothing_else) {
  constexpr int kSteps = 64;
  for (const char* mode : {"", "zero_copy", "demand"}) {
    for (const Overrides& scorers : {Overrides{}, kScorers}) {
      const std::string policy = "swap_lru";
      const auto engine =
          open_engine(synthetic_manifest(),
                      kSizes + scorers + (*mode != '\0' ? swapping(policy, mode, 9) : Overrides{}));
      const std::int32_t sequence = begin(*engine);
      decode(*engine, sequence, 8);
      const Asked before(*engine);
      decode(*engine, sequence, kSteps);
      const Asked after(*engine);
      BOOST_TEST_CONTEXT("staging " << mode << (scorers.empty() ? "" : ", scorers")) {
        BOOST_TEST(after.starts - before.starts == kSteps);
        BOOST_TEST(after.reads - before.reads == kSteps);
        BOOST_TEST(after.waits - before.waits == (*mode != '\0' ? kSteps : 0));
        const long n_forecasts = scorers.empty() ? 0 : kSteps / 8;
        BOOST_TEST(after.starts_beside - before.starts_beside == n_forecasts);
        BOOST_TEST(after.waits_beside - before.waits_beside == n_forecasts);
        BOOST_TEST(after.writes - before.writes == kSteps);
      }
    }
  }
}

// Where all that is selected has a slot, a step moves no byte of a chunk and changes no slot but
// for the chunk that it completes: it reads the rows that it reads without swapping, from slots.
BOOST_AUTO_TEST_CASE(P2_at_a_hit_rate_of_1_nothing_is_moved) {
  for (const char* mode : {"zero_copy", "demand"}) {
    const auto engine =
        open_engine(synthetic_manifest(), kSizes + swapping("swap_lru", mode, kContext / 4 - 1));
    decode(*engine, begin(*engine), 90);
    for (const SwapCounters& c : require(engine->swap_counters())) {
      BOOST_TEST(c.distinct > 90U);
      BOOST_TEST(c.hits == c.distinct);
      BOOST_TEST(c.misses + c.pool_reads + c.promotions + c.evictions + c.h2d_bytes == 0U);
      BOOST_TEST(c.born == c.stores);
    }
  }
}

// What the device waits for the host is counted where that happens, and what is moved is no more
// than was missed: the bound is these bytes over the rate of the bus, and the fixed cost of a call.
BOOST_AUTO_TEST_CASE(P3_the_host_is_waited_for_in_demand_alone_and_moves_what_was_missed) {
  for (const char* mode : {"zero_copy", "demand"}) {
    const auto engine = open_engine(synthetic_manifest(), kSizes + swapping("swap_lru", mode, 9));
    const std::int32_t sequence = begin(*engine);
    timespec from{}, to{};
    clock_gettime(CLOCK_MONOTONIC, &from);
    decode(*engine, sequence, 90);
    clock_gettime(CLOCK_MONOTONIC, &to);
    const double us = 1e6 * static_cast<double>(to.tv_sec - from.tv_sec) +
                      1e-3 * static_cast<double>(to.tv_nsec - from.tv_nsec);
    const auto row_bytes = static_cast<std::uint64_t>(engine->staged().row_bytes);
    double stalled = 0;
    for (const SwapCounters& c : require(engine->swap_counters())) {
      BOOST_TEST(c.misses > 0U);
      BOOST_TEST(c.h2d_bytes == (c.misses + c.promotions) * row_bytes);
      BOOST_TEST(c.h2d_bytes <= 2 * c.distinct * row_bytes);
      stalled += static_cast<double>(c.stall_us);
    }
    if (std::string(mode) == "zero_copy") {
      BOOST_TEST(stalled == 0);
    } else {
      BOOST_TEST(stalled <= us);
    }
  }
}

namespace {

/// Seconds of processor time that a swap module takes for 300 steps of decode in three layers, and
/// what it misses: the same selections of 32 of the first 256 chunks, whatever `max_context` is.
std::pair<double, std::uint64_t> decide(const std::string& policy, const std::string& mode,
                                        std::int64_t max_context) {
  ebb::test::FakeCompute compute;
  ebb::HostServices services([](ebb::LogLevel, std::string_view) {}, 0);
  services.parts().compute = &compute;
  const auto options = ebb::test::options_of("staging = \"" + mode + "\"\nslots = 48\n");
  auto made =
      ebb::ModuleLoader(EBB_MODULES_DIR)
          .load<ebb::Swap>({"swap", policy, "", "test"}, services.host_for(policy), *options);
  BOOST_REQUIRE(made);
  ebb::Swap& swap = *made->get();
  constexpr std::int32_t kLayers = 3, kTopK = 32;
  BOOST_REQUIRE(*swap.plan({max_context, 1, 8, 1}, {kLayers, 4, kTopK, 16}));
  BOOST_REQUIRE(swap.open());
  ebb::Arena nowhere;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) (void)swap.carve_layer(nowhere, layer);
  std::int32_t pos = 0;
  const std::int32_t sequence = 0;
  std::mt19937 random(5);
  const auto step = [&] {
    swap.begin_step(&pos, &sequence, 1);
    ++pos;
    swap.digest();
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const ebb::SelectionLog log = swap.log(layer);
      // Half of it stays, each of the rest comes from 15 chunks of its own.
      std::int32_t n = 0;
      for (std::int32_t i = 0; i < kTopK && pos > 1024; ++i) {
        log.ids[n++] = i < 16 ? i : 16 * (i - 15) + static_cast<std::int32_t>(random() % 15);
      }
      log.count[0] = n;
      if (mode == "demand") swap.resolve(layer);
    }
  };
  while (pos < 1100) step();
  timespec from{}, to{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  for (int i = 0; i < 300; ++i) step();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
  swap.settle();
  std::uint64_t misses = 0;
  for (const SwapCounters& c : swap.counters()) misses += c.misses;
  return {static_cast<double>(to.tv_sec - from.tv_sec) +
              1e-9 * static_cast<double>(to.tv_nsec - from.tv_nsec),
          misses};
}

}  // namespace

// The same selections out of a thousand chunks and out of 256 times as many: the same answers for
// about the same time. The least of several runs counts, of processor time, and the factor is far
// from what a search through all chunks would take.
BOOST_AUTO_TEST_CASE(P4_resolving_a_step_does_not_depend_on_the_chunks_there_are) {
  for (const char* policy : {"swap_lru", "swap_adaptive", "swap_score"}) {
    for (const char* mode : {"demand", "zero_copy"}) {
      double few = 1e9, many = 1e9;
      std::uint64_t misses = 0;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const auto [few_now, few_missed] = decide(policy, mode, 1 << 12);
        const auto [many_now, many_missed] = decide(policy, mode, 1 << 20);
        few = std::min(few, few_now);
        many = std::min(many, many_now);
        misses = few_missed;
        BOOST_TEST(few_missed == many_missed);
      }
      BOOST_TEST(misses > 1000U);
      BOOST_TEST_MESSAGE(policy << ' ' << mode << ": " << 1e6 * few / 300
                                << " us a step with 1,024 "
                                << "chunks, " << 1e6 * many / 300 << " with 262,144");
      BOOST_TEST(many < 3 * few, policy << ' ' << mode);
    }
  }
}
