#define BOOST_TEST_MODULE matmul
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/matmul.h"

// clang-format off
#include "kernels/cpu/simd_targets.h"  // must come before Highway's headers
#include <hwy/targets.h>
// clang-format on

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/embed.h"
#include "tests/kernels/product_bounds.h"
#include "tests/kernels/random_weights.h"
#include "tests/kernels/run_phases.h"

namespace ebb::cpu {
namespace {

using test::RandomWeight;
using test::Schedule;

constexpr float kUntouched = -12345.0f;

const char* name_of(Precision precision) { return precision == Precision::fast ? "fast" : "exact"; }

/// One product planned for `max_rows`, and its output.
struct Product {
  Product(const Weight& weight, const std::vector<float>& x, std::int32_t max_rows,
          std::int32_t n_groups, Precision precision)
      : y(static_cast<std::size_t>(max_rows * weight.n_out), kUntouched) {
    MatmulArgs args;
    args.n_rows = &n_rows;
    args.max_rows = max_rows;
    args.x = x.data();
    args.n_groups = n_groups;
    args.n_parts = 1;
    args.parts[0] = {weight, y.data()};
    BOOST_REQUIRE(add_matmul(phases, args, precision));
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void run(std::int32_t rows, Schedule schedule = {}) {
    n_rows = rows;
    test::run_phases(phases, schedule);
  }

  std::int32_t n_rows = 0;
  std::vector<float> y;
  PhaseList phases;
};

std::span<const float> row_of(const std::vector<float>& values, std::int64_t row, std::int64_t n) {
  return std::span(values).subspan(static_cast<std::size_t>(row * n), static_cast<std::size_t>(n));
}

bool has_integer_form(DType type) {
  return type != DType::f32 && type != DType::f16 && type != DType::bf16;
}

void check_values(const RandomWeight& w, const std::vector<float>& x, const std::vector<float>& y,
                  std::int32_t n_rows, std::int32_t n_groups, Precision precision) {
  const std::vector<double> values = reference::dequantise(w.weight.type, w.bytes);
  const std::int64_t n_in = w.weight.n_in;
  const std::int64_t n_out = w.weight.n_out;
  const bool rounds = precision == Precision::fast && has_integer_form(w.weight.type);
  for (std::int32_t r = 0; r < n_rows; ++r) {
    for (std::int64_t o = 0; o < n_out; ++o) {
      const std::int64_t group = o / (n_out / n_groups);
      const auto weights = std::span(values).subspan(static_cast<std::size_t>(o * n_in),
                                                     static_cast<std::size_t>(n_in));
      const test::Expected want =
          test::expect_product(weights, row_of(x, r * n_groups + group, n_in));
      const double got = static_cast<double>(y[static_cast<std::size_t>(r * n_out + o)]);
      const double margin = rounds ? want.int8_margin : want.float_margin;
      BOOST_REQUIRE_MESSAGE(std::abs(got - want.value) <= margin,
                            dtype_traits(w.weight.type)->name
                                << " " << name_of(precision) << " " << n_out << " x " << n_in
                                << " row " << r << " output " << o << ": " << got << ", want "
                                << want.value << " +- " << margin);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_type_and_size_agrees_with_double_precision) {
  std::uint32_t seed = 100;
  for (const DType type : test::kWeightTypes) {
    for (const std::int64_t n_in : {32, 64, 96, 256, 288, 1056, 1280, 2304}) {
      if (n_in % dtype_traits(type)->block_values != 0) continue;
      for (const std::int64_t n_out : {1, 3, 17, 40}) {
        const RandomWeight w(type, n_out, n_in, ++seed);
        for (const std::int32_t n_rows : {1, 2, 3, 5, 17, 64}) {
          if (n_in > 1000 && n_rows > 5) continue;
          const std::vector<float> x = test::random_floats(n_rows * n_in, ++seed);
          for (const Precision precision : {Precision::exact, Precision::fast}) {
            Product product(w.weight, x, n_rows, 1, precision);
            product.run(n_rows);
            check_values(w, x, product.y, n_rows, 1, precision);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(float_weights_may_have_any_width) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t n_in : {1, 7, 15, 17, 24, 515, 1030}) {
      const RandomWeight w(type, 19, n_in, static_cast<std::uint32_t>(n_in));
      const std::vector<float> x = test::random_floats(9 * n_in, 3);
      Product product(w.weight, x, 9, 1, Precision::fast);
      product.run(9);
      check_values(w, x, product.y, 9, 1, Precision::fast);
    }
  }
}

BOOST_AUTO_TEST_CASE(groups_see_their_own_piece_of_the_input) {
  for (const DType type : {DType::q8_0, DType::f32}) {
    const RandomWeight w(type, 6 * 11, 96, 5);
    const std::vector<float> x = test::random_floats(7 * 6 * 96, 6);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      Product product(w.weight, x, 7, 6, precision);
      product.run(7);
      check_values(w, x, product.y, 7, 6, precision);
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_batch_or_on_the_order_of_tasks) {
  constexpr std::int32_t kRows = 300;  // more than two blocks of activation rows
  for (const DType type : test::kWeightTypes) {
    const std::int64_t n_in = dtype_traits(type)->block_values == 256 ? 1280 : 1344;
    constexpr std::int64_t kOut = 37;
    const RandomWeight w(type, kOut, n_in, 21);
    const std::vector<float> x = test::random_floats(kRows * n_in, 22);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      Product many(w.weight, x, kRows, 1, precision);
      many.run(kRows);
      const std::vector<float> want = many.y;
      for (const Schedule schedule : {Schedule{1, true}, Schedule{3, false}}) {
        std::fill(many.y.begin(), many.y.end(), kUntouched);
        many.run(kRows, schedule);
        BOOST_REQUIRE(std::memcmp(many.y.data(), want.data(), want.size() * sizeof(float)) == 0);
      }
      for (const std::int32_t n_rows : {1, 2, 3, 5, 7, 8, 9, 17, 131}) {
        std::fill(many.y.begin(), many.y.end(), kUntouched);
        many.run(n_rows);
        const auto n = static_cast<std::size_t>(n_rows * kOut);
        BOOST_REQUIRE_MESSAGE(
            std::memcmp(many.y.data(), want.data(), n * sizeof(float)) == 0,
            dtype_traits(type)->name << " " << name_of(precision) << " with " << n_rows << " rows");
        BOOST_REQUIRE_EQUAL(many.y[n], kUntouched);  // rows past the count are left alone
      }
    }
  }
}

/// Makes dispatch choose one instruction set while it lives.
struct OnlyTarget {
  explicit OnlyTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~OnlyTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

BOOST_AUTO_TEST_CASE(every_instruction_set_is_right_and_those_with_fma_give_equal_bits) {
  constexpr std::int32_t kRows = 9;
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  BOOST_REQUIRE(targets != 0);
  for (const DType type : test::kWeightTypes) {
    const RandomWeight w(type, 11, 1344 - 1344 % dtype_traits(type)->block_values, 61);
    const std::vector<float> x = test::random_floats(kRows * w.weight.n_in, 62);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      std::vector<float> fused;
      for (std::int64_t rest = targets; rest != 0; rest &= rest - 1) {
        const std::int64_t target = rest & -rest;
        const OnlyTarget only(target);
        for (const std::int32_t n_rows : {kRows, 1}) {
          Product product(w.weight, x, kRows, 1, precision);
          product.run(n_rows);
          check_values(w, x, product.y, n_rows, 1, precision);
          if (target == HWY_SCALAR || target == HWY_EMU128) continue;
          if (fused.empty()) fused = product.y;
          const std::size_t n = static_cast<std::size_t>(n_rows) * 11;
          BOOST_REQUIRE_MESSAGE(std::memcmp(product.y.data(), fused.data(), n * sizeof(float)) == 0,
                                dtype_traits(type)->name << " " << name_of(precision) << " on "
                                                         << hwy::TargetName(target));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(no_rows_do_nothing) {
  const RandomWeight w(DType::q8_0, 5, 64, 1);
  const std::vector<float> x = test::random_floats(64, 2);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    Product product(w.weight, x, 1, 1, precision);
    product.run(0);
    BOOST_TEST(product.y == std::vector<float>(5, kUntouched), boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(parts_of_different_types_share_an_input) {
  const RandomWeight a(DType::q4_k, 33, 512, 1);
  const RandomWeight b(DType::f16, 4, 512, 2);
  const RandomWeight c(DType::iq2_xxs, 20, 512, 3);
  const std::vector<float> x = test::random_floats(3 * 512, 4);
  std::vector<float> y_a(3 * 33), y_b(3 * 4), y_c(3 * 20);
  const std::int32_t n_rows = 3;
  MatmulArgs args;
  args.n_rows = &n_rows;
  args.max_rows = 3;
  args.x = x.data();
  args.n_parts = 3;
  args.parts[0] = {a.weight, y_a.data()};
  args.parts[1] = {b.weight, y_b.data()};
  args.parts[2] = {c.weight, y_c.data()};
  PhaseList phases;
  BOOST_REQUIRE(add_matmul(phases, args, Precision::fast));
  BOOST_TEST(phases.size() == 2u);
  test::run_phases(phases);
  check_values(a, x, y_a, 3, 1, Precision::fast);
  check_values(b, x, y_b, 3, 1, Precision::fast);
  check_values(c, x, y_c, 3, 1, Precision::fast);
}

BOOST_AUTO_TEST_CASE(exact_argument_overrides_fast_precision) {
  const RandomWeight w(DType::q8_0, 9, 256, 1);
  const std::vector<float> x = test::random_floats(256, 2);
  const std::int32_t n_rows = 1;
  std::vector<float> y(9);
  MatmulArgs args;
  args.n_rows = &n_rows;
  args.max_rows = 1;
  args.x = x.data();
  args.exact = true;
  args.n_parts = 1;
  args.parts[0] = {w.weight, y.data()};
  PhaseList phases;
  BOOST_REQUIRE(add_matmul(phases, args, Precision::fast));
  test::run_phases(phases);
  check_values(w, x, y, 1, 1, Precision::exact);
}

BOOST_AUTO_TEST_CASE(a_nan_activation_gives_nan_and_leaves_other_rows_alone) {
  for (const DType type : {DType::q8_0, DType::q4_k, DType::f32, DType::iq2_xxs}) {
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      const RandomWeight w(type, 5, 512, 1);
      std::vector<float> x = test::random_floats(3 * 512, 2);
      x[512 + 300] = std::numeric_limits<float>::quiet_NaN();
      Product product(w.weight, x, 3, 1, precision);
      product.run(3);
      for (std::size_t i = 0; i < 5; ++i) {
        BOOST_TEST(std::isfinite(product.y[i]));
        BOOST_TEST(std::isnan(product.y[5 + i]));
        BOOST_TEST(std::isfinite(product.y[10 + i]));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(zero_and_tiny_activations_give_finite_products) {
  const RandomWeight w(DType::q4_k, 5, 256, 1);
  for (const float value : {0.0f, 1e-38f, 1e-42f, -1e-32f}) {
    const std::vector<float> x(256, value);
    Product product(w.weight, x, 1, 1, Precision::fast);
    product.run(1);
    for (const float y : product.y) BOOST_TEST(std::abs(y) <= 1e-26f);
  }
}

BOOST_AUTO_TEST_CASE(recorded_dot_products_are_met) {
  std::ifstream index_file(std::string(EBB_TEST_DATA) + "/blocks/index.json");
  const nlohmann::json index = nlohmann::json::parse(index_file);
  BOOST_REQUIRE_EQUAL(index.at("dots").size(), 5u);
  for (const auto& dot : index.at("dots")) {
    const std::string name = dot.at("type");
    const auto read = [&](const std::string& file_name) {
      std::ifstream file(std::string(EBB_TEST_DATA) + "/blocks/" + file_name, std::ios::binary);
      BOOST_REQUIRE(file);
      return std::vector<char>{std::istreambuf_iterator<char>(file), {}};
    };
    const std::vector<char> weights = read(dot.at("weights"));
    const std::vector<char> x_bytes = read(dot.at("x"));
    std::vector<float> x(x_bytes.size() / sizeof(float));
    std::memcpy(x.data(), x_bytes.data(), x_bytes.size());
    DType type = DType::f32;
    for (const DTypeTraits& traits : kDTypes) {
      if (name == traits.name) type = traits.type;
    }
    const auto n = dot.at("n").get<std::int64_t>();
    const auto* const bytes = reinterpret_cast<const std::byte*>(weights.data());
    const Weight weight{bytes, type, n, 1, 1};
    const double want = dot.at("result");
    const double sum_abs = dot.at("sum_abs");

    Product exact(weight, x, 1, 1, Precision::exact);
    exact.run(1);
    BOOST_TEST(std::abs(static_cast<double>(exact.y[0]) - want) <= 4e-6 * sum_abs,
               name << " exact: " << exact.y[0] << ", want " << want);

    const std::vector<double> values = reference::dequantise(type, {bytes, weights.size()});
    const test::Expected expected = test::expect_product(values, x);
    Product fast(weight, x, 1, 1, Precision::fast);
    fast.run(1);
    const double error = std::abs(static_cast<double>(fast.y[0]) - want);
    BOOST_TEST(error <= expected.int8_margin);
    // Rounding errors are independent: a uniform error of half a step has the deviation
    // step/sqrt(12), and five deviations of the sum are far below the bound for the worst case.
    double variance = 0;
    for (std::size_t first = 0; first < values.size(); first += 16) {
      double largest = 0;
      for (std::size_t i = first; i < first + 16; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      }
      for (std::size_t i = first; i < first + 16; ++i) {
        variance += std::pow(values[i] * largest / 127, 2) / 12;
      }
    }
    BOOST_TEST(error <= 5 * std::sqrt(variance),
               name << " fast: off by " << error << ", deviation " << std::sqrt(variance));
  }
}

BOOST_AUTO_TEST_CASE(bad_arguments_are_refused_with_a_reason) {
  const RandomWeight w(DType::q8_0, 6, 64, 1);
  const std::vector<float> x(256);
  std::vector<float> y(64);
  const std::int32_t n_rows = 1;
  MatmulArgs good;
  good.n_rows = &n_rows;
  good.max_rows = 1;
  good.x = x.data();
  good.n_parts = 1;
  good.parts[0] = {w.weight, y.data()};
  const auto message = [](const MatmulArgs& args) -> std::string {
    PhaseList phases;
    const Status status = add_matmul(phases, args, Precision::fast);
    BOOST_TEST(phases.empty() == !status.has_value());
    return status ? "" : status.error().message;
  };
  BOOST_TEST(message(good) == "");
  MatmulArgs bad = good;
  bad.parts[0].weight.type = DType::i32;
  BOOST_TEST(message(bad).find("I32") != std::string::npos);
  bad = good;
  bad.parts[0].weight.n_in = 48;
  BOOST_TEST(message(bad).find("multiple of 32") != std::string::npos);
  bad = good;
  bad.n_groups = 4;
  BOOST_TEST(message(bad).find("4 groups") != std::string::npos);
  bad = good;
  bad.n_parts = 7;
  BOOST_TEST(message(bad).find("7 parts") != std::string::npos);
  for (const auto spoil :
       {+[](MatmulArgs& a) { a.x = nullptr; }, +[](MatmulArgs& a) { a.n_rows = nullptr; },
        +[](MatmulArgs& a) { a.parts[0].y = nullptr; },
        +[](MatmulArgs& a) { a.parts[0].weight.data = nullptr; },
        +[](MatmulArgs& a) { a.max_rows = 0; }}) {
    bad = good;
    spoil(bad);
    BOOST_TEST(message(bad) != "");
  }
}

BOOST_AUTO_TEST_CASE(embedding_copies_a_row_of_any_type_into_every_stream) {
  for (const DType type : test::kWeightTypes) {
    const RandomWeight table(type, 7, 512, 31);
    const std::vector<double> values = reference::dequantise(type, table.bytes);
    const std::int32_t tokens[] = {6, 0, 3, 7};  // the last one is outside the table
    const std::int32_t n_rows = 4;
    std::vector<float> streams(4 * 3 * 512, kUntouched);
    EmbedArgs args;
    args.step.n_rows = &n_rows;
    args.step.token = tokens;
    args.step.max_rows = 4;
    args.table = table.weight;
    args.streams = streams.data();
    args.n_streams = 3;
    PhaseList phases;
    BOOST_REQUIRE(add_embed(phases, args));
    test::run_phases(phases);
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t i = 0; i < 3 * 512; ++i) {
        const float got = streams[r * 3 * 512 + i];
        if (r == 3) {
          BOOST_REQUIRE(std::isnan(got));
          continue;
        }
        const double want = values[static_cast<std::size_t>(tokens[r]) * 512 + i % 512];
        BOOST_REQUIRE_SMALL(static_cast<double>(got) - want, 1e-6 * std::abs(want) + 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace ebb::cpu
