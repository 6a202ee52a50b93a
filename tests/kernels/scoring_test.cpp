#define BOOST_TEST_MODULE scoring
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/scoring.h"

#include <boost/test/unit_test.hpp>

#include "kernels/cpu/compress.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/rows.h"
#include "tests/kernels/rounding_cases.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/scoring_cases.h"

using namespace ebb;
using namespace ebb::test;

namespace {

const Schedule kSchedule{2, true};

void run_keep(KeepBench& bench, const Step& step) {
  cpu::PhaseList list;
  BOOST_REQUIRE(
      cpu::add_keep_rows(list, {step.view(), bench.x.data(), bench.d, bench.y.data()}).has_value());
  run_phases(list, kSchedule);
}

void run_score(ScoreBench& bench, const Step& step) {
  ScoreArgs a = bench.begin_scores(step);
  a.step = step.view();
  a.q = bench.q.data();
  a.weight = bench.weight.data();
  a.keys = bench.keys.store;
  a.logits = bench.logits.data();
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_score(list, a).has_value());
  run_phases(list, kSchedule);
}

Floats run_angles(const Step& step, const std::vector<double>& frequency, std::int32_t offset) {
  const auto n_pairs = static_cast<std::int32_t>(frequency.size());
  Floats table = nan_floats(step.n_rows * n_pairs * 2);
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_rope_table(
                    list, {step.view(), frequency.data(), n_pairs, offset, table.data(), true})
                    .has_value());
  run_phases(list);
  return table;
}

void run_heads(HeadsBench& bench, const Step& step) {
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_heads(list, {step.view(), bench.x.data(), bench.n_heads, bench.d, false, 0,
                                      bench.table.data(), bench.n_pairs, bench.rounding})
                    .has_value());
  run_phases(list, kSchedule);
}

/// A step of one chunk, at its start.
void run_rows(RowsBench& bench, const Step& step) {
  Floats state_kv(static_cast<std::size_t>(16 * bench.d)), state_gate = state_kv;
  CompressArgs chunk;
  chunk.step = step.view();
  chunk.kv = bench.series.data();
  chunk.gate = bench.gate.data();
  chunk.ape = bench.ape.data();
  chunk.state_kv = state_kv.data();
  chunk.state_gate = state_gate.data();
  chunk.ratio = 4;
  chunk.d = bench.d;
  chunk.overlap = 1;
  chunk.norm_weight = bench.norm.data();
  chunk.cos_sin = bench.table.data();
  chunk.n_pairs = bench.n_pairs;
  chunk.rounding = bench.rounding;
  chunk.rows = bench.chunks.store;
  cpu::PhaseList list;
  BOOST_REQUIRE(
      cpu::add_append(list, {step.view(), bench.kv.data(), bench.norm.data(), 0, bench.table.data(),
                             bench.n_pairs, bench.d, bench.rounding, bench.ring.store})
          .has_value());
  BOOST_REQUIRE(cpu::add_compress(list, chunk).has_value());
  run_phases(list, kSchedule);
}

}  // namespace

// One list for all backends; it wants the functions above.
#include "tests/kernels/scoring_suite.h"

BOOST_AUTO_TEST_CASE(refuses_what_does_not_fit) {
  Step step;
  step.add_run(0, 3, 1);
  step.keep = {0};
  Floats x(128);
  cpu::PhaseList list;
  KeepRowsArgs keep{step.view(), x.data(), 8, x.data()};
  BOOST_TEST(cpu::add_keep_rows(list, keep).has_value());
  keep.d = 0;
  BOOST_TEST(!cpu::add_keep_rows(list, keep).has_value());
  keep.d = 8;
  keep.step.keep = nullptr;
  BOOST_TEST(!cpu::add_keep_rows(list, keep).has_value());

  ScoreBench bench(1, 128, 4, RowFormat::fp8, 1, 8);
  ScoreArgs a = bench.begin_scores(step);
  a.step = step.view();
  a.q = a.weight = x.data();
  a.keys = bench.keys.store;
  a.logits = bench.logits.data();
  BOOST_TEST(cpu::add_score(list, a).has_value());
  a.stride = 7;
  BOOST_TEST(!cpu::add_score(list, a).has_value());
  a.stride = 8;
  a.keys.row_bytes = 128;
  BOOST_TEST(!cpu::add_score(list, a).has_value());
  a.keys.row_bytes = 132;
  a.logits = nullptr;
  BOOST_TEST(!cpu::add_score(list, a).has_value());
}
