#define BOOST_TEST_MODULE norm
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/norm.h"

#include <boost/test/unit_test.hpp>

#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/norm_rope.h"

using namespace ebb;
using namespace ebb::test;

namespace {

Floats norm_rows(const Floats& x, const Floats& weight, std::int32_t n_rows, std::int64_t d,
                 Schedule schedule = {}) {
  Floats y = nan_floats(n_rows * d);
  RmsNormArgs a;
  a.n_rows = &n_rows;
  a.max_rows = n_rows;
  a.x = x.data();
  a.weight = weight.data();
  a.y = y.data();
  a.d = d;
  a.eps = 1e-6f;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_rms_norm(list, a).has_value());
  run_phases(list, schedule);
  return y;
}

std::int32_t argmax_of(const Floats& logits) {
  const std::int32_t n_rows = 1;
  std::int32_t id = -1;
  ArgmaxArgs a;
  a.n_rows = &n_rows;
  a.max_rows = 1;
  a.logits = logits.data();
  a.n = static_cast<std::int64_t>(logits.size());
  a.ids = &id;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_argmax(list, a).has_value());
  run_phases(list);
  return id;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rms_norm_equals_the_reference_for_any_width) {
  Random random(1);
  for (const std::int64_t d : {1, 7, 16, 96, 129, 192, 512, 4096}) {
    const std::int32_t n_rows = 3;
    const Floats x = normal_floats(random, n_rows * d, 3), weight = normal_floats(random, d, 1, 1);
    const Floats y = norm_rows(x, weight, n_rows, d);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      const auto want = reference::rms_norm(to_double(&x[static_cast<std::size_t>(r * d)], d),
                                            to_double(weight), 1e-6);
      BOOST_TEST(largest_error(&y[static_cast<std::size_t>(r * d)], want) < 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_of_a_row_does_not_depend_on_the_batch) {
  Random random(2);
  const std::int64_t d = 192;
  const Floats x = normal_floats(random, 130 * d), weight = normal_floats(random, d);
  const Floats all = norm_rows(x, weight, 130, d, {3, true});
  for (std::int64_t r = 0; r < 130; ++r) {
    const Floats row(x.begin() + r * d, x.begin() + (r + 1) * d);
    const Floats alone = norm_rows(row, weight, 1, d);
    BOOST_REQUIRE(std::memcmp(alone.data(), &all[static_cast<std::size_t>(r * d)],
                              static_cast<std::size_t>(d) * sizeof(float)) == 0);
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_works_in_place) {
  Random random(3);
  Floats x = normal_floats(random, 40);
  const Floats weight = normal_floats(random, 40), apart = norm_rows(x, weight, 1, 40);
  const std::int32_t n_rows = 1;
  RmsNormArgs a{&n_rows, 1, x.data(), weight.data(), x.data(), 40, 1e-6f};
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_rms_norm(list, a).has_value());
  run_phases(list);
  BOOST_TEST(x == apart);
}

BOOST_AUTO_TEST_CASE(rms_norm_refuses_null_pointers_and_empty_rows) {
  cpu::PhaseList list;
  RmsNormArgs a;
  BOOST_TEST(!cpu::add_rms_norm(list, a).has_value());
  const std::int32_t n_rows = 1;
  float value = 1;
  a = {&n_rows, 1, &value, &value, &value, 0, 1e-6f};
  BOOST_TEST(!cpu::add_rms_norm(list, a).has_value());
  BOOST_TEST(list.empty());
}

BOOST_AUTO_TEST_CASE(argmax_takes_the_lower_id_of_equals) {
  for (const std::size_t n : {1u, 5u, 16u, 37u, 200u}) {
    for (std::size_t at = 0; at < n; ++at) {
      Floats logits(n, -2.0f);
      logits[at] = 3;
      logits[n - 1] = 3;
      BOOST_TEST(argmax_of(logits) == static_cast<std::int32_t>(at));
    }
  }
}

BOOST_AUTO_TEST_CASE(argmax_never_chooses_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  Floats logits(50, nan);
  BOOST_TEST(argmax_of(logits) == 0);
  logits[33] = -infinity;
  BOOST_TEST(argmax_of(logits) == 33);
  logits[49] = -5;
  BOOST_TEST(argmax_of(logits) == 49);
  logits[17] = infinity;
  BOOST_TEST(argmax_of(logits) == 17);
}
