#define BOOST_TEST_MODULE hyper
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/hyper.h"

#include <boost/test/unit_test.hpp>

#include "kernels/hyper.h"
#include "kernels/numeric.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/hyper.h"
#include "tests/reference/norm_rope.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// Weights of one hyper-connection, in both precisions.
struct Connection {
  std::int32_t n_streams, n_mix;
  std::int64_t d;
  std::vector<std::byte> fn;
  Floats base, scale, norm;
  HyperWeights weights;
  reference::HyperWeights exact;
  reference::HyperParams params;

  Connection(Random& random, std::int32_t streams, std::int64_t d_, bool head, DType type)
      : n_streams(streams), n_mix(head ? streams : (2 + streams) * streams), d(d_) {
    const std::int64_t n_in = n_streams * d;
    Floats values = normal_floats(random, n_mix * n_in, 0.1f);
    fn.resize(static_cast<std::size_t>(n_mix * row_bytes(type, n_in)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type == DType::f32) {
        std::memcpy(&fn[4 * i], &values[i], 4);
      } else {
        const bool f16 = type == DType::f16;
        const std::uint16_t half = f16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
        values[i] = f16 ? f16_to_float(half) : bf16_to_float(half);
        std::memcpy(&fn[2 * i], &half, 2);
      }
    }
    base = normal_floats(random, n_mix);
    scale = normal_floats(random, head ? 1 : 3, 0.2f, 1);
    norm = normal_floats(random, d, 0.2f, 1);
    weights = {{fn.data(), type, n_in, n_mix, 1}, base.data(), scale.data(), 1e-6f, 1e-6f, 20};
    exact.fn = {n_mix, n_in, to_double(values)};
    exact.scale = to_double(scale);
    exact.base = to_double(base);
    params.n_streams = n_streams;
  }
};

struct PreOut {
  Floats y, post, comb;
};

PreOut run_pre(const Connection& c, const Step& step, const Floats& streams,
               Schedule schedule = {}) {
  const std::int32_t s = c.n_streams;
  PreOut out{nan_floats(step.n_rows * c.d), nan_floats(step.n_rows * s),
             nan_floats(step.n_rows * s * s)};
  Floats mix = nan_floats(step.n_rows * c.n_mix);
  HcPreArgs a;
  a.step = step.view();
  a.streams = streams.data();
  a.hyper = c.weights;
  a.norm_weight = c.norm.data();
  a.mix = mix.data();
  a.y = out.y.data();
  a.post = out.post.data();
  a.comb = out.comb.data();
  a.n_streams = s;
  a.d = c.d;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_hc_pre(list, a).has_value());
  run_phases(list, schedule);
  return out;
}

std::vector<double> row_of(const Floats& x, std::int64_t row, std::int64_t width) {
  return to_double(&x[static_cast<std::size_t>(row * width)], width);
}

}  // namespace

BOOST_AUTO_TEST_CASE(sinkhorn_has_the_published_values) {
  const float logits[4][4] = {{2, 0, 0, -1}, {0, 3, 0, 0}, {1, 0, 2, 0}, {0, 0, -1, 4}};
  const double want[4][4] = {{.742128, .081302, .157895, .019159},
                             {.051706, .840657, .081286, .026811},
                             {.173635, .051707, .742002, .033122},
                             {.032531, .026333, .018816, .920908}};
  const double once[4] = {.726298, .095547, .134404, .033604};
  float c[4][4], c1[4][4];
  std::memcpy(c, logits, sizeof(c));
  std::memcpy(c1, logits, sizeof(c1));
  sinkhorn<4>(c, 20, 1e-6f);
  sinkhorn<4>(c1, 1, 1e-6f);
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < 4; ++k) BOOST_TEST(std::fabs(c[j][k] - want[j][k]) < 1e-6);
    BOOST_TEST(std::fabs(c1[0][j] - once[j]) < 1e-6);
    float column = 0;
    for (int i = 0; i < 4; ++i) column += c[i][j];
    BOOST_TEST(std::fabs(column - 1) < 3e-6f);
  }
}

BOOST_AUTO_TEST_CASE(post_weights_reach_two_and_have_no_eps) {
  BOOST_TEST(hc_post_weight(0, 1, 0) == 1);
  BOOST_TEST(hc_post_weight(50, 1, 0) == 2);
  BOOST_TEST(hc_post_weight(-200, 1, 0) == 0);
  BOOST_TEST(hc_pre_weight(-200, 1, 0, 1e-6f) == 1e-6f);
}

