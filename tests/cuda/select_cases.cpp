#define BOOST_TEST_DYN_LINK
#include <algorithm>

#include "kernels/cuda/select.h"
#include "kernels/row_format.h"
#include "tests/cuda/mirror.h"
#include "tests/kernels/select_bench.h"
#include "tests/reference/indexer.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// Steps have room for more rows than they hold.
void run_select(SelectBench& bench, const Step& step) {
  Mirror mirror;
  SelectArgs a = bench.begin(step);
  a.step = mirror.step(step, step.n_rows + step.n_rows / 2 + 1);
  a.q = mirror.put(bench.q);
  a.weight = mirror.put(bench.weight);
  a.keys = mirror.store(bench.keys);
  if (!bench.allowed.empty()) a.allowed = mirror.put(bench.allowed);
  a.ids = mirror.share(bench.ids);
  a.count = mirror.share(bench.count);
  require_cuda(cuda::select(mirror.launch(cuda::select_workspace(a)), a, 0));
  mirror.fetch();
}

}  // namespace

// One list for all backends; it wants the function above.
#include "tests/kernels/select_suite.h"

BOOST_AUTO_TEST_CASE(select_gives_a_row_the_same_choice_in_every_batch) {
  Random random(46);
  for (const auto& [n_heads, d, format] :
       {std::tuple{8, 64, RowFormat::fp4}, {64, 128, RowFormat::f32}, {64, 128, RowFormat::fp8}}) {
    const std::int32_t n_chunks = 3000, n_rows = 300, top_k = 64;
    SelectBench bench(n_heads, d, 4, top_k, format, 2, n_chunks);
    bench.write_keys(random, 2, n_chunks, false);
    Step all;
    all.add_run(1, 4 * n_chunks - 240, 240);
    all.add_run(0, 5000, 59);
    all.add_run(1, 100, 1);
    bench.write_queries(random, all, false);
    run_select(bench, all);
    const auto ids = bench.ids, count = bench.count;
    const Floats q = bench.q, weight = bench.weight;
    for (std::int32_t r = 0; r < n_rows; r += 7) {
      const auto at = static_cast<std::size_t>(r);
      Step one;
      one.add_run(all.seq[at], all.pos[at], 1);
      const std::int64_t width = std::int64_t{n_heads} * d;
      bench.q.assign(q.begin() + r * width, q.begin() + (r + 1) * width);
      bench.weight.assign(weight.begin() + r * n_heads, weight.begin() + (r + 1) * n_heads);
      run_select(bench, one);
      BOOST_REQUIRE(bench.count[0] == count[at]);
      BOOST_REQUIRE(
          std::equal(bench.ids.begin(), bench.ids.begin() + count[at], ids.begin() + r * top_k));
    }
  }
}
