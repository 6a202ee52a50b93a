#define BOOST_TEST_MODULE select
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/select.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/select_bench.h"
#include "tests/kernels/step.h"
#include "tests/reference/indexer.h"

using namespace ebb;
using namespace ebb::test;

namespace {

void run_select_by(Schedule schedule, SelectBench& bench, const Step& step) {
  SelectArgs a = bench.begin(step);
  a.step = step.view();
  a.q = bench.q.data();
  a.weight = bench.weight.data();
  a.keys = bench.keys.store;
  if (!bench.allowed.empty()) a.allowed = bench.allowed.data();
  a.ids = bench.ids.data();
  a.count = bench.count.data();
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_select(list, a).has_value());
  run_phases(list, schedule);
}
void run_select(SelectBench& bench, const Step& step) { run_select_by({2, true}, bench, step); }

}  // namespace

// One list for all backends; it wants the function above.
#include "tests/kernels/select_suite.h"

BOOST_AUTO_TEST_CASE(the_choice_does_not_depend_on_batch_workers_or_order) {
  Random random(46);
  const std::int32_t n_chunks = 2000, n_rows = 70;
  SelectBench bench(8, 64, 4, 64, RowFormat::fp4, 2, n_chunks);
  bench.write_keys(random, 2, n_chunks, false);
  Step all;
  all.add_run(1, 4 * n_chunks - 40, 40);
  all.add_run(0, 5000, 29);
  all.add_run(1, 100, 1);
  bench.write_queries(random, all, false);
  run_select(bench, all);
  const auto ids = bench.ids, count = bench.count;
  run_select_by({4, true}, bench, all);
  BOOST_TEST(bench.ids == ids);
  const Floats q = bench.q, weight = bench.weight;
  for (std::int32_t r = 0; r < n_rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    Step one;
    one.add_run(all.seq[at], all.pos[at], 1);
    bench.q.assign(q.begin() + r * 8 * 64, q.begin() + (r + 1) * 8 * 64);
    bench.weight.assign(weight.begin() + r * 8, weight.begin() + (r + 1) * 8);
    run_select_by({2, r % 2 == 1}, bench, one);
    BOOST_REQUIRE(bench.count[0] == count[at]);
    BOOST_REQUIRE(std::equal(bench.ids.begin(), bench.ids.end(), ids.begin() + r * 64));
  }
}

BOOST_AUTO_TEST_CASE(refuses_keys_of_the_wrong_size) {
  SelectBench bench(1, 128, 4, 8, RowFormat::fp8, 1, 8);
  Step step;
  step.add_run(0, 3, 1);
  Floats values(128);
  std::int32_t ids[8];
  SelectArgs a;
  a.step = step.view();
  a.q = a.weight = values.data();
  a.keys = bench.keys.store;
  a.n_heads = 1;
  a.d = 128;
  a.ratio = 4;
  a.top_k = 8;
  a.ids = a.count = ids;
  cpu::PhaseList list;
  BOOST_TEST(cpu::add_select(list, a).has_value());
  a.keys.row_bytes = 128;
  BOOST_TEST(!cpu::add_select(list, a).has_value());
  a.keys.row_bytes = 132;
  a.top_k = 0;
  BOOST_TEST(!cpu::add_select(list, a).has_value());
}
