#define BOOST_TEST_MODULE experts
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/experts.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/activations.h"
#include "tests/kernels/random_weights.h"
#include "tests/kernels/run_phases.h"
#include "tests/reference/linear.h"
#include "tests/reference/moe.h"
#include "tests/reference/quant.h"

namespace ebb::cpu {
namespace {

using test::RandomWeight;
using test::Schedule;

constexpr std::int32_t kExperts = 5;
constexpr std::int32_t kUsed = 3;
constexpr float kUntouched = -12345.0f;

/// Weights of one expert op, scaled so that gates fall on both sides of the clamp.
struct Model {
  Model(DType gate_type, DType down_type, DType shared_type, std::int64_t width,
        std::int64_t hidden_width)
      : d(width),
        f(hidden_width),
        gate(gate_type, f, d, 1, kExperts),
        up(gate_type, f, d, 2, kExperts),
        down(down_type, d, f, 3, kExperts),
        shared_gate(shared_type, f, d, 4),
        shared_up(shared_type, f, d, 5),
        shared_down(shared_type, d, f, 6) {}

  std::int64_t d;
  std::int64_t f;
  RandomWeight gate, up, down, shared_gate, shared_up, shared_down;
  float clamp = 3;
  float shared_clamp = 2;
};

/// The op, planned for max_rows.
struct Op {
  Op(const Model& model, std::int32_t max_rows, Precision precision)
      : x(static_cast<std::size_t>(max_rows * model.d)),
        ids(static_cast<std::size_t>(max_rows * kUsed)),
        weights(ids.size()),
        hidden(static_cast<std::size_t>(max_rows * (kUsed + 1) * model.f), kUntouched),
        partial(static_cast<std::size_t>(max_rows * (kUsed + 1) * model.d), kUntouched),
        y(static_cast<std::size_t>(max_rows * model.d), kUntouched) {
    args.step.n_rows = &n_rows;
    args.step.max_rows = max_rows;
    args.x = x.data();
    args.ids = ids.data();
    args.weights = weights.data();
    args.routed = {model.gate.weight, model.up.weight, model.down.weight, model.clamp};
    args.shared = {model.shared_gate.weight, model.shared_up.weight, model.shared_down.weight,
                   model.shared_clamp};
    args.n_used = kUsed;
    args.hidden = hidden.data();
    args.partial = partial.data();
    args.y = y.data();
    BOOST_REQUIRE(add_experts(phases, args, precision));
  }
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  void run(std::int32_t rows, Schedule schedule = {}) {
    n_rows = rows;
    test::run_phases(phases, schedule);
  }

  std::int32_t n_rows = 0;
  std::vector<float> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<float> hidden, partial, y;
  ExpertsArgs args;
  PhaseList phases;
};

/// Rows see experts very unevenly: expert 0 is in every row, one row in four names it twice.
void fill_inputs(Op& op, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (float& value : op.x) value = 0.1f * normal(random);
  for (std::size_t i = 0; i < op.ids.size(); ++i) {
    op.ids[i] = i % kUsed == 1 ? 0 : static_cast<std::int32_t>(random() % kExperts);
    op.weights[i] = std::uniform_real_distribution<float>(0.1f, 1.5f)(random);
  }
}

reference::Matrix matrix(const RandomWeight& weight) {
  return {weight.weight.n_out * weight.weight.n_mats, weight.weight.n_in,
          reference::dequantise(weight.weight.type, weight.bytes)};
}

struct Matrices {
  explicit Matrices(const Model& m)
      : routed{matrix(m.gate), matrix(m.up), matrix(m.down)},
        shared{matrix(m.shared_gate), matrix(m.shared_up), matrix(m.shared_down)} {}
  reference::ExpertWeights routed, shared;
};

reference::Vector one_expert(const reference::ExpertWeights& w, std::int64_t e, std::int64_t d,
                             std::int64_t f, double clamp, std::span<const double> x) {
  const reference::Vector g = reference::product_rows(w.gate, e * f, f, x);
  const reference::Vector u = reference::product_rows(w.up, e * f, f, x);
  reference::Vector h(static_cast<std::size_t>(f));
  for (std::size_t i = 0; i < h.size(); ++i) {
    h[i] = reference::clamped_swiglu(g[i], u[i], clamp);
  }
  return reference::product_rows(w.down, e * d, d, h);
}

/// Errors of outputs in units of their row's root mean square.
struct Errors {
  double worst = 0;
  double rms = 0;
};

Errors errors_of(const Model& model, const Matrices& m, const Op& op, std::int32_t n_rows) {
  Errors errors;
  for (std::int32_t r = 0; r < n_rows; ++r) {
    const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(r * model.d + i); };
    reference::Vector x(static_cast<std::size_t>(model.d));
    for (std::int64_t i = 0; i < model.d; ++i) {
      x[static_cast<std::size_t>(i)] = static_cast<double>(op.x[at(i)]);
    }
    reference::Vector want =
        one_expert(m.shared, 0, model.d, model.f, static_cast<double>(model.shared_clamp), x);
    for (std::int32_t slot = 0; slot < kUsed; ++slot) {
      const auto i = static_cast<std::size_t>(r * kUsed + slot);
      const reference::Vector part =
          one_expert(m.routed, op.ids[i], model.d, model.f, static_cast<double>(model.clamp), x);
      for (std::size_t k = 0; k < want.size(); ++k) {
        want[k] += static_cast<double>(op.weights[i]) * part[k];
      }
    }
    double squares = 0;
    for (const double value : want) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(want.size()));
    for (std::int64_t i = 0; i < model.d; ++i) {
      const double error = static_cast<double>(op.y[at(i)]) - want[static_cast<std::size_t>(i)];
      const double relative = std::isnan(error) ? 1e9 : std::abs(error) / rms;
      errors.worst = std::max(errors.worst, relative);
      errors.rms += relative * relative;
    }
  }
  errors.rms = std::sqrt(errors.rms / static_cast<double>(n_rows * model.d));
  return errors;
}

