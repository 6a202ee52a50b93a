#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_DYN_LINK
#include "tests/cuda/products.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "tests/kernels/product_bounds.h"
#include "tests/reference/quant.h"

namespace ebb::test {
namespace {

using cuda::Precision;

constexpr DType kTypes[] = {DType::f32,     DType::f16,  DType::bf16, DType::q8_0, DType::mxfp4,
                            DType::iq2_xxs, DType::q2_k, DType::q4_k, DType::q6_k};
constexpr std::int32_t kRowCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 127, 128, 129, 300};

struct Part {
  const DeviceWeight* weight;
  DeviceArray<float>* y;
};

void run_matmul(const std::vector<Part>& parts, const float* x, std::int32_t n_rows,
                std::int32_t max_rows, std::int32_t n_groups, Precision precision,
                bool exact = false) {
  const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{n_rows});
  MatmulArgs args;
  args.n_rows = count.get();
  args.max_rows = max_rows;
  args.x = x;
  args.n_groups = n_groups;
  args.exact = exact;
  for (const Part& part : parts) {
    args.parts[static_cast<std::size_t>(args.n_parts++)] = {part.weight->weight, part.y->get()};
  }
  require_ok(
      cuda::matmul(device().launch(cuda::matmul_workspace(args, precision)), args, precision));
  device().finish();
}

/// Every element within its margin, and the root mean square of the errors, in units of the row's,
/// far below what one wrong value would make it.
void check_values(const RandomWeight& w, const std::vector<float>& x, const std::vector<float>& y,
                  std::int32_t n_rows, std::int32_t n_groups, Precision precision,
                  const std::string& what) {
  const std::vector<double> values = reference::dequantise(w.weight.type, w.bytes);
  const std::int64_t n_in = w.weight.n_in, n_out = w.weight.n_out;
  double squares = 0;
  for (std::int32_t r = 0; r < n_rows; ++r) {
    double row_squares = 0, error_squares = 0;
    for (std::int64_t o = 0; o < n_out; ++o) {
      const std::int64_t vector = r * n_groups + o / (n_out / n_groups);
      const Expected want =
          expect_product(std::span(values).subspan(static_cast<std::size_t>(o * n_in),
                                                   static_cast<std::size_t>(n_in)),
                         std::span(x).subspan(static_cast<std::size_t>(vector * n_in),
                                              static_cast<std::size_t>(n_in)));
      const double got = static_cast<double>(y[static_cast<std::size_t>(r * n_out + o)]);
      const double margin = precision == Precision::exact ? want.float_margin : want.int8_margin;
      if (!(std::abs(got - want.value) <= margin)) {
        BOOST_ERROR(what << " " << name_of(precision) << " row " << r << " output " << o << ": "
                         << got << ", want " << want.value << " +- " << margin);
        return;
      }
      row_squares += want.value * want.value;
      error_squares += (got - want.value) * (got - want.value);
    }
    if (n_out >= 16) squares += error_squares / row_squares;
  }
  const double rms = std::sqrt(squares / n_rows);
  // An f16 number is off by up to 2^-11, by 2^-13 in the mean of squares; where the minima of a
  // block nearly cancel, more is left of that.
  BOOST_TEST(rms <= (precision == Precision::exact ? 1e-6 : 5e-4),
             what << " " << name_of(precision) << " rms " << rms);
}

