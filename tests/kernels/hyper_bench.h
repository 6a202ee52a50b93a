#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "kernels/numeric.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/step.h"
#include "tests/reference/hyper.h"
#include "tests/reference/norm_rope.h"

namespace ebb::test {

/// Weights of one hyper-connection, in both precisions.
struct Connection {
  std::int32_t n_streams, n_mix;
  std::int64_t d;
  DType type;
  std::vector<std::byte> fn;
  Floats base, scale, norm;
  reference::HyperWeights exact;
  reference::HyperParams params;

  Connection(Random& random, std::int32_t streams, std::int64_t d_, bool head, DType type_)
      : n_streams(streams), n_mix(head ? streams : (2 + streams) * streams), d(d_), type(type_) {
    const std::int64_t n_in = n_streams * d;
    Floats values = normal_floats(random, n_mix * n_in, 0.1f);
    fn.resize(static_cast<std::size_t>(n_mix * row_bytes(type, n_in)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type == DType::f32) {
        std::memcpy(&fn[4 * i], &values[i], 4);
      } else {
        const bool f16 = type == DType::f16;
        const std::uint16_t half = f16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
        values[i] = f16 ? f16_to_float(half) : bf16_to_float(half);
        std::memcpy(&fn[2 * i], &half, 2);
      }
    }
    base = normal_floats(random, n_mix);
    scale = normal_floats(random, head ? 1 : 3, 0.2f, 1);
    norm = normal_floats(random, d, 0.2f, 1);
    exact.fn = {n_mix, n_in, to_double(values)};
    exact.scale = to_double(scale);
    exact.base = to_double(base);
    params.n_streams = n_streams;
  }
  /// The weights without memory: fn, base and scale are the caller's to place.
  HyperWeights weights() const {
    return {{nullptr, type, n_streams * d, n_mix, 1}, nullptr, nullptr, 1e-6f, 1e-6f, 20};
  }
};

struct PreOut {
  Floats y, post, comb, streams;
};

inline std::vector<double> row_of(const Floats& x, std::int64_t row, std::int64_t width) {
  return to_double(&x[static_cast<std::size_t>(row * width)], width);
}

/// What hc_pre gave for row r, whose streams were these.
inline void check_row(const Connection& c, const PreOut& got, std::int64_t r,
                      const std::vector<double>& streams) {
  const std::int64_t s = c.n_streams;
  const auto want = reference::hyper_pre(c.exact, streams, c.params);
  const auto y = reference::rms_norm(want.x, to_double(c.norm), 1e-6);
  BOOST_TEST(largest_error(&got.y[static_cast<std::size_t>(r * c.d)], y) < 3e-5);
  BOOST_TEST(largest_error(&got.post[static_cast<std::size_t>(r * s)], want.post) < 1e-5);
  BOOST_TEST(largest_error(&got.comb[static_cast<std::size_t>(r * s * s)], want.comb) < 1e-5);
}

}  // namespace ebb::test
