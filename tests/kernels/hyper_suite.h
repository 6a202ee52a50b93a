#pragma once

#include "tests/kernels/hyper_bench.h"

// The cases of hyper-connections, for a test program that has said before how its backend does
// them:
//   PreOut run_pre(const Connection&, const Step&, const Floats& streams)
//   void run_post(const Step&, const Floats& o, post, comb, Floats& streams, n_streams, d)
//   Floats run_head(const Connection&, const Step&, const Floats& streams)   [n_out, d]

namespace ebb::test {

BOOST_AUTO_TEST_CASE(hc_pre_equals_the_reference_for_every_type_and_stream_count) {
  Random random(61);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 96}, {8, 32}, {3, 192}, {4, 4096}}) {
      const Connection c(random, s, d, false, type);
      Step step;
      step.add_run(0, 0, 5);
      const Floats streams = normal_floats(random, step.n_rows * s * d, 2);
      const PreOut got = run_pre(c, step, streams);
      for (std::int64_t r = 0; r < step.n_rows; ++r) {
        check_row(c, got, r, row_of(streams, r, s * d));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(one_stream_a_hundred_times_larger_keeps_the_small_ones_exact) {
  Random random(62);
  const Connection c(random, 4, 4096, false, DType::f16);
  Step step;
  step.add_run(0, 0, 1);
  Floats streams = normal_floats(random, 4 * 4096);
  for (std::size_t i = 4096; i < 8192; ++i) streams[i] *= 100;
  const PreOut got = run_pre(c, step, streams);
  check_row(c, got, 0, to_double(streams));
}

BOOST_AUTO_TEST_CASE(hc_post_sums_over_the_source_stream) {
  Random random(64);
  for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 97}, {8, 5}}) {
    Step step;
    step.add_run(0, 0, 3);
    const Floats o = normal_floats(random, 3 * d), post = normal_floats(random, 3 * s),
                 comb = normal_floats(random, 3 * s * s),
                 before = normal_floats(random, std::int64_t{3} * s * d);
    Floats streams = before;
    run_post(step, o, post, comb, streams, s, d);
    for (std::int64_t r = 0; r < 3; ++r) {
      const reference::HyperMix mix{{}, row_of(post, r, s), row_of(comb, r, s * s)};
      const auto want = reference::hyper_post(row_of(o, r, d), row_of(before, r, s * d), mix);
      BOOST_TEST(largest_error(&streams[static_cast<std::size_t>(r * s * d)], want) < 2e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(hc_head_serves_the_out_rows_only) {
  Random random(65);
  const Connection c(random, 4, 192, true, DType::f32);
  Step step;
  step.add_run(0, 0, 9);
  step.out_row = {8, 2};
  step.n_out = 2;
  Floats streams = normal_floats(random, 9 * 4 * 192);
  for (std::size_t i = 0; i < 2 * 768; ++i) streams[i] = std::numeric_limits<float>::quiet_NaN();
  const Floats y = run_head(c, step, streams);
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto row = row_of(streams, step.out_row[static_cast<std::size_t>(i)], 768);
    const auto want =
        reference::rms_norm(reference::hyper_head(c.exact, row, c.params), to_double(c.norm), 1e-6);
    BOOST_TEST(largest_error(&y[static_cast<std::size_t>(i * 192)], want) < 1e-5);
  }
}

}  // namespace ebb::test
