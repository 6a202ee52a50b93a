#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "kernels/ops/attention.h"
#include "kernels/rope.h"
#include "tests/kernels/step.h"
#include "tests/reference/indexer.h"

// Angles and vectors as they were where scorers were trained, for any backend: `run` does the op on
// what it gets and leaves the answer there.

namespace ebb::test {

/// Table [rows, n_pairs, 2] of a step, angles in single precision.
using RunAngles = std::function<Floats(const Step&, const std::vector<double>&, std::int32_t)>;

inline void single_angles_are_products_rounded_to_f32(const RunAngles& run) {
  std::vector<double> frequency(32);
  rope_frequencies({160000, 16, 65536, 32, 1}, 32, frequency.data());
  for (const std::int32_t offset : {0, -3}) {
    Step step;
    for (const std::int32_t pos : {0, 127, 4095, 65535, 65536, 262143, 1048575}) {
      step.add_run(0, pos, 1);
    }
    const Floats table = run(step, frequency, offset);
    double furthest = 0;  // from the exact angle
    for (std::size_t r = 0; r < step.pos.size(); ++r) {
      const std::int32_t position = step.pos[r] + offset;
      for (std::size_t i = 0; i < 32; ++i) {
        const float* const got = &table[(r * 32 + i) * 2];
        if (position < 0) {
          BOOST_TEST((std::isnan(got[0]) && std::isnan(got[1])));
          continue;
        }
        // The product of two f32 numbers is exact in double; this rounds it once.
        const double product =
            static_cast<double>(position) * static_cast<double>(static_cast<float>(frequency[i]));
        const auto angle = static_cast<long double>(static_cast<float>(product));
        BOOST_TEST(std::fabs(got[0] - std::cos(angle)) < 3.1e-8L);
        BOOST_TEST(std::fabs(got[1] - std::sin(angle)) < 3.1e-8L);
        const double exact = position * frequency[i];
        furthest = std::max(furthest, std::fabs(got[0] - std::cos(exact)));
      }
    }
    BOOST_TEST(furthest > 0.005);
  }
}

/// x rounded to 8 significant bits, ties to the even one: bf16, but for the ends of its range.
inline double nearest_bf16(double x) {
  int exponent = 0;
  const double part = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(part, 8)), exponent - 8);
}

/// What Rounding::bf16 and bf16_hadamard make of a head: f32 products and differences one by one.
inline std::vector<double> bf16_head(const float* x, std::int32_t d, std::int32_t n_pairs,
                                     const float* cos_sin, bool transformed) {
  std::vector<double> v;
  for (std::int32_t i = 0; i < d; ++i) v.push_back(nearest_bf16(static_cast<double>(x[i])));
  const auto f32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  for (std::int32_t i = 0; i < n_pairs; ++i) {
    double* const pair = &v[static_cast<std::size_t>(d - 2 * n_pairs + 2 * i)];
    const double c = static_cast<double>(cos_sin[2 * i]),
                 s = static_cast<double>(cos_sin[2 * i + 1]);
    const double a = pair[0], b = pair[1];
    pair[0] = nearest_bf16(f32(f32(a * c) - f32(b * s)));
    pair[1] = nearest_bf16(f32(f32(a * s) + f32(b * c)));
  }
  if (transformed) reference::hadamard(v);
  return v;
}

/// Heads [rows, n_heads, d] after the op, with tables [rows, n_pairs, 2].
struct HeadsBench {
  std::int32_t n_heads, d, n_pairs;
  Rounding rounding;
  Floats x, table;
};
using RunHeads = std::function<void(HeadsBench&, const Step&)>;

