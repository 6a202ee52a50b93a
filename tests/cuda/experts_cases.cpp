#define BOOST_TEST_DYN_LINK
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/route.h"
#include "tests/cuda/products.h"
#include "tests/reference/linear.h"
#include "tests/reference/moe.h"
#include "tests/reference/quant.h"

namespace ebb::test {
namespace {

using cuda::Precision;

constexpr std::int32_t kExperts = 11;
constexpr std::int32_t kUsed = 3;

struct Model {
  Model(DType gate_type, DType up_type, DType down_type, DType shared_type, std::int64_t width,
        std::int64_t hidden_width)
      : d(width), f(hidden_width), stored{{gate_type, f, d, 1, kExperts},
                                          {up_type, f, d, 2, kExperts},
                                          {down_type, d, f, 3, kExperts},
                                          {shared_type, f, d, 4},
                                          {shared_type, f, d, 5},
                                          {shared_type, d, f, 6}} {
    for (const RandomWeight& w : stored) {
      weights.push_back(std::make_unique<DeviceWeight>(device(), w.weight));
      matrices.push_back({w.weight.n_out * w.weight.n_mats, w.weight.n_in,
                          reference::dequantise(w.weight.type, w.bytes)});
    }
  }
  std::int64_t d, f;
  RandomWeight stored[6];
  std::vector<std::unique_ptr<DeviceWeight>> weights;
  std::vector<reference::Matrix> matrices;
  float clamp = 3, shared_clamp = 2;

  /// What an expert makes of x; kExperts is the shared one.
  reference::Vector one(std::int64_t e, std::span<const double> x) const {
    const bool shared = e == kExperts;
    const std::size_t m = shared ? 3 : 0;
    if (shared) e = 0;
    const reference::Vector g = reference::product_rows(matrices[m], e * f, f, x);
    const reference::Vector u = reference::product_rows(matrices[m + 1], e * f, f, x);
    reference::Vector h(static_cast<std::size_t>(f));
    for (std::size_t i = 0; i < h.size(); ++i) {
      h[i] =
          reference::clamped_swiglu(g[i], u[i], static_cast<double>(shared ? shared_clamp : clamp));
    }
    return reference::product_rows(matrices[m + 2], e * d, d, h);
  }
};

struct Routing {
  std::vector<float> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// Expert 0 is in every row, experts 3 and 10 in none, one row in four names one twice.
Routing routing(std::int32_t n_rows, std::int64_t d, std::uint32_t seed) {
  Routing r;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < n_rows * d; ++i) r.x.push_back(0.1f * normal(random));
  for (std::int32_t i = 0; i < n_rows * kUsed; ++i) {
    const auto other = static_cast<std::int32_t>(random() % (kExperts - 1));
    r.ids.push_back(i % kUsed == 1 ? 0 : other == 3 ? 4 : other);
    r.weights.push_back(std::uniform_real_distribution<float>(0.1f, 1.5f)(random));
  }
  return r;
}

/// Arguments of a model's experts, y left out, with buffers for up to max_rows rows.
struct Bench {
  Bench(const Model& m, std::int32_t n_rows, std::int32_t max_rows)
      : rows(static_cast<std::size_t>(max_rows)),
        x(rows * static_cast<std::size_t>(m.d)),
        weights(rows * kUsed),
        hidden(rows * (kUsed + 1) * static_cast<std::size_t>(m.f)),
        partial(rows * (kUsed + 1) * static_cast<std::size_t>(m.d)),
        ids(rows * kUsed),
        count(std::vector<std::int32_t>{n_rows}) {
    args.step.n_rows = count.get();
    args.step.max_rows = max_rows;
    args.x = x.get();
    args.ids = ids.get();
    args.weights = weights.get();
    args.routed = {m.weights[0]->weight, m.weights[1]->weight, m.weights[2]->weight, m.clamp};
    args.shared = {m.weights[3]->weight, m.weights[4]->weight, m.weights[5]->weight,
                   m.shared_clamp};
    args.n_used = kUsed;
    args.hidden = hidden.get();
    args.partial = partial.get();
  }
  std::size_t rows;
  DeviceArray<float> x, weights, hidden, partial;
  DeviceArray<std::int32_t> ids, count;
  ExpertsArgs args;
};

std::vector<float> run_experts(const Model& m, const Routing& all, std::int32_t first,
                               std::int32_t n_rows, std::int32_t max_rows, Precision precision) {
  const auto part = [&](const auto& values, std::int64_t width) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * width);
    return std::vector(begin, begin + static_cast<std::ptrdiff_t>(n_rows * width));
  };
  Bench bench(m, n_rows, max_rows);
  bench.x.set(part(all.x, m.d));
  bench.ids.set(part(all.ids, kUsed));
  bench.weights.set(part(all.weights, kUsed));
  const DeviceArray<float> y(bench.rows * static_cast<std::size_t>(m.d));
  bench.args.y = y.get();
  const cuda::Launch& launch = device().launch(cuda::experts_workspace(bench.args, precision));
  require_ok(cuda::experts(launch, bench.args, precision));
  device().finish();
  return y.values(static_cast<std::size_t>(n_rows * m.d));
}

