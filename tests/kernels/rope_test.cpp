#define BOOST_TEST_MODULE rope
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/rope.h"

#include <boost/test/unit_test.hpp>

#include "kernels/numeric.h"
#include "kernels/rope.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/indexer.h"
#include "tests/reference/norm_rope.h"
#include "tests/reference/numeric.h"

using namespace ebb;
using namespace ebb::test;

namespace {

const RopeScaling kCompressed{160000, 16, 65536, 32, 1};

std::vector<double> frequencies(const RopeScaling& scaling, std::int32_t n_pairs) {
  std::vector<double> f(static_cast<std::size_t>(n_pairs));
  rope_frequencies(scaling, n_pairs, f.data());
  return f;
}

Floats make_table(const Step& step, const std::vector<double>& f, std::int32_t offset = 0) {
  const auto n_pairs = static_cast<std::int32_t>(f.size());
  Floats table = nan_floats(step.n_rows * n_pairs * 2);
  RopeTableArgs a;
  a.step = step.view();
  a.frequency = f.data();
  a.n_pairs = n_pairs;
  a.offset = offset;
  a.cos_sin = table.data();
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_rope_table(list, a).has_value());
  run_phases(list);
  return table;
}

struct HeadShape {
  std::int32_t n_heads, d, n_pairs;
  bool normalise;
  Rounding rounding;
};

Floats run_heads(const Step& step, Floats x, const HeadShape& shape, const Floats& table,
                 Schedule schedule = {}) {
  HeadsArgs a;
  a.step = step.view();
  a.x = x.data();
  a.n_heads = shape.n_heads;
  a.d = shape.d;
  a.normalise = shape.normalise;
  a.eps = 1e-6f;
  a.cos_sin = table.data();
  a.n_pairs = shape.n_pairs;
  a.rounding = shape.rounding;
  cpu::PhaseList list;
  BOOST_REQUIRE(cpu::add_heads(list, a).has_value());
  run_phases(list, schedule);
  return x;
}

