#define BOOST_TEST_MODULE route
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/route.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "kernels/route.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/moe.h"

using namespace ebb;
using namespace ebb::test;

namespace {

struct Choice {
  std::vector<std::int32_t> ids;
  Floats weights;
};

Choice route(const Step& step, const Floats& logits, const Floats& bias,
             const std::vector<std::int32_t>& table, std::int32_t n_experts, std::int32_t n_used,
             float scale = 1.5f, bool normalise = true) {
  Choice choice;
  choice.ids.assign(static_cast<std::size_t>(step.n_rows * n_used), -1);
  choice.weights = nan_floats(step.n_rows * n_used);
  RouteArgs a;
  a.step = step.view();
  a.logits = logits.data();
  a.bias = bias.empty() ? nullptr : bias.data();
  a.table = table.empty() ? nullptr : table.data();
  a.n_experts = n_experts;
  a.n_used = n_used;
  a.normalise = normalise;
  a.scale = scale;
  a.ids = choice.ids.data();
  a.weights = choice.weights.data();
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_route(list, a).has_value());
  run_phases(list, {2, true});
  return choice;
}

}  // namespace

BOOST_AUTO_TEST_CASE(affinities_have_the_published_values) {
  BOOST_TEST(std::fabs(route_affinity(0) - 0.8325546) < 1e-7);
  BOOST_TEST(std::fabs(route_affinity(1) - 1.1459763) < 2e-7);
  BOOST_TEST(std::fabs(route_affinity(-5) - 0.0819472) < 1e-7);
  BOOST_TEST(route_affinity(25) == 5);
}

BOOST_AUTO_TEST_CASE(affinities_neither_overflow_nor_vanish) {
  BOOST_TEST(route_affinity(100) == 10);
  BOOST_TEST(route_affinity(-80) > 0);
  BOOST_TEST(std::isfinite(route_affinity(-100)));
  BOOST_TEST(std::isfinite(route_affinity(3e38f)));
}

BOOST_AUTO_TEST_CASE(chosen_experts_and_weights_equal_a_full_sort) {
  Random random(11);
  for (const auto& [n_experts, n_used] : {std::pair{1, 1}, {8, 2}, {33, 6}, {256, 6}, {256, 64}}) {
    Step step;
    step.add_run(0, 0, 37);
    const Floats logits = normal_floats(random, step.n_rows * n_experts, 2);
    const Floats bias = normal_floats(random, n_experts, 0.3f);
    const Choice got = route(step, logits, bias, {}, n_experts, n_used);
    for (std::int32_t r = 0; r < step.n_rows; ++r) {
      std::vector<double> p, score;
      for (std::int32_t e = 0; e < n_experts; ++e) {
        const float logit = logits[static_cast<std::size_t>(r * n_experts + e)];
        p.push_back(std::sqrt(reference::softplus(logit)));
        score.push_back(p.back() + bias[static_cast<std::size_t>(e)]);
      }
      std::vector<std::int32_t> order(static_cast<std::size_t>(n_experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
      });
      double sum = 0;
      for (std::int32_t i = 0; i < n_used; ++i) sum += p[static_cast<std::size_t>(order[i])];
      float total = 0;
      for (std::int32_t i = 0; i < n_used; ++i) {
        const auto at = static_cast<std::size_t>(r * n_used + i);
        BOOST_REQUIRE(got.ids[at] == order[static_cast<std::size_t>(i)]);
        const double want = p[static_cast<std::size_t>(order[i])] / sum * 1.5;
        BOOST_REQUIRE(std::fabs(got.weights[at] - want) < 1e-6);
        total += got.weights[at];
      }
      BOOST_TEST(std::fabs(total - 1.5f) < 2e-6f);
    }
  }
}

BOOST_AUTO_TEST_CASE(ties_go_to_the_lower_id_and_nan_is_last) {
  Step step;
  step.add_run(0, 0, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Choice tie = route(step, Floats(10, 1.0f), Floats(10, 0.0f), {}, 10, 3);
  BOOST_TEST(tie.ids == (std::vector<std::int32_t>{0, 1, 2}));
  const Choice some = route(step, {nan, -9, nan, 0, -100}, Floats(5, 0.0f), {}, 5, 3);
  BOOST_TEST(some.ids == (std::vector<std::int32_t>{3, 1, 4}));
  const Choice none = route(step, Floats(5, nan), Floats(5, 0.0f), {}, 5, 3);
  BOOST_TEST(none.ids == (std::vector<std::int32_t>{0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(the_bias_chooses_but_does_not_weigh) {
  Step step;
  step.add_run(0, 0, 1);
  const Choice got = route(step, {0, 0, 0, 0}, {0, 5, 0, 9}, {}, 4, 2);
  BOOST_TEST(got.ids == (std::vector<std::int32_t>{3, 1}));
  BOOST_TEST(got.weights == (Floats{0.75f, 0.75f}));
}

BOOST_AUTO_TEST_CASE(a_table_routes_by_token_and_the_logits_still_weigh) {
  Step step;
  step.add_run(0, 0, 2);
  step.token = {1, 0};
  const std::vector<std::int32_t> table{2, 0, 3, 1};
  const Floats logits{0, 1, 2, 3, 3, 2, 1, 0};
  const Choice got = route(step, logits, {}, table, 4, 2);
  BOOST_TEST(got.ids == (std::vector<std::int32_t>{3, 1, 2, 0}));
  const double p3 = std::sqrt(reference::softplus(3)), p1 = std::sqrt(reference::softplus(1));
  BOOST_TEST(std::fabs(got.weights[0] - 1.5 * p3 / (p3 + p1)) < 1e-6);
  BOOST_TEST(std::fabs(got.weights[2] - 1.5 * p1 / (p3 + p1)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(a_tiny_sum_is_held_at_its_floor_and_normalising_is_optional) {
  Step step;
  step.add_run(0, 0, 1);
  const Choice tiny = route(step, {-100, -100}, {0, 0}, {}, 2, 2);
  BOOST_TEST(std::isfinite(tiny.weights[0]));
  BOOST_TEST(tiny.weights[0] < 1e-12f);
  const Choice plain = route(step, {25, -100}, {0, 0}, {}, 2, 1, 2.0f, false);
  BOOST_TEST(plain.weights[0] == 10);
}

BOOST_AUTO_TEST_CASE(refuses_more_experts_than_there_are_and_two_ways_of_choosing) {
  Step step;
  step.add_run(0, 0, 1);
  Floats logits(4), bias(4), weights(8);
  std::vector<std::int32_t> table(4), ids(8);
  RouteArgs a;
  a.step = step.view();
  a.logits = logits.data();
  a.bias = bias.data();
  a.n_experts = 4;
  a.n_used = 5;
  a.ids = ids.data();
  a.weights = weights.data();
  cpu::PhaseList list;
  BOOST_TEST(!cpu::add_route(list, a).has_value());
  a.n_used = 2;
  a.table = table.data();
  BOOST_TEST(!cpu::add_route(list, a).has_value());
  a.bias = nullptr;
  BOOST_TEST(cpu::add_route(list, a).has_value());
}