void check_experts(const Model& m, const std::string& what) {
  const Routing all = routing(kMostRows, m.d, 40);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    const std::vector<float> got = run_experts(m, all, 0, kMostRows, kMostRows, precision);
    for (std::int32_t r = 0; r < kMostRows; r += 13) {
      const reference::Vector x(all.x.begin() + static_cast<std::ptrdiff_t>(r * m.d),
                                all.x.begin() + static_cast<std::ptrdiff_t>((r + 1) * m.d));
      reference::Vector want = m.one(kExperts, x);
      for (std::int32_t slot = 0; slot < kUsed; ++slot) {
        const auto i = static_cast<std::size_t>(r * kUsed + slot);
        const reference::Vector one = m.one(all.ids[i], x);
        for (std::size_t k = 0; k < want.size(); ++k) {
          want[k] += static_cast<double>(all.weights[i]) * one[k];
        }
      }
      double squares = 0, errors = 0, worst = 0;
      for (std::size_t k = 0; k < want.size(); ++k) {
        const double error =
            static_cast<double>(got[static_cast<std::size_t>(r * m.d) + k]) - want[k];
        squares += want[k] * want[k];
        errors += error * error;
        worst = std::max(worst, std::isnan(error) ? 1e9 : std::abs(error));
      }
      const double rms = std::sqrt(squares / static_cast<double>(m.d));
      const bool exact = precision == Precision::exact;
      const double limit = exact ? 2e-6 : 2e-3;
      BOOST_TEST(std::sqrt(errors / squares) <= limit, what << " " << name_of(precision) << " row "
                                                            << r << " rms "
                                                            << std::sqrt(errors / squares));
      BOOST_TEST(worst <= 8 * limit * rms,
                 what << " " << name_of(precision) << " row " << r << " worst " << worst / rms);
    }
    for (const std::int32_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 64, 65, 129}) {
      for (const std::int32_t max_rows : {rows, rows + 2}) {
        const std::int32_t first = 11 * rows % (kMostRows - rows);
        const std::vector<float> part = run_experts(m, all, first, rows, max_rows, precision);
        BOOST_TEST(same_bits(part.data(), got.data() + first * m.d, part.size()),
                   what << " " << name_of(precision) << ": bits of " << rows << " rows of at most "
                        << max_rows);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(experts_agree_with_double_precision_and_keep_their_bits) {
  check_experts({DType::iq2_xxs, DType::iq2_xxs, DType::q2_k, DType::q8_0, 512, 256}, "2-bit mix");
  check_experts({DType::iq2_xxs, DType::iq2_xxs, DType::q2_k, DType::q8_0, 1024, 768},
                "wider 2-bit mix");
  check_experts({DType::q4_k, DType::q4_k, DType::q6_k, DType::q8_0, 512, 256}, "4-bit mix");
  check_experts({DType::mxfp4, DType::mxfp4, DType::mxfp4, DType::f16, 256, 512}, "MXFP4");
  check_experts({DType::q2_k, DType::iq2_xxs, DType::q8_0, DType::q8_0, 512, 256},
                "gate and up of two types");
  check_experts({DType::q8_0, DType::q8_0, DType::f32, DType::bf16, 512, 96}, "plain downs");
  check_experts({DType::f32, DType::f32, DType::q4_k, DType::f32, 96, 256}, "plain gates");
}

// The kernels of one row may read x while the route and the router still run. Here x is another one
// each time, and nothing but those two stands between the kernel that writes it and those that read
// it.
BOOST_AUTO_TEST_CASE(a_row_that_is_read_early_is_the_new_one) {
  const Model m(DType::iq2_xxs, DType::iq2_xxs, DType::q2_k, DType::q8_0, 1024, 768);
  const RandomWeight stored(DType::f16, kExperts, 1024, 9);
  const DeviceWeight router(device(), stored.weight);
  constexpr std::int32_t kSteps = 40;
  const auto d = static_cast<std::size_t>(m.d);
  const DeviceArray<float> sources(activations(kSteps, m.d, 1)), ones(std::vector<float>(d, 1.0f));
  const DeviceArray<float> logits(kExperts), y(kSteps * d), late(kSteps * d);
  Bench bench(m, 1, 1);
  ExpertsArgs& args = bench.args;
  RouteArgs route;
  route.step = args.step;
  route.logits = logits.get();
  route.n_experts = kExperts;
  route.n_used = kUsed;
  route.ids = bench.ids.get();
  route.weights = bench.weights.get();
  MatmulArgs scores;
  scores.n_rows = args.step.n_rows;
  scores.max_rows = 1;
  scores.x = args.x;
  scores.exact = true;
  scores.n_parts = 1;
  scores.parts[0] = {router.weight, logits.get()};
  const cuda::Launch& launch = device().launch(cuda::experts_workspace(args, Precision::exact));
  for (const bool settled : {false, true}) {
    for (std::int32_t i = 0; i < kSteps; ++i) {
      const RmsNormArgs norm{
          args.step.n_rows, 1, sources.get() + i * m.d, ones.get(), bench.x.get(), m.d, 1e-6f};
      require_ok(cuda::rms_norm(launch, norm));
      require_ok(cuda::matmul(launch, scores, Precision::exact));
      require_ok(cuda::route(launch, route));
      args.y = (settled ? y : late).get() + i * m.d;
      require_ok(cuda::experts(launch, args, Precision::exact, true, settled));
      if (!settled) device().finish();
    }
    device().finish();
  }
  const std::vector<float> got = y.values(), want = late.values();
  BOOST_TEST(same_bits(got.data(), want.data(), want.size()));
  BOOST_TEST(std::isfinite(got.back()));
}

BOOST_AUTO_TEST_CASE(an_id_outside_the_experts_gives_nan_in_its_row_only) {
  const Model m(DType::iq2_xxs, DType::iq2_xxs, DType::q2_k, DType::q8_0, 256, 256);
  for (const std::int32_t rows : {1, 3, 20, 80}) {
    for (const std::int32_t id : {-1, kExperts, std::numeric_limits<std::int32_t>::max()}) {
      Routing bad = routing(rows, m.d, 3);
      bad.ids[1] = id;
      const std::vector<float> y = run_experts(m, bad, 0, rows, rows, Precision::exact);
      for (std::size_t i = 0; i < y.size(); ++i) {
        BOOST_REQUIRE_EQUAL(std::isnan(y[i]), i < static_cast<std::size_t>(m.d));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(no_rows_do_nothing) {
  const Model m(DType::iq2_xxs, DType::iq2_xxs, DType::q2_k, DType::q8_0, 256, 256);
  const Routing none = routing(1, m.d, 1);
  for (const std::int32_t max_rows : {1, 4, 70}) {
    BOOST_TEST(run_experts(m, none, 0, 0, max_rows, Precision::exact).empty());
  }
}

}  // namespace
}  // namespace ebb::test