inline void bf16_heads_equal_the_reference(const RunHeads& run) {
  Random random(75);
  for (const Rounding rounding : {Rounding::bf16, Rounding::bf16_hadamard}) {
    for (const auto& [n_heads, d, n_pairs] :
         {std::tuple{128, 128, 32}, {3, 128, 64}, {1, 64, 16}, {9, 256, 32}, {2, 16, 0}}) {
      HeadsBench bench{n_heads, d, n_pairs, rounding, {}, {}};
      Step step;
      step.add_run(0, 70000, 3);
      bench.x = normal_floats(random, std::int64_t{3} * n_heads * d, 2);
      // Numbers halfway between two of bf16, of any size and sign, and their neighbours; the first
      // row does not rotate, so that they come through as they are.
      for (std::size_t i = 0; i < bench.x.size(); i += 3) {
        const auto half = static_cast<double>(2 * (random() % 128) + 257) / 256;
        float value = static_cast<float>(std::ldexp(half, static_cast<int>(random() % 20) - 10));
        if (random() % 4 == 0) value = std::nextafter(value, random() % 2 == 0 ? 0.0f : 1e30f);
        bench.x[i] = random() % 2 == 0 ? value : -value;
      }
      for (std::int32_t r = 0; r < 3; ++r) {
        for (std::int32_t i = 0; i < n_pairs; ++i) {
          float angle[2] = {1, 0};
          if (r == 1) rope_entry_single(70001, 1.0 / (i + 1), angle);
          // 1 + 2^-8 and 1 - 2^-8 times bf16 numbers: halfway after the rotation too.
          if (r == 2) angle[1] = i % 2 == 0 ? 0x1p-8f : -0x1p-8f;
          bench.table.insert(bench.table.end(), angle, angle + 2);
        }
      }
      if (bench.table.empty()) bench.table.push_back(1);
      const Floats x = bench.x;
      run(bench, step);
      for (std::int32_t r = 0; r < 3; ++r) {
        for (std::int32_t h = 0; h < n_heads; ++h) {
          const auto at = static_cast<std::size_t>((r * n_heads + h) * d);
          const auto want =
              bf16_head(&x[at], d, n_pairs, &bench.table[static_cast<std::size_t>(r * n_pairs * 2)],
                        rounding == Rounding::bf16_hadamard);
          // The transform's sums are as exact as their largest part.
          double largest = 0;
          for (std::int32_t i = 0; i < d; ++i) {
            largest = std::max(largest,
                               std::fabs(static_cast<double>(x[at + static_cast<std::size_t>(i)])));
          }
          const double limit = rounding == Rounding::bf16 ? 0 : 1e-6 * largest;
          for (std::size_t i = 0; i < want.size(); ++i) {
            BOOST_REQUIRE(std::fabs(bench.x[at + i] - want[i]) <= limit);
          }
        }
      }
    }
  }
}

/// Rows that end as bf16 numbers: a step of one chunk appends its rows and emits the chunk's.
struct RowsBench {
  std::int32_t d, n_pairs;
  Rounding rounding;
  Floats kv, gate, ape, norm, table;  // kv [4, d]; gate [4, 2 d], as compress takes its kv too
  Floats series;                      // [4, 2 d] kv of compress
  OwnedStore ring, chunks;
};
using RunRows = std::function<void(RowsBench&, const Step&)>;

/// Vectors of 1 and -1 have the norm 1 and a pooled chunk of them is one of them, so that the
/// norm's weights come through as they are.
inline void bf16_rows_equal_the_reference(const RunRows& run) {
  Random random(76);
  for (const Rounding rounding : {Rounding::bf16, Rounding::bf16_hadamard}) {
    for (const auto& [d, n_pairs] : {std::pair{128, 32}, {512, 32}, {64, 16}}) {
      RowsBench bench{d,
                      n_pairs,
                      rounding,
                      {},
                      normal_floats(random, 8 * d),
                      Floats(),
                      {},
                      {},
                      {},
                      OwnedStore(RowFormat::f32, d, 0, 8),
                      OwnedStore(RowFormat::f32, d, 0, 3)};
      bench.ape = normal_floats(random, 8 * d);
      bench.norm = normal_floats(random, d, 2);
      bench.norm[3] = 1 + 0x1p-8f;
      bench.norm[static_cast<std::size_t>(d - 1)] = 1 + 3 * 0x1p-8f;
      for (std::int32_t i = 0; i < 4 * 2 * d; ++i) {
        const float sign = i % d % 3 == 0 ? -1.0f : 1.0f;
        bench.series.push_back(sign);
        if (i < 4 * d) bench.kv.push_back(sign);
      }
      for (std::int32_t i = 0; i < 4 * n_pairs; ++i) {
        float angle[2];
        rope_entry_single(i % 7 == 0 ? 0 : 4321 + i, 1.0 / (i + 1), angle);
        bench.table.insert(bench.table.end(), angle, angle + 2);
      }
      Step step;
      step.add_run(0, 0, 4);
      run(bench, step);
      Floats normed = bench.norm;
      for (std::int32_t i = 0; i < d; i += 3) normed[static_cast<std::size_t>(i)] *= -1;
      const auto require_row = [&](std::byte* row, std::int32_t r) {
        const std::int32_t at = r * bench.n_pairs * 2;
        const auto want = bf16_head(normed.data(), bench.d, bench.n_pairs,
                                    &bench.table[static_cast<std::size_t>(at)],
                                    rounding == Rounding::bf16_hadamard);
        const auto* const got = reinterpret_cast<const float*>(row);
        for (std::size_t i = 0; i < want.size(); ++i) {
          const double limit = rounding == Rounding::bf16 ? 0 : 1e-5;
          BOOST_REQUIRE(std::fabs(got[i] - want[i]) <= limit);
        }
      };
      for (std::int32_t r = 0; r < 4; ++r) require_row(bench.ring.row(0, r), r);
      require_row(bench.chunks.row(0, 0), 3);
    }
  }
}

}  // namespace ebb::test
