#include "tests/reference/numeric.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

using namespace ebb::reference;

BOOST_AUTO_TEST_SUITE(numeric)

BOOST_AUTO_TEST_CASE(f16_and_bf16_codes_survive_the_way_through_double) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const double half = f16_to_double(bits), brain = bf16_to_double(bits);
    if (!std::isnan(half)) BOOST_REQUIRE_EQUAL(double_to_f16(half), bits);
    if (!std::isnan(brain)) BOOST_REQUIRE_EQUAL(double_to_bf16(brain), bits);
  }
  BOOST_TEST(std::isnan(f16_to_double(0xFFFF)));
  BOOST_TEST(std::isnan(bf16_to_double(0xFFFF)));
}

BOOST_AUTO_TEST_CASE(f16_matches_known_values) {
  BOOST_TEST(f16_to_double(0x3C00) == 1.0);
  BOOST_TEST(f16_to_double(0x7BFF) == 65504.0);
  BOOST_TEST(f16_to_double(0x8001) == -std::ldexp(1.0, -24));
  BOOST_TEST(double_to_f16(65519.9) == 0x7BFF);
  BOOST_TEST(double_to_f16(65520.0) == 0x7C00);
  BOOST_TEST(double_to_f16(1 + std::ldexp(1.0, -11)) == 0x3C00);  // a tie goes to the even code
  BOOST_TEST(double_to_f16(1 + std::ldexp(3.0, -11)) == 0x3C02);
}

BOOST_AUTO_TEST_CASE(e4m3_codes_survive_and_end_at_448) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const auto bits = static_cast<std::uint8_t>(code);
    BOOST_TEST(double_to_e4m3(e4m3_to_double(bits)) == bits);
  }
  BOOST_TEST(e4m3_to_double(0x7E) == 448.0);
  BOOST_TEST(e4m3_to_double(0x01) == std::ldexp(1.0, -9));
  BOOST_TEST(std::isnan(e4m3_to_double(0x7F)));
  BOOST_TEST(round_e4m3(1e9) == 448.0);
}

BOOST_AUTO_TEST_CASE(e2m1_rounds_ties_to_the_even_code) {
  const std::vector<double> values{0, .5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 8; ++code) {
    BOOST_TEST(e2m1_to_double(code) == values[code]);
    BOOST_TEST(e2m1_to_double(code + 8) == -values[code]);
    BOOST_TEST(double_to_e2m1(values[code]) == code);
  }
  const std::vector<double> ties{.25, .75, 1.25, 1.75, 2.5, 3.5, 5};
  const std::vector<double> evens{0, 1, 1, 2, 2, 4, 4};
  for (std::size_t i = 0; i < ties.size(); ++i) {
    BOOST_TEST(round_e2m1(ties[i]) == evens[i]);
    BOOST_TEST(round_e2m1(-ties[i]) == -evens[i]);
  }
  BOOST_TEST(round_e2m1(100) == 6.0);
}

BOOST_AUTO_TEST_CASE(fp8_simulation_gives_known_values) {
  std::vector<double> x{1.0, .3, -.7, .01, 2.5, .0001};
  simulate_fp8(x);
  const std::vector<double> expected{1, .3125, -.6875, .009765625, 2.5, 7 * std::ldexp(1.0, -16)};
  for (std::size_t i = 0; i < x.size(); ++i) BOOST_TEST(x[i] == expected[i]);
}

BOOST_AUTO_TEST_CASE(fp8_scale_is_exact_at_powers_of_two) {
  std::vector<double> fits{448, 1 + 1 / 8.0};
  simulate_fp8(fits);
  BOOST_TEST(fits[1] == 1.125);
  std::vector<double> doubled{449, std::ldexp(1.0, -9)};
  simulate_fp8(doubled);
  BOOST_TEST(doubled[0] == 448.0);  // 224.5 in units of 2, step 16
  BOOST_TEST(doubled[1] == 0.0);    // half the smallest step of scale 2: even is 0
  BOOST_TEST(power_of_two_at_least(1.0) == 1.0);
  BOOST_TEST(power_of_two_at_least(449 / 448.0) == 2.0);
  BOOST_TEST(power_of_two_at_least(0.125) == 0.125);
}

BOOST_AUTO_TEST_CASE(fp8_blocks_have_their_own_scales) {
  std::vector<double> x(128, 0.001);
  x[0] = 448;
  simulate_fp8(x);
  BOOST_TEST(x[1] == std::ldexp(1.0, -9) * std::nearbyint(0.001 * 512));
  BOOST_TEST(std::fabs(x[64] - 0.001) < 0.001 / 16);
}

BOOST_AUTO_TEST_CASE(fp4_simulation_gives_known_values) {
  std::vector<double> x{1, .3, -.7, .01, 2.5, .25, 1.75};
  simulate_fp4(x);
  const std::vector<double> expected{1, .25, -.75, 0, 2, .25, 2};
  for (std::size_t i = 0; i < x.size(); ++i) BOOST_TEST(x[i] == expected[i]);
  std::vector<double> zeros(32, 0.0);
  simulate_fp4(zeros);
  BOOST_TEST(zeros == std::vector<double>(32, 0.0));
}

BOOST_AUTO_TEST_SUITE_END()