/// The product of kMostRows rows is right, and a row has the same bits in every step.
void check_matmul(DType type, std::int64_t n_out, std::int64_t n_in, std::int32_t n_groups,
                  std::uint32_t seed) {
  const std::string what = dtype_traits(type)->name + std::string(" ") + std::to_string(n_out) +
                           " x " + std::to_string(n_in) + " groups " + std::to_string(n_groups);
  const RandomWeight stored(type, n_out, n_in, seed);
  const DeviceWeight weight(device(), stored.weight);
  const std::int64_t width = n_groups * n_in;
  const std::vector<float> x = activations(kMostRows, width, seed + 1);
  const DeviceArray<float> device_x(x);
  const auto n = static_cast<std::size_t>(n_out);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    DeviceArray<float> y(kMostRows * n);
    run_matmul({{&weight, &y}}, device_x.get(), kMostRows, kMostRows, n_groups, precision);
    const std::vector<float> want = y.values();
    // The last rows too: tiles are ragged there.
    check_values(stored, x, want, 24, n_groups, precision, what);
    check_values(stored,
                 std::vector<float>(x.end() - static_cast<std::ptrdiff_t>(8 * width), x.end()),
                 std::vector<float>(want.end() - static_cast<std::ptrdiff_t>(8 * n), want.end()), 8,
                 n_groups, precision, what + ", last rows");
    for (const std::int32_t rows : kRowCounts) {
      const std::int32_t first = rows == kMostRows ? 0 : 5 * rows % (kMostRows - rows);
      for (const std::int32_t max_rows : {rows, rows + 3}) {
        DeviceArray<float> part(static_cast<std::size_t>(max_rows) * n);
        run_matmul({{&weight, &part}}, device_x.get() + first * width, rows, max_rows, n_groups,
                   precision);
        const std::vector<float> got = part.values();
        BOOST_TEST(
            same_bits(got.data(), want.data() + first * n_out, static_cast<std::size_t>(rows) * n),
            what << " " << name_of(precision) << ": bits of " << rows << " rows of at most "
                 << max_rows);
        for (std::size_t i = static_cast<std::size_t>(rows) * n; i < got.size(); ++i) {
          BOOST_REQUIRE_MESSAGE(std::isnan(got[i]), what << ": written past the last row");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_type_agrees_with_double_precision_and_keeps_its_bits) {
  std::uint32_t seed = 100;
  for (const DType type : kTypes) {
    for (const std::int64_t n_out : {16, 37, 300}) check_matmul(type, n_out, 256, 1, seed += 2);
    check_matmul(type, 77, 1280, 1, seed += 2);
    check_matmul(type, 33, 4096, 1, seed += 2);
  }
}

BOOST_AUTO_TEST_CASE(sizes_that_the_matrix_units_do_not_take_work_too) {
  std::uint32_t seed = 300;
  for (const DType type : kTypes) {
    check_matmul(type, 3, 256, 1, seed += 2);
    for (const std::int64_t n_in : {32, 96, 1056}) {
      if (n_in % dtype_traits(type)->block_values == 0) check_matmul(type, 40, n_in, 1, seed += 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(long_rows_work) {
  check_matmul(DType::q8_0, 40, 8192, 1, 400);
  check_matmul(DType::q8_0, 20, 16384, 1, 402);
  check_matmul(DType::f16, 20, 16384, 1, 404);
}

BOOST_AUTO_TEST_CASE(many_rows_of_weights_are_cut_over_all_multiprocessors) {
  check_matmul(DType::q8_0, 5003, 256, 1, 410);
  check_matmul(DType::iq2_xxs, 4099, 256, 1, 412);
}

BOOST_AUTO_TEST_CASE(groups_see_their_own_inputs) {
  for (const DType type : {DType::q8_0, DType::f16, DType::q2_k, DType::f32}) {
    check_matmul(type, 8 * 24, 512, 8, 500);
    check_matmul(type, 2 * 131, 256, 2, 502);
    check_matmul(type, 2 * 8, 256, 2, 504);
  }
}

BOOST_AUTO_TEST_CASE(parts_of_several_types_share_an_input) {
  const std::int64_t n_in = 512;
  const RandomWeight stored[] = {{DType::f16, 100, n_in, 1},  {DType::q8_0, 33, n_in, 2},
                                 {DType::f16, 17, n_in, 3},   {DType::f16, 5, n_in, 4},
                                 {DType::q8_0, 256, n_in, 5}, {DType::f32, 20, n_in, 6}};
  std::vector<std::unique_ptr<DeviceWeight>> weights;
  for (const RandomWeight& w : stored) {
    weights.push_back(std::make_unique<DeviceWeight>(device(), w.weight));
  }
  const std::vector<float> x = activations(40, n_in, 7);
  const DeviceArray<float> device_x(x);
  for (const std::int32_t rows : {1, 3, 12, 40}) {
    std::vector<std::unique_ptr<DeviceArray<float>>> y;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      y.push_back(std::make_unique<DeviceArray<float>>(
          static_cast<std::size_t>(rows * stored[i].weight.n_out)));
      parts.push_back({weights[i].get(), y.back().get()});
    }
    run_matmul(parts, device_x.get(), rows, rows, 1, Precision::exact);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      check_values(stored[i], x, y[i]->values(), rows, 1, Precision::exact,
                   "part " + std::to_string(i));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_pair_has_the_bits_of_its_products) {
  if (!device().has_tensor_units()) return;  // there is no other way then
  const std::int64_t n_in = 1024;
  const RandomWeight stored[] = {{DType::q8_0, 3000, n_in, 1},
                                 {DType::q8_0, 40, n_in, 2},
                                 {DType::f16, 1000, n_in, 3},
                                 {DType::f16, 17, n_in, 4}};
  std::vector<std::unique_ptr<DeviceWeight>> weights;
  for (const RandomWeight& w : stored) {
    weights.push_back(std::make_unique<DeviceWeight>(device(), w.weight));
  }
  const DeviceArray<float> x(activations(1, n_in, 7));
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    for (const std::int32_t n_rows : {1, 0}) {
      const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{n_rows});
      std::vector<std::unique_ptr<DeviceArray<float>>> alone, paired;
      MatmulArgs two[2];
      for (std::size_t i = 0; i < 4; ++i) {
        const auto n = static_cast<std::size_t>(stored[i].weight.n_out);
        alone.push_back(std::make_unique<DeviceArray<float>>(n));
        paired.push_back(std::make_unique<DeviceArray<float>>(n));
        MatmulArgs& args = two[i / 2];
        args.n_rows = count.get();
        args.max_rows = 1;
        args.x = x.get();
        args.parts[static_cast<std::size_t>(args.n_parts++)] = {weights[i]->weight,
                                                                paired.back()->get()};
      }
      BOOST_REQUIRE(cuda::matmul_pairs(two[0], two[1]));
      BOOST_TEST(!cuda::matmul_pairs(two[1], two[0]));
      require_ok(cuda::matmul_pair(device().launch(0), two[0], two[1], precision));
      device().finish();
      for (std::size_t i = 0; i < 4; ++i) {
        run_matmul({{weights[i].get(), alone[i].get()}}, x.get(), n_rows, 1, 1, precision);
        const std::vector<float> want = alone[i]->values(), got = paired[i]->values();
        BOOST_TEST(same_bits(got.data(), want.data(), want.size()), "product " << i);
        BOOST_TEST(std::isnan(got[0]) == (n_rows == 0));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_product_that_norms_its_input_has_the_bits_of_both_ops) {
  for (const DType type : {DType::q8_0, DType::f16}) {
    for (const std::int64_t n_in : {256, 768, 1024}) {
      const RandomWeight stored(type, 3000, n_in, 1);
      const DeviceWeight weight(device(), stored.weight);
      const DeviceArray<float> x(activations(1, n_in, 7)), scale(activations(1, n_in, 8));
      const auto d = static_cast<std::size_t>(n_in);
      for (const Precision precision : {Precision::exact, Precision::fast}) {
        for (const std::int32_t n_rows : {1, 0}) {
          const DeviceArray<std::int32_t> count(std::vector<std::int32_t>{n_rows});
          const DeviceArray<float> normed(d), y(3000), alone(3000);
          DeviceArray<float> alone_normed(d);
          RmsNormArgs norm{count.get(), 1, x.get(), scale.get(), alone_normed.get(), n_in, 1e-6f};
          require_ok(cuda::rms_norm(device().launch(0), norm));
          MatmulArgs args;
          args.n_rows = count.get();
          args.max_rows = 1;
          args.n_parts = 1;
          args.x = alone_normed.get();
          args.parts[0] = {weight.weight, alone.get()};
          require_ok(cuda::matmul(device().launch(0), args, precision));
          norm.y = normed.get();
          args.x = normed.get();
          args.parts[0].y = y.get();
          BOOST_REQUIRE(cuda::matmul_norms(args, norm));
          require_ok(cuda::matmul(device().launch(0), args, precision, &norm));
          device().finish();
          BOOST_TEST(same_bits(y.values().data(), alone.values().data(), 3000));
          BOOST_TEST(same_bits(normed.values().data(), alone_normed.values().data(), d));
          BOOST_TEST(std::isnan(y.values()[0]) == (n_rows == 0));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_exact_product_is_exact_in_fast_mode) {
  const RandomWeight stored(DType::f16, 64, 512, 1);
  const DeviceWeight weight(device(), stored.weight);
  const std::vector<float> x = activations(40, 512, 2);
  const DeviceArray<float> device_x(x);
  for (const std::int32_t rows : {1, 5, 40}) {
    DeviceArray<float> y(static_cast<std::size_t>(rows) * 64);
    run_matmul({{&weight, &y}}, device_x.get(), rows, rows, 1, Precision::fast, true);
    check_values(stored, x, y.values(), rows, 1, Precision::exact, "exact product");
  }
}

void check_not_finite(DType type, float value) {
  const RandomWeight stored(type, 64, 512, 1);
  const DeviceWeight weight(device(), stored.weight);
  for (const std::int32_t rows : {1, 2, 20, 40}) {
    std::vector<float> x = activations(rows, 512, 2);
    x[static_cast<std::size_t>((rows - 1) * 512 + 77)] = value;
    const DeviceArray<float> device_x(x);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      DeviceArray<float> y(static_cast<std::size_t>(rows) * 64);
      run_matmul({{&weight, &y}}, device_x.get(), rows, rows, 1, precision);
      const std::vector<float> got = y.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        BOOST_REQUIRE_EQUAL(!std::isfinite(got[i]), i >= static_cast<std::size_t>(rows - 1) * 64);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_activation_that_is_not_finite_shows_in_its_row_only) {
  for (const DType type : {DType::q8_0, DType::iq2_xxs, DType::q2_k}) {
    check_not_finite(type, std::numeric_limits<float>::quiet_NaN());
  }
  check_not_finite(DType::q2_k, std::numeric_limits<float>::infinity());
}

BOOST_AUTO_TEST_CASE(small_values_beside_a_large_one_count) {
  // One value a thousand times the others, and one that just fits the integers of a Q2_K column.
  for (const DType type : {DType::q8_0, DType::iq2_xxs, DType::q2_k}) {
    const RandomWeight stored(type, 64, 512, 3);
    const DeviceWeight weight(device(), stored.weight);
    std::vector<float> x = activations(2, 512, 4);
    x[77] = 1000 * x[78];
    x[512 + 5] = std::nextafter(std::ldexp(1.0f, 10), 0.0f);
    const DeviceArray<float> device_x(x);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      DeviceArray<float> y(128);
      run_matmul({{&weight, &y}}, device_x.get(), 2, 2, 1, precision);
      check_values(stored, x, y.values(), 2, 1, precision,
                   std::string(dtype_traits(type)->name) + " one large value");
    }
  }
}

}  // namespace
}  // namespace ebb::test

int main(int argc, char** argv) { return ebb::test::run_on_device(argc, argv); }
