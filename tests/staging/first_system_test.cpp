// C6. A published run of another system (docs/first-system.md): 2,048 prompt tokens fed one by one
// and 63 decode steps, 21 layers of ratio 4 with 520 slots each, top_k 512, window 128. Its
// counters, to the integer, from ours: where they count other things, the conversion is made from
// counters and sizes of this run, not from a formula alone.

#define BOOST_TEST_MODULE swap_first_system
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

#include "tests/engine/harness.h"
#include "tools/ebb/swap_counters.h"

namespace {

using ebb::SwapCounters;
using ebb::test::require;

constexpr std::int64_t kPositions = 2111;
constexpr std::int64_t kThreshold = 128;
constexpr std::int64_t kSlots = 520;
constexpr std::int64_t kWidth = 64;  // of a row, in floats

std::vector<std::string> overrides() {
  std::string ratios = "0, 0";
  for (int i = 0; i < 41; ++i) ratios += i % 2 == 0 ? ", 4" : ", 128";
  return {"loader.n_layers=43",
          "loader.ratios=[" + ratios + "]",
          "loader.top_k=512",
          "loader.window=128",
          "loader.d_model=32",
          "loader.n_heads=1",
          "loader.d_head=" + std::to_string(kWidth),
          "loader.n_rot=32",
          "loader.q_rank=32",
          "loader.n_groups=1",
          "loader.group_rank=32",
          "loader.n_index_heads=2",
          "loader.d_index=32",
          "loader.n_experts=2",
          "loader.n_experts_used=1",
          "loader.d_expert=32",
          "loader.type_dense=F32",
          "loader.type_experts_in=F32",
          "loader.type_experts_down=F32",
          "loader.type_other=F32",
          "engine.max_context=" + std::to_string(kPositions),
          "engine.prefill_chunk=1",
          "swap.module=swap_lru",
          "swap.staging=demand",
          "swap.slots=" + std::to_string(kSlots)};
}

SwapCounters total(ebb::Engine& engine) { return ebb::cli::total(require(engine.swap_counters())); }

}  // namespace

BOOST_AUTO_TEST_CASE(C6_the_first_system_s_counters_come_out_to_the_integer) {
  const auto engine = ebb::test::open_engine(ebb::test::synthetic_manifest(), overrides());
  BOOST_TEST(require(engine->swap_counters()).size() == 21U);
  const std::int32_t sequence = require(engine->open_sequence());
  std::mt19937 random(1);
  std::uint64_t from = 0, to = 0;
  for (std::int64_t pos = 0; pos < kPositions; ++pos) {
    // There, sparse attention begins at position 128, and a chunk can be selected one step after
    // the token that completes it; here, with that token. So its steps 128 .. 2110 select what
    // ours do at 127 .. 2109.
    if (pos == kThreshold - 1) from = total(*engine).selections;
    if (pos == kPositions - 1) to = total(*engine).selections;
    const ebb::StepRow row{sequence, static_cast<std::int32_t>(random() % 320), true};
    require(engine->step({&row, 1}));
  }
  const SwapCounters all = total(*engine);
  BOOST_TEST(to - from == 11'624'256U);
  BOOST_TEST(all.stores == 11'067U);
  BOOST_TEST(all.d2h_bytes == all.stores * kWidth * sizeof(float));
  // There a row is 2,048 bytes.
  BOOST_TEST(static_cast<double>(all.stores) * 2048 / 1048576 == 21.615,
             boost::test_tools::tolerance(1e-4));

  // What it calls misses are these two together; 210 of them were demand misses there.
  BOOST_TEST(all.born == 11'067U);
  BOOST_TEST(all.pool_reads == 0U);
  BOOST_TEST(all.evictions == all.born + all.misses - 21 * kSlots);
  BOOST_TEST(all.evictions - all.misses == 147U);
  for (const SwapCounters& c : require(engine->swap_counters())) {
    BOOST_TEST(c.evictions == 7 + c.misses);
  }
  BOOST_TEST_MESSAGE("demand misses: " << all.misses << ", hits: " << all.hits);

  // KV rows. Its two window layers keep every position; ours keep the ring.
  std::map<std::string, std::uint64_t> parts(engine->parts().begin(), engine->parts().end());
  const std::uint64_t row = kWidth * sizeof(float);
  const std::uint64_t ring = parts["window rows"] / row / 43;
  const std::uint64_t rows =
      (parts["window rows"] + parts["chunk slots"] + parts["hca rows"]) / row;
  BOOST_TEST(ring == 128U);
  BOOST_TEST(rows + 2 * (kPositions - ring) == 20'730U);
}
