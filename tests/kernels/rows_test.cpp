#define BOOST_TEST_MODULE rows
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/rows.h"

#include <boost/test/unit_test.hpp>

#include "kernels/numeric.h"
#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/norm_rope.h"
#include "tests/reference/numeric.h"

using namespace ebb;
using namespace ebb::test;

namespace {

bool same_bits(float a, float b) { return float_bits(a) == float_bits(b); }

/// Floats that meet every exponent, ties and their neighbours.
Floats awkward_floats() {
  Floats x{0.0f, -0.0f, 65504, 65519.99f, 65520, 65536, 1e30f, 448, 449, 464, 480, 6, 5, 3e38f};
  Random random(21);
  std::uniform_int_distribution<std::uint32_t> any;
  for (int i = 0; i < 20000; ++i) {
    const float value = bits_float(any(random));
    if (std::isfinite(value)) x.push_back(value);
  }
  for (int exponent = -28; exponent < 17; ++exponent) {
    for (int step = 0; step < 64; ++step) {
      const float value = std::ldexp(1 + static_cast<float>(step) / 64, exponent);
      for (const float near : {value, std::nextafter(value, 0.0f), std::nextafter(value, 1e9f)}) {
        x.push_back(near);
        x.push_back(-near);
      }
    }
  }
  return x;
}

}  // namespace

BOOST_AUTO_TEST_CASE(small_formats_decode_every_code_like_the_reference) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const double f16 = reference::f16_to_double(half), bf16 = reference::bf16_to_double(half);
    BOOST_REQUIRE((std::isnan(f16) ? std::isnan(f16_to_float(half)) : f16_to_float(half) == f16));
    BOOST_REQUIRE(
        (std::isnan(bf16) ? std::isnan(bf16_to_float(half)) : bf16_to_float(half) == bf16));
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const double want = reference::e4m3_to_double(byte);
    BOOST_REQUIRE(
        (std::isnan(want) ? std::isnan(e4m3_to_float(byte)) : e4m3_to_float(byte) == want));
    if (code < 255) BOOST_REQUIRE(e8m0_to_float(byte) == reference::e8m0_to_double(byte));
    if (code < 16) BOOST_REQUIRE(e2m1_to_float(byte) == reference::e2m1_to_double(byte));
  }
}