std::vector<double> reference_head(std::vector<double> x, const HeadShape& shape,
                                   const std::vector<double>& f, std::int64_t pos) {
  if (shape.normalise) reference::rms_normalise(x, 1e-6);
  reference::rotate(x, f, pos);
  const std::span<double> all(x);
  if (shape.rounding == Rounding::fp8_nope) {
    reference::simulate_fp8(all.first(static_cast<std::size_t>(shape.d - 2 * shape.n_pairs)));
  }
  if (shape.rounding == Rounding::hadamard || shape.rounding == Rounding::hadamard_fp4) {
    reference::hadamard(all);
  }
  if (shape.rounding == Rounding::hadamard_fp4) reference::simulate_fp4(all);
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(frequencies_have_the_published_values) {
  const auto window = frequencies({10000}, 32), compressed = frequencies(kCompressed, 32);
  const auto close = [](double got, double want) { return std::fabs(got / want - 1) < 2e-9; };
  BOOST_TEST(close(window[1], 0.7498942093));
  BOOST_TEST(std::fabs(window[31] / 1.333521432e-4 - 1) < 1e-9);
  BOOST_TEST(close(compressed[8], 5.0e-2));
  BOOST_TEST(close(compressed[15], 3.635538584e-3));
  BOOST_TEST(close(compressed[16], 2.265625e-3));
  BOOST_TEST(close(compressed[20], 2.969777783e-4));
  BOOST_TEST(close(compressed[24], 1.953125e-5));
  BOOST_TEST(close(compressed[25], 5.372312671e-6));
  BOOST_TEST(close(compressed[31], 5.680529037e-7));
}

BOOST_AUTO_TEST_CASE(the_table_is_exact_at_a_million_tokens_and_skips_negative_positions) {
  const auto f = frequencies(kCompressed, 32);
  Step step;
  step.add_run(0, 5000, 1);
  step.add_run(1, 1000000, 1);
  step.add_run(2, 2, 3);
  const Floats table = make_table(step, f);
  BOOST_TEST(std::fabs(table[16 * 2] - 0.326455) < 1e-6);
  BOOST_TEST(std::fabs(table[16 * 2 + 1] + 0.945213) < 1e-6);
  for (std::size_t i = 0; i < 32; ++i) {
    BOOST_TEST(std::fabs(table[64 + 2 * i] - std::cos(1e6 * f[i])) < 1e-7);
    BOOST_TEST(std::fabs(table[64 + 2 * i + 1] - std::sin(1e6 * f[i])) < 1e-7);
  }
  const Floats shifted = make_table(step, f, -3);
  BOOST_TEST(std::isnan(shifted[2 * 64]));  // position -1
  BOOST_TEST(shifted[3 * 64] == 1);         // position 0
  BOOST_TEST(shifted[4 * 64] == static_cast<float>(std::cos(f[0])));
}

BOOST_AUTO_TEST_CASE(rotation_acts_on_adjacent_pairs_of_the_last_dims) {
  const auto f = frequencies({10000}, 32);
  Step step;
  step.add_run(0, 1, 1);
  Floats x(512, 0.0f);
  x[448] = 1;
  x[3] = 5;
  const Floats y = run_heads(step, x, {1, 512, 32, false, Rounding::none}, make_table(step, f));
  BOOST_TEST(std::fabs(y[448] - std::cos(1.0)) < 1e-7);
  BOOST_TEST(std::fabs(y[449] - std::sin(1.0)) < 1e-7);
  for (std::size_t i = 0; i < 512; ++i) {
    if (i < 448 || i > 449) BOOST_REQUIRE(y[i] == x[i]);
  }
}

BOOST_AUTO_TEST_CASE(rotation_keeps_the_length_and_is_undone_by_its_inverse) {
  Random random(5);
  const auto f = frequencies(kCompressed, 32);
  Step step;
  step.add_run(0, 77777, 1);
  const Floats table = make_table(step, f), x = normal_floats(random, 64);
  Floats y = run_heads(step, x, {1, 64, 32, false, Rounding::none}, table);
  double before = 0, after = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    before += double(x[i]) * x[i];
    after += double(y[i]) * y[i];
  }
  BOOST_TEST(std::fabs(after / before - 1) < 1e-6);
  for (std::size_t i = 0; i < 32; ++i) rotate_pair_back(&y[2 * i], &table[2 * i]);
  BOOST_TEST(largest_error(y.data(), to_double(x)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(heads_equal_the_reference_for_every_rounding_and_shape) {
  Random random(6);
  const HeadShape shapes[] = {
      {64, 512, 32, true, Rounding::none},        {1, 96, 16, true, Rounding::fp8_nope},
      {3, 192, 32, false, Rounding::fp8_nope},    {5, 512, 32, true, Rounding::fp8_nope},
      {4, 128, 32, false, Rounding::hadamard},    {64, 128, 32, false, Rounding::hadamard_fp4},
      {2, 64, 16, false, Rounding::hadamard_fp4}, {1, 2, 1, false, Rounding::hadamard},
      {3, 16, 4, false, Rounding::hadamard_fp4},  {2, 7, 0, true, Rounding::none}};
  for (const HeadShape& shape : shapes) {
    const auto f = frequencies(kCompressed, std::max(shape.n_pairs, 1));
    Step step;
    step.add_run(0, 3, 2);
    step.add_run(1, 4321, 1);
    const Floats table = make_table(step, f);
    const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
    const Floats x = normal_floats(random, step.n_rows * width, 2);
    const Floats y = run_heads(step, x, shape, table, {2, true});
    const auto used = frequencies(kCompressed, shape.n_pairs);
    for (std::int64_t i = 0; i < step.n_rows * shape.n_heads; ++i) {
      const std::size_t at = static_cast<std::size_t>(i * shape.d);
      const auto want = reference_head(to_double(&x[at], shape.d), shape, used,
                                       step.pos[static_cast<std::size_t>(i / shape.n_heads)]);
      BOOST_TEST(largest_error(&y[at], want) < 3e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(normalised_heads_do_not_feel_the_scale_of_their_projection) {
  Random random(7);
  Step step;
  step.add_run(0, 9, 1);
  const Floats table = make_table(step, frequencies({10000}, 16));
  const Floats x = normal_floats(random, 96);
  Floats scaled = x;
  for (float& value : scaled) value *= 8;
  const HeadShape shape{1, 96, 16, true, Rounding::none};
  const Floats a = run_heads(step, x, shape, table), b = run_heads(step, scaled, shape, table);
  BOOST_TEST(largest_error(a.data(), to_double(b)) < 2e-6);
}

BOOST_AUTO_TEST_CASE(rounded_heads_have_the_bits_of_the_element_functions) {
  Random random(8);
  Step step;
  step.add_run(0, 0, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int round = 0; round < 400; ++round) {
    Floats x = normal_floats(random, 128, std::ldexp(1.0f, round % 60 - 40));
    if (round % 7 == 0) x[static_cast<std::size_t>(round % 128)] = nan;
    if (round % 11 == 0) x.assign(128, 0.0f);
    if (round % 13 == 0) x[5] = -0.0f;
    const Floats table{1.0f};
    const HeadShape fp8{1, 128, 0, false, Rounding::fp8_nope};
    const Floats y = run_heads(step, x, fp8, table);
    Floats want = x;
    for (std::size_t i = 0; i < 128; i += 64) simulate_fp8_block(&want[i], 64);
    for (std::size_t i = 0; i < 128; ++i) {
      BOOST_REQUIRE(
          (float_bits(y[i]) == float_bits(want[i]) || (std::isnan(y[i]) && std::isnan(want[i]))));
    }
    const Floats plain = run_heads(step, x, {1, 128, 0, false, Rounding::hadamard}, table);
    const Floats rounded = run_heads(step, x, {1, 128, 0, false, Rounding::hadamard_fp4}, table);
    want = plain;
    for (std::size_t i = 0; i < 128; i += 32) simulate_fp4_block(&want[i], 32);
    for (std::size_t i = 0; i < 128; ++i) {
      if (!std::isnan(plain[i])) BOOST_REQUIRE(float_bits(rounded[i]) == float_bits(want[i]));
    }
  }
}

BOOST_AUTO_TEST_CASE(heads_refuse_a_hadamard_transform_of_other_widths) {
  Step step;
  step.add_run(0, 0, 1);
  Floats x(96), table(64);
  HeadsArgs a;
  a.step = step.view();
  a.x = x.data();
  a.n_heads = 1;
  a.d = 96;
  a.cos_sin = table.data();
  a.n_pairs = 16;
  a.rounding = Rounding::hadamard;
  cpu::PhaseList list;
  BOOST_TEST(!cpu::add_heads(list, a).has_value());
}
