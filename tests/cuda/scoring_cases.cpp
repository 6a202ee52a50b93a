#define BOOST_TEST_DYN_LINK
#include "tests/kernels/scoring_cases.h"

#include "kernels/cuda/rows.h"
#include "kernels/cuda/scoring.h"
#include "tests/cuda/mirror.h"
#include "tests/kernels/rounding_cases.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// Steps have room for more rows than they hold.
std::int32_t roomy(const Step& step) { return step.n_rows + step.n_rows / 2 + 1; }

void run_keep(KeepBench& bench, const Step& step) {
  Mirror mirror;
  const StepView view = mirror.step(step, roomy(step));
  require_cuda(cuda::keep_rows(mirror.launch(0),
                               {view, mirror.put(bench.x), bench.d, mirror.share(bench.y)}));
  mirror.fetch();
}

void run_score(ScoreBench& bench, const Step& step) {
  Mirror mirror;
  ScoreArgs a = bench.begin_scores(step);
  a.step = mirror.step(step, roomy(step));
  a.q = mirror.put(bench.q);
  a.weight = mirror.put(bench.weight);
  a.keys = mirror.store(bench.keys);
  a.logits = mirror.share(bench.logits);
  require_cuda(cuda::score(mirror.launch(0), a, 0));
  mirror.fetch();
}

Floats run_angles(const Step& step, const std::vector<double>& frequency, std::int32_t offset) {
  Mirror mirror;
  const auto n_pairs = static_cast<std::int32_t>(frequency.size());
  Floats table = nan_floats(step.n_rows * n_pairs * 2);
  cuda::RopeTables tables;
  tables.n = 1;
  tables.tables[0] = {mirror.step(step, roomy(step)),
                      mirror.put(frequency),
                      n_pairs,
                      offset,
                      mirror.share(table),
                      true};
  require_cuda(cuda::rope_tables(mirror.launch(0), tables));
  mirror.fetch();
  return table;
}

void run_heads(HeadsBench& bench, const Step& step) {
  Mirror mirror;
  cuda::RowGroup group;
  group.has_heads = true;
  group.heads = {
      mirror.step(step, roomy(step)), mirror.share(bench.x), bench.n_heads, bench.d, false, 0,
      mirror.put(bench.table),        bench.n_pairs,         bench.rounding};
  require_cuda(cuda::row_group(mirror.launch(0), group));
  mirror.fetch();
}

/// A step of one chunk, at its start.
void run_rows(RowsBench& bench, const Step& step) {
  Mirror mirror;
  Floats state_kv(static_cast<std::size_t>(16 * bench.d)), state_gate = state_kv;
  cuda::RowGroup group;
  group.n_compressions = 1;
  CompressArgs& chunk = group.compress[0];
  chunk.step = mirror.step(step, roomy(step));
  chunk.kv = mirror.put(bench.series);
  chunk.gate = mirror.put(bench.gate);
  chunk.ape = mirror.put(bench.ape);
  chunk.state_kv = mirror.share(state_kv);
  chunk.state_gate = mirror.share(state_gate);
  chunk.ratio = 4;
  chunk.d = bench.d;
  chunk.overlap = 1;
  chunk.norm_weight = mirror.put(bench.norm);
  chunk.cos_sin = mirror.put(bench.table);
  chunk.n_pairs = bench.n_pairs;
  chunk.rounding = bench.rounding;
  chunk.rows = mirror.share(bench.chunks);
  group.has_append = true;
  group.append = {chunk.step, mirror.put(bench.kv), chunk.norm_weight,
                  0,          chunk.cos_sin,        bench.n_pairs,
                  bench.d,    bench.rounding,       mirror.share(bench.ring)};
  require_cuda(cuda::row_group(mirror.launch(0), group));
  mirror.fetch();
}

}  // namespace

// One list for all backends; it wants the functions above.
#include "tests/kernels/scoring_suite.h"

// The largest scorer: more chunks than blocks of the device take at once, most heads.
BOOST_AUTO_TEST_CASE(scores_of_a_long_context_equal_the_reference) {
  Random random(81);
  const std::int32_t n_chunks = 65536;
  for (const RowFormat format : {RowFormat::f32, RowFormat::fp8, RowFormat::fp4}) {
    ScoreBench bench(128, 128, 4, format, 1, n_chunks);
    bench.weight_scale = 1.0f / 128;
    bench.write_keys(random, 1, n_chunks, false);
    Step step;
    step.add_run(0, 4 * n_chunks - 1, 1);
    bench.write_queries(random, step, false);
    run_score(bench, step);
    // Every 37th in double.
    for (std::int32_t c = 0; c < n_chunks; c += 37) {
      const auto key = to_double(&bench.plain_keys[static_cast<std::size_t>(c) * 128], 128);
      auto weight = to_double(bench.weight);
      for (double& w : weight) w *= bench.weight_scale;
      const double want = reference::index_score(to_double(bench.q), weight, key);
      BOOST_REQUIRE(largest_error(&bench.logits[static_cast<std::size_t>(c)], {want}) < 1e-4);
    }
  }
}