/// Float: chains of 32 roundings of 2^-24 and a few more, twice. Int8: a step is 1/127 of the
/// largest of 16 values, which is about 2 deviations of x and 3 of the heavier-tailed hidden
/// values, so a value is off by 2..3/127/sqrt(12), up to 0.7 % of a deviation; gate, up and hidden
/// each add as much: 1 %. The worst of some thousand outputs lies at 4 to 6 deviations of the
/// error.
void check_errors(const Errors& errors, Precision precision, const std::string& what) {
  const bool exact = precision == Precision::exact;
  BOOST_TEST(errors.rms <= (exact ? 1e-6 : 0.02), what << " rms " << errors.rms);
  BOOST_TEST(errors.worst <= (exact ? 1e-5 : 0.12), what << " worst " << errors.worst);
}

struct Types {
  DType gate, down, shared;
};
constexpr Types kMixes[] = {
    {DType::iq2_xxs, DType::q2_k, DType::q8_0}, {DType::q4_k, DType::q6_k, DType::q8_0},
    {DType::mxfp4, DType::mxfp4, DType::f16},   {DType::f32, DType::f32, DType::f32},
    {DType::iq1_m, DType::iq3_s, DType::q5_k},
};

BOOST_AUTO_TEST_CASE(sums_agree_with_double_precision) {
  for (const Types& types : kMixes) {
    const Model model(types.gate, types.down, types.shared, 512, 256);
    const Matrices matrices(model);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      for (const std::int32_t n_rows : {1, 2, 3, 17}) {
        Op op(model, n_rows, precision);
        fill_inputs(op, 40 + static_cast<std::uint32_t>(n_rows));
        op.run(n_rows);
        check_errors(
            errors_of(model, matrices, op, n_rows), precision,
            dtype_traits(types.gate)->name + std::string(" rows ") + std::to_string(n_rows));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_gate_is_clamped_from_above_only_and_up_on_both_sides) {
  const std::vector<float> g{20, -20, 20, -20, 0, 10, -1, 10.5f, -200, 3};
  const std::vector<float> u{20, 20, -20, -20, 7, -10, 10.5f, 1, 5, -30};
  for (std::size_t n = 1; n <= g.size(); ++n) {  // whole vectors and what is left of them
    std::vector<float> h(n + 1, kUntouched);
    gated(g.data(), u.data(), 10, static_cast<std::int64_t>(n), h.data());
    for (std::size_t i = 0; i < n; ++i) {
      const double gate = std::fmin(static_cast<double>(g[i]), 10);
      const double up = std::fmax(std::fmin(static_cast<double>(u[i]), 10), -10);
      const double want = gate / (1 + std::exp(-gate)) * up;
      BOOST_TEST(std::fabs(static_cast<double>(h[i]) - want) <= 1e-6 * std::fabs(want) + 1e-30,
                 "gate " << g[i] << " up " << u[i] << ": " << h[i] << ", want " << want);
    }
    BOOST_TEST(h[n] == kUntouched);
  }
}

BOOST_AUTO_TEST_CASE(small_widths_work_where_the_types_allow_them) {
  const Model model(DType::q8_0, DType::q8_0, DType::f16, 96, 32);
  const Matrices matrices(model);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    Op op(model, 5, precision);
    fill_inputs(op, 3);
    op.run(5);
    check_errors(errors_of(model, matrices, op, 5), precision, "small widths");
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_grouping_or_on_the_order_of_tasks) {
  constexpr std::int32_t kRows = 200;  // expert 0 has more rows than one piece holds
  for (const Types& types : kMixes) {
    const Model model(types.gate, types.down, types.shared, 512, 256);
    const auto d = static_cast<std::size_t>(model.d);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      Op many(model, kRows, precision);
      fill_inputs(many, 50);
      many.run(kRows);
      const std::vector<float> want = many.y;
      for (const Schedule schedule : {Schedule{1, true}, Schedule{3, false}}) {
        std::fill(many.y.begin(), many.y.end(), kUntouched);
        many.run(kRows, schedule);
        BOOST_REQUIRE(std::memcmp(many.y.data(), want.data(), want.size() * sizeof(float)) == 0);
      }
      Op one(model, 2, precision);
      for (const std::size_t r : {std::size_t{0}, std::size_t{77}, std::size_t{198}}) {
        for (const std::int32_t n_rows : {1, 2}) {
          std::copy_n(many.x.begin() + static_cast<std::ptrdiff_t>(r * d), 2 * d, one.x.begin());
          std::copy_n(many.ids.begin() + static_cast<std::ptrdiff_t>(r * kUsed), 2 * kUsed,
                      one.ids.begin());
          std::copy_n(many.weights.begin() + static_cast<std::ptrdiff_t>(r * kUsed), 2 * kUsed,
                      one.weights.begin());
          one.run(n_rows);
          const auto n = static_cast<std::size_t>(n_rows) * d;
          BOOST_REQUIRE_MESSAGE(
              std::memcmp(one.y.data(), want.data() + r * d, n * sizeof(float)) == 0,
              dtype_traits(types.gate)->name << " row " << r << " in a batch of " << n_rows);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(no_rows_do_nothing) {
  const Model model(DType::q8_0, DType::q8_0, DType::q8_0, 64, 32);
  Op op(model, 2, Precision::fast);
  fill_inputs(op, 1);
  op.run(0);
  for (const float y : op.y) BOOST_REQUIRE_EQUAL(y, kUntouched);
}

BOOST_AUTO_TEST_CASE(an_id_outside_the_experts_gives_nan_in_its_row_only) {
  const Model model(DType::q8_0, DType::q8_0, DType::q8_0, 64, 32);
  for (const std::int32_t n_rows : {1, 3}) {
    for (const std::int32_t id : {-1, kExperts, std::numeric_limits<std::int32_t>::max()}) {
      Op op(model, n_rows, Precision::fast);
      fill_inputs(op, 1);
      op.ids[1] = id;
      op.run(n_rows);
      for (std::size_t i = 0; i < op.y.size(); ++i) {
        BOOST_REQUIRE_EQUAL(std::isnan(op.y[i]), i < 64);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_nan_activation_gives_nan) {
  const Model model(DType::q8_0, DType::q4_k, DType::q8_0, 256, 256);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    Op op(model, 2, precision);
    fill_inputs(op, 1);
    op.x[3] = std::numeric_limits<float>::quiet_NaN();
    op.run(2);
    for (std::size_t i = 0; i < op.y.size(); ++i) {
      BOOST_REQUIRE_EQUAL(std::isnan(op.y[i]), i < 256);
    }
  }
}

BOOST_AUTO_TEST_CASE(bad_arguments_are_refused_with_a_reason) {
  const Model model(DType::q8_0, DType::q8_0, DType::q8_0, 64, 32);
  Op op(model, 1, Precision::fast);
  const auto message = [](const ExpertsArgs& args) -> std::string {
    PhaseList phases;
    const Status status = add_experts(phases, args, Precision::fast);
    BOOST_TEST(phases.empty() == !status.has_value());
    return status ? "" : status.error().message;
  };
  BOOST_TEST(message(op.args) == "");
  ExpertsArgs bad = op.args;
  bad.routed.down.n_in = 64;
  BOOST_TEST(message(bad).find("routed weights") != std::string::npos);
  bad = op.args;
  bad.shared.clamp = 0;
  BOOST_TEST(message(bad).find("clamped at 0") != std::string::npos);
  bad = op.args;
  bad.shared.up.type = DType::q8_k;
  BOOST_TEST(message(bad).find("Q8_K") != std::string::npos);
  bad = op.args;
  bad.routed.up.n_mats = 4;
  BOOST_TEST(message(bad).find("5 matrices") != std::string::npos);
  for (const auto spoil :
       {+[](ExpertsArgs& a) { a.x = nullptr; }, +[](ExpertsArgs& a) { a.ids = nullptr; },
        +[](ExpertsArgs& a) { a.hidden = nullptr; }, +[](ExpertsArgs& a) { a.y = nullptr; },
        +[](ExpertsArgs& a) { a.step.n_rows = nullptr; }, +[](ExpertsArgs& a) { a.n_used = 0; }}) {
    bad = op.args;
    spoil(bad);
    BOOST_TEST(message(bad) != "");
  }
}

}  // namespace
}  // namespace ebb::cpu
