#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/reference/numeric.h"

// A scorer in double precision, written from the retriever reference 2.1 and 2.2 alone: what is
// single precision there (angles, rotation) is so here, and nothing else.

namespace ebb::reference {

/// Weights as stored, row-major.
struct Retriever {
  std::int64_t d_model = 0, rank = 0;
  std::int32_t n_heads = 0, d = 0, n_pairs = 0;
  std::vector<double> wq_a;     // [rank, d_model]
  std::vector<double> q_norm;   // [rank]
  std::vector<double> wq_b;     // [n_heads * d, rank]
  std::vector<double> weights;  // [n_heads, d_model]
};

/// 2.2: base 160000, factor 16, original context 65536, betas 32 and 1; wants 16 pairs or more,
/// where the upper limit of the ramp does not matter.
inline std::vector<double> retriever_frequencies(std::int32_t n_pairs) {
  const double base = 160000, factor = 16, context = 65536, pi = std::acos(-1.0);
  const double width = 2 * n_pairs;
  const auto corr = [&](double n) {
    return width * std::log(context / (2 * pi * n)) / (2 * std::log(base));
  };
  const double low = std::max(std::floor(corr(32)), 0.0);
  const double high = std::min(std::ceil(corr(1)), static_cast<double>(n_pairs - 1));
  std::vector<double> f;
  for (std::int32_t i = 0; i < n_pairs; ++i) {
    const double f0 = std::pow(base, -2 * i / width);
    const double ramp = i < low ? 0 : i >= high ? 1 : (i - low) / (high - low);
    f.push_back(f0 * (1 - ramp) + f0 / factor * ramp);
  }
  return f;
}

/// y = W x, W [n_out, n_in].
inline std::vector<double> times(const std::vector<double>& w, const std::vector<double>& x) {
  std::vector<double> y(w.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o) {
    const double* const row = w.data() + o * x.size();
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += row[i] * x[i];
  }
  return y;
}

/// H x / sqrt(n) by the definition: H[i][j] = (-1)^(number of ones in i & j).
inline void hadamard_by_definition(std::span<double> x) {
  const std::vector<double> from(x.begin(), x.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      x[i] += (__builtin_popcountll(i & j) % 2 == 0 ? from[j] : -from[j]);
    }
    x[i] /= std::sqrt(static_cast<double>(x.size()));
  }
}

inline float to_bf16(double x) { return static_cast<float>(bf16_to_double(double_to_bf16(x))); }

/// Items 1 to 5 for one query: q [n_heads, d]. With `rounds` as deployed, else as trained.
inline std::vector<double> retriever_query(const Retriever& r, const std::vector<double>& x,
                                           std::int64_t pos, bool rounds) {
  std::vector<double> a = times(r.wq_a, x);
  double squares = 0;
  for (const double v : a) squares += v * v;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(a.size()) + 1e-6);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= inverse * r.q_norm[i];
  std::vector<double> q = times(r.wq_b, a);
  if (rounds) {
    for (double& v : q) v = to_bf16(v);
  }
  const std::vector<double> f = retriever_frequencies(r.n_pairs);
  for (std::int32_t h = 0; h < r.n_heads; ++h) {
    double* const rotated = q.data() + h * r.d + (r.d - 2 * r.n_pairs);
    for (std::int32_t i = 0; i < r.n_pairs; ++i) {
      const float angle =
          static_cast<float>(pos) * static_cast<float>(f[static_cast<std::size_t>(i)]);
      const float c = std::cos(angle), s = std::sin(angle);
      const auto u = static_cast<float>(rotated[2 * i]), v = static_cast<float>(rotated[2 * i + 1]);
      const float first = u * c - v * s, second = u * s + v * c;
      rotated[2 * i] = rounds ? to_bf16(first) : first;
      rotated[2 * i + 1] = rounds ? to_bf16(second) : second;
    }
  }
  return q;
}

/// All of 2.1: logits of `keys` [n, d] as stored; those are transformed if `transformed`.
inline std::vector<double> retriever_logits(const Retriever& r, const std::vector<double>& x,
                                            std::int64_t pos, const std::vector<double>& keys,
                                            bool transformed, bool rounds) {
  std::vector<double> q = retriever_query(r, x, pos, rounds);
  const auto d = static_cast<std::size_t>(r.d);
  for (std::size_t h = 0; transformed && h < q.size(); h += d) {
    hadamard_by_definition(std::span(q).subspan(h, d));
  }
  std::vector<double> w = times(r.weights, x);
  for (double& v : w) v *= std::pow(r.d, -0.5) * std::pow(r.n_heads, -0.5);
  std::vector<double> logits(keys.size() / d);
  for (std::size_t n = 0; n < logits.size(); ++n) {
    for (std::size_t h = 0; h < w.size(); ++h) {
      double dot = 0;
      for (std::size_t i = 0; i < d; ++i) dot += q[h * d + i] * keys[n * d + i];
      logits[n] += w[h] * std::max(dot, 0.0);
    }
  }
  return logits;
}

}  // namespace ebb::reference
