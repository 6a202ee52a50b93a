#define BOOST_TEST_MODULE hyper
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/hyper.h"

#include "kernels/hyper.h"
#include "tests/kernels/hyper_bench.h"
#include "tests/kernels/run_phases.h"

using namespace ebb;
using namespace ebb::test;

namespace {

const Schedule kSchedule{2, true};

HyperWeights placed(const Connection& c) {
  HyperWeights weights = c.weights();
  weights.fn.data = c.fn.data();
  weights.base = c.base.data();
  weights.scale = c.scale.data();
  return weights;
}

PreOut run_pre(const Connection& c, const Step& step, const Floats& streams) {
  const std::int32_t s = c.n_streams;
  PreOut out{nan_floats(step.n_rows * c.d),
             nan_floats(step.n_rows * s),
             nan_floats(step.n_rows * s * s),
             {}};
  Floats mix = nan_floats(step.n_rows * c.n_mix);
  HcPreArgs a;
  a.step = step.view();
  a.streams = streams.data();
  a.hyper = placed(c);
  a.norm_weight = c.norm.data();
  a.mix = mix.data();
  a.y = out.y.data();
  a.post = out.post.data();
  a.comb = out.comb.data();
  a.n_streams = s;
  a.d = c.d;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_hc_pre(list, a).has_value());
  run_phases(list, kSchedule);
  return out;
}

void run_post(const Step& step, const Floats& o, const Floats& post, const Floats& comb,
              Floats& streams, std::int32_t n_streams, std::int64_t d) {
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_hc_post(list, {step.view(), o.data(), post.data(), comb.data(),
                                        streams.data(), n_streams, d})
                    .has_value());
  run_phases(list, kSchedule);
}

Floats run_head(const Connection& c, const Step& step, const Floats& streams) {
  Floats mix = nan_floats(step.n_out * c.n_streams), y = nan_floats(step.n_out * c.d),
         flat = nan_floats(step.n_out * c.n_streams * c.d);
  HcHeadArgs a;
  a.step = step.view();
  a.streams = streams.data();
  a.hyper = placed(c);
  a.norm_weight = c.norm.data();
  a.mix = mix.data();
  a.flat = flat.data();
  a.y = y.data();
  a.n_streams = c.n_streams;
  a.d = c.d;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_hc_head(list, a).has_value());
  run_phases(list, kSchedule);
  return y;
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

// One list for all backends; it wants the functions above.
#include "tests/kernels/hyper_suite.h"

BOOST_AUTO_TEST_CASE(pre_of_a_row_does_not_depend_on_the_batch) {
  Random random(63);
  const Connection c(random, 4, 128, false, DType::f16);
  Step all;
  all.add_run(0, 0, 130);
  const Floats streams = normal_floats(random, 130 * 512);
  const PreOut want = run_pre(c, all, streams);
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

BOOST_AUTO_TEST_CASE(refuses_mixing_weights_of_the_wrong_shape) {
  Random random(66);
  const Connection c(random, 4, 64, false, DType::f32);
  Step step;
  step.add_run(0, 0, 1);
  Floats any(1024);
  HcPreArgs a{step.view(), any.data(), placed(c),  any.data(), any.data(),
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