BOOST_AUTO_TEST_CASE(pre_equals_the_reference_for_every_type_and_stream_count) {
  Random random(61);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 96}, {8, 32}, {3, 192}}) {
      const Connection c(random, s, d, false, type);
      Step step;
      step.add_run(0, 0, 5);
      const Floats streams = normal_floats(random, step.n_rows * s * d, 2);
      const PreOut got = run_pre(c, step, streams, {2, true});
      for (std::int64_t r = 0; r < step.n_rows; ++r) {
        const auto want = reference::hyper_pre(c.exact, row_of(streams, r, s * d), c.params);
        const auto y = reference::rms_norm(want.x, to_double(c.norm), 1e-6);
        BOOST_TEST(largest_error(&got.y[static_cast<std::size_t>(r * d)], y) < 3e-5);
        BOOST_TEST(largest_error(&got.post[static_cast<std::size_t>(r * s)], want.post) < 1e-5);
        BOOST_TEST(largest_error(&got.comb[static_cast<std::size_t>(r * s * s)], want.comb) < 1e-5);
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
  const auto want = reference::hyper_pre(c.exact, to_double(streams), c.params);
  BOOST_TEST(largest_error(got.comb.data(), want.comb) < 1e-5);
  const auto y = reference::rms_norm(want.x, to_double(c.norm), 1e-6);
  BOOST_TEST(largest_error(got.y.data(), y) < 3e-5);
}

BOOST_AUTO_TEST_CASE(pre_of_a_row_does_not_depend_on_the_batch) {
  Random random(63);
  const Connection c(random, 4, 128, false, DType::f16);
  Step all;
  all.add_run(0, 0, 130);
  const Floats streams = normal_floats(random, 130 * 512);
  const PreOut want = run_pre(c, all, streams, {3, true});
  for (const std::int32_t n : {1, 2, 7, 33}) {
    for (std::int32_t first = 0; first + n <= 130; first += n + 11) {
      Step part;
      part.add_run(0, first, n);
      const PreOut got =
          run_pre(c, part, {streams.begin() + first * 512, streams.begin() + (first + n) * 512});
      BOOST_REQUIRE(std::equal(got.y.begin(), got.y.end(), want.y.begin() + first * 128));
      BOOST_REQUIRE(std::equal(got.comb.begin(), got.comb.end(), want.comb.begin() + first * 16));
    }
  }
}

BOOST_AUTO_TEST_CASE(post_sums_over_the_source_stream) {
  Random random(64);
  for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 97}, {8, 5}}) {
    Step step;
    step.add_run(0, 0, 3);
    const Floats o = normal_floats(random, 3 * d), post = normal_floats(random, 3 * s),
                 comb = normal_floats(random, 3 * s * s),
                 before = normal_floats(random, std::int64_t{3} * s * d);
    Floats streams = before;
    HcPostArgs a{step.view(), o.data(), post.data(), comb.data(), streams.data(), s, d};
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_hc_post(list, a).has_value());
    run_phases(list, {2, true});
    for (std::int64_t r = 0; r < 3; ++r) {
      const reference::HyperMix mix{{}, row_of(post, r, s), row_of(comb, r, s * s)};
      const auto want = reference::hyper_post(row_of(o, r, d), row_of(before, r, s * d), mix);
      BOOST_TEST(largest_error(&streams[static_cast<std::size_t>(r * s * d)], want) < 2e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(head_serves_the_out_rows_only) {
  Random random(65);
  const Connection c(random, 4, 192, true, DType::f32);
  Step step;
  step.add_run(0, 0, 9);
  step.out_row = {8, 2};
  step.n_out = 2;
  Floats streams = normal_floats(random, 9 * 4 * 192);
  for (std::size_t i = 0; i < 2 * 768; ++i) streams[i] = std::numeric_limits<float>::quiet_NaN();
  Floats mix = nan_floats(2 * 4), flat = nan_floats(2 * 768), y = nan_floats(2 * 192);
  HcHeadArgs a;
  a.step = step.view();
  a.streams = streams.data();
  a.hyper = c.weights;
  a.norm_weight = c.norm.data();
  a.mix = mix.data();
  a.flat = flat.data();
  a.y = y.data();
  a.n_streams = 4;
  a.d = 192;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_hc_head(list, a).has_value());
  run_phases(list, {2, true});
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto row = row_of(streams, step.out_row[static_cast<std::size_t>(i)], 768);
    const auto want =
        reference::rms_norm(reference::hyper_head(c.exact, row, c.params), to_double(c.norm), 1e-6);
    BOOST_TEST(largest_error(&y[static_cast<std::size_t>(i * 192)], want) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(refuses_mixing_weights_of_the_wrong_shape) {
  Random random(66);
  Connection c(random, 4, 64, false, DType::f32);
  Step step;
  step.add_run(0, 0, 1);
  Floats any(1024);
  HcPreArgs a{step.view(), any.data(), c.weights,  any.data(), any.data(),
              any.data(),  any.data(), any.data(), 4,          64};
  cpu::PhaseList list;
  a.hyper.fn.n_out = 23;
  BOOST_TEST(!cpu::add_hc_pre(list, a).has_value());
  a.hyper.fn.n_out = 24;
  a.hyper.fn.n_in = 255;
  BOOST_TEST(!cpu::add_hc_pre(list, a).has_value());
  a.hyper.fn.n_in = 256;
  BOOST_TEST(cpu::add_hc_pre(list, a).has_value());
  a.n_streams = 9;
  BOOST_TEST(!cpu::add_hc_pre(list, a).has_value());
}