BOOST_AUTO_TEST_CASE(small_formats_round_like_the_reference) {
  for (const float x : awkward_floats()) {
    BOOST_REQUIRE(float_to_f16(x) == reference::double_to_f16(x));
    BOOST_REQUIRE(float_to_bf16(x) == reference::double_to_bf16(x));
    BOOST_REQUIRE(float_to_e4m3(x) == reference::double_to_e4m3(x));
    BOOST_REQUIRE(float_to_e2m1(x) == reference::double_to_e2m1(x));
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(std::isnan(f16_to_float(float_to_f16(nan))));
  BOOST_TEST(std::isnan(bf16_to_float(float_to_bf16(nan))));
  BOOST_TEST(std::isnan(e4m3_to_float(float_to_e4m3(nan))));
}

BOOST_AUTO_TEST_CASE(block_rounding_has_the_published_values) {
  Floats fp8{1.0f, .3f, -.7f, .01f, 2.5f, .0001f};
  simulate_fp8_block(fp8.data(), 6);
  const Floats want8{1, .3125f, -.6875f, .009765625f, 2.5f, .0001068115f};
  for (std::size_t i = 0; i < 6; ++i) BOOST_TEST(std::fabs(fp8[i] - want8[i]) < 1e-10f);
  Floats fp4{1, .3f, -.7f, .01f, 2.5f, .25f, 1.75f};
  simulate_fp4_block(fp4.data(), 7);
  BOOST_TEST(fp4 == (Floats{1, .25f, -.75f, 0, 2, .25f, 2}));
  BOOST_TEST(fp8_scale(448) == 1);
  BOOST_TEST(fp8_scale(449) == 2);
  BOOST_TEST(fp8_scale(std::nextafter(448.0f, 1e9f)) == 2);
  BOOST_TEST(fp8_scale(0) == std::ldexp(1.0f, -22));
  BOOST_TEST(fp4_scale(0) == std::ldexp(1.0f, -126));
}

BOOST_AUTO_TEST_CASE(block_scales_are_exact_around_powers_of_two) {
  for (int exponent = -20; exponent < 100; ++exponent) {
    for (const auto& [limit, scale] : {std::pair{448.0f, &fp8_scale}, {6.0f, &fp4_scale}}) {
      const float edge = std::ldexp(limit, exponent);
      BOOST_REQUIRE(scale(edge) == std::ldexp(1.0f, exponent));
      BOOST_REQUIRE(scale(std::nextafter(edge, 0.0f)) == std::ldexp(1.0f, exponent));
      BOOST_REQUIRE(scale(std::nextafter(edge, 3e38f)) == std::ldexp(1.0f, exponent + 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_have_the_published_sizes) {
  BOOST_TEST(row_bytes(RowFormat::f32, 512, 64) == 2048);
  BOOST_TEST(row_bytes(RowFormat::f16, 512, 64) == 1024);
  BOOST_TEST(row_bytes(RowFormat::fp8, 512, 64) == 584);
  BOOST_TEST(row_bytes(RowFormat::f32, 128, 0) == 512);
  BOOST_TEST(row_bytes(RowFormat::fp8, 128, 0) == 132);
  BOOST_TEST(row_bytes(RowFormat::fp4, 128, 0) == 68);
}

BOOST_AUTO_TEST_CASE(an_fp8_row_keeps_rounded_values_and_a_lone_byte_layout) {
  Random random(22);
  for (const auto& [d, n_rot] : {std::pair{512, 64}, {96, 32}, {192, 64}, {64, 64}, {130, 34}}) {
    for (int round = 0; round < 50; ++round) {
      Floats x = normal_floats(random, d, std::ldexp(1.0f, round % 12 - 8));
      const std::int32_t n_still = d - n_rot;
      for (std::int32_t i = 0; i < n_still; i += 64) {
        simulate_fp8_block(&x[static_cast<std::size_t>(i)], std::min(64, n_still - i));
      }
      for (std::int32_t i = n_still; i < d; ++i) {
        float& value = x[static_cast<std::size_t>(i)];
        value = bf16_to_float(float_to_bf16(value));
      }
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(RowFormat::fp8, d, n_rot)));
      encode_row(RowFormat::fp8, d, n_rot, x.data(), row.data());
      Floats back = nan_floats(d);
      cpu::decode_row_fast(RowFormat::fp8, d, n_rot, row.data(), back.data());
      for (std::size_t i = 0; i < x.size(); ++i) BOOST_REQUIRE(same_bits(x[i], back[i]));
    }
  }
  // Layout: e4m3 bytes, bf16 values, scales. 448 needs scale 1, e8m0 code 127.
  Floats x(512, 0.0f);
  x[64] = 448;
  x[448] = 1;
  std::byte row[584];
  encode_row(RowFormat::fp8, 512, 64, x.data(), row);
  BOOST_TEST(std::to_integer<int>(row[64]) == 0x7e);
  BOOST_TEST(std::to_integer<int>(row[449]) == 0x3f);
  BOOST_TEST(std::to_integer<int>(row[577]) == 127);
  BOOST_TEST(std::to_integer<int>(row[583]) == 0);
}

BOOST_AUTO_TEST_CASE(index_keys_keep_rounded_values) {
  Random random(23);
  for (const std::int32_t d : {64, 128, 16}) {
    Floats x = normal_floats(random, d);
    for (std::int32_t i = 0; i < d; i += 32) {
      simulate_fp4_block(&x[static_cast<std::size_t>(i)], std::min(32, d - i));
    }
    for (const RowFormat format :
         {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(format, d, 0)));
      encode_row(format, d, 0, x.data(), row.data());
      Floats back = nan_floats(d);
      cpu::decode_row_fast(format, d, 0, row.data(), back.data());
      for (std::size_t i = 0; i < x.size(); ++i) BOOST_REQUIRE(x[i] == back[i]);
    }
  }
  // Value 2i in the low nibble.
  const float pair[2] = {1, -6};
  std::byte row[2];
  encode_row(RowFormat::fp4, 2, 0, pair, row);
  BOOST_TEST(std::to_integer<int>(row[0]) == 0xf2);
  BOOST_TEST(std::to_integer<int>(row[1]) == 127);
}

BOOST_AUTO_TEST_CASE(fast_decoding_gives_the_values_of_the_element_function) {
  Random random(24);
  std::uniform_int_distribution<int> any(0, 255);
  for (const auto& [d, n_rot] : {std::pair{512, 64}, {96, 32}, {130, 34}, {128, 0}, {66, 0}}) {
    for (const RowFormat format :
         {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
      if (format == RowFormat::fp4 && n_rot != 0) continue;
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(format, d, n_rot)));
      for (std::byte& byte : row) byte = static_cast<std::byte>(any(random));
      Floats fast = nan_floats(d), slow = nan_floats(d);
      cpu::decode_row_fast(format, d, n_rot, row.data(), fast.data());
      decode_row(format, d, n_rot, row.data(), slow.data());
      for (std::size_t i = 0; i < fast.size(); ++i) {
        BOOST_REQUIRE((fast[i] == slow[i] || (std::isnan(fast[i]) && std::isnan(slow[i]))));
      }
    }
  }
}

namespace {

AppendArgs append_args(const Step& step, const Floats& kv, const Floats& weight,
                       const Floats& table, std::int32_t d, std::int32_t n_pairs, Rounding rounding,
                       const RowStore& ring) {
  AppendArgs a;
  a.step = step.view();
  a.kv = kv.data();
  a.norm_weight = weight.data();
  a.eps = 1e-6f;
  a.cos_sin = table.data();
  a.n_pairs = n_pairs;
  a.d = d;
  a.rounding = rounding;
  a.ring = ring;
  return a;
}

}  // namespace

BOOST_AUTO_TEST_CASE(append_norms_ropes_rounds_and_writes_the_ring) {
  Random random(25);
  for (const auto& [d, n_pairs] : {std::pair{512, 32}, {96, 16}, {192, 32}}) {
    for (const Rounding rounding : {Rounding::none, Rounding::fp8_nope}) {
      Step step;
      step.add_run(1, 37, 5);
      step.add_run(0, 0, 1);
      const auto f = reference::rope_frequencies(2 * n_pairs, 10000);
      Floats table;
      for (const std::int32_t pos : step.pos) {
        for (const double frequency : f) {
          table.push_back(static_cast<float>(std::cos(pos * frequency)));
          table.push_back(static_cast<float>(std::sin(pos * frequency)));
        }
      }
      const Floats kv = normal_floats(random, step.n_rows * d, 3);
      const Floats weight = normal_floats(random, d, 0.2f, 1);
      OwnedStore ring(RowFormat::f32, d, 2 * n_pairs, 13, 2);
      cpu::PhaseList list;
      BOOST_REQUIRE(cpu::add_append(list, append_args(step, kv, weight, table, d, n_pairs, rounding,
                                                      ring.store))
                        .has_value());
      run_phases(list, {2, true});
      std::size_t written = 0;
      for (std::int32_t r = 0; r < step.n_rows; ++r) {
        const auto at = static_cast<std::size_t>(r);
        auto want = reference::rms_norm(to_double(&kv[at * static_cast<std::size_t>(d)], d),
                                        to_double(weight), 1e-6);
        reference::rotate(want, f, step.pos[at]);
        if (rounding == Rounding::fp8_nope) {
          reference::simulate_fp8(
              std::span<double>(want).first(static_cast<std::size_t>(d - 2 * n_pairs)));
        }
        const auto* got = reinterpret_cast<const float*>(ring.row(step.seq[at], step.pos[at] % 13));
        BOOST_TEST(largest_error(got, want) < 1e-6);
      }
      // Nothing else was touched.
      for (const std::byte byte : ring.memory) written += byte != std::byte{0xff};
      BOOST_TEST(written <= static_cast<std::size_t>(step.n_rows * d) * sizeof(float));
    }
  }
}

BOOST_AUTO_TEST_CASE(append_refuses_rows_of_the_wrong_size) {
  Step step;
  step.add_run(0, 0, 2);
  Floats any(1024);
  OwnedStore ring(RowFormat::fp8, 512, 64, 4);
  cpu::PhaseList list;
  AppendArgs a = append_args(step, any, any, any, 512, 32, Rounding::fp8_nope, ring.store);
  BOOST_TEST(cpu::add_append(list, a).has_value());
  a.ring.row_bytes = 576;
  BOOST_TEST(!cpu::add_append(list, a).has_value());
  a.ring.row_bytes = 584;
  a.ring.n_rows = 1;  // fewer than the rows of a step
  BOOST_TEST(!cpu::add_append(list, a).has_value());
  a.ring.n_rows = 4;
  a.ring.sequence_bytes = 584;
  BOOST_TEST(!cpu::add_append(list, a).has_value());
}
