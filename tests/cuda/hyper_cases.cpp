#define BOOST_TEST_DYN_LINK
#include <algorithm>
#include <cstring>

#include "kernels/cuda/hyper.h"
#include "kernels/numeric.h"
#include "tests/cuda/mirror.h"
#include "tests/reference/hyper.h"
#include "tests/reference/norm_rope.h"

using namespace ebb;
using namespace ebb::test;

namespace {

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
  HyperWeights weights(Mirror& mirror) const {
    return {{mirror.put(fn), type, n_streams * d, n_mix, 1},
            mirror.put(base),
            mirror.put(scale),
            1e-6f,
            1e-6f,
            20};
  }
};

/// What hc_post before hc_pre reads, and the experts before that.
struct Before {
  Floats o, post, comb;
  Floats partial, weights;
  std::vector<std::int32_t> ids;
  std::int32_t n_used = 0;
};

struct PreOut {
  Floats y, post, comb, streams;
};

PreOut run_pre(const Connection& c, const Step& step, const Floats& streams, bool clusters,
               const Before* before = nullptr, std::int32_t max_rows = 0) {
  const std::int32_t s = c.n_streams;
  PreOut out{nan_floats(step.n_rows * c.d), nan_floats(step.n_rows * s),
             nan_floats(step.n_rows * s * s), streams};
  Floats mix = nan_floats(step.n_rows * c.n_mix);
  Mirror mirror;
  HcPreArgs a;
  a.step = mirror.step(step, max_rows);
  a.hyper = c.weights(mirror);
  a.norm_weight = mirror.put(c.norm);
  a.mix = mirror.share(mix);
  a.y = mirror.share(out.y);
  HcPostArgs p;
  ExpertsArgs e;
  if (before != nullptr) {
    // Both halves use one post and one comb, as a decoder does.
    out.post = before->post;
    out.comb = before->comb;
  }
  a.streams = mirror.share(out.streams);
  a.post = mirror.share(out.post);
  a.comb = mirror.share(out.comb);
  a.n_streams = s;
  a.d = c.d;
  if (before != nullptr) {
    p = {a.step, mirror.put(before->o), a.post, a.comb, const_cast<float*>(a.streams), s, c.d};
    if (before->n_used > 0) {
      e.step = a.step;
      e.partial = const_cast<float*>(mirror.put(before->partial));
      e.ids = mirror.put(before->ids);
      e.weights = mirror.put(before->weights);
      e.n_used = before->n_used;
      e.routed.gate.n_mats = 8;
    }
  }
  const HcPostArgs* const post = before != nullptr ? &p : nullptr;
  if (clusters) {
    BOOST_REQUIRE(cuda::hc_fits_clusters(a));
    require_cuda(cuda::hc_pre_clusters(mirror.launch(0), a, post,
                                       before != nullptr && before->n_used > 0 ? &e : nullptr));
  } else {
    require_cuda(cuda::hc_pre(
        mirror.launch(cuda::hyper_workspace(a.step.max_rows, a.n_streams, a.d)), a, post));
  }
  mirror.fetch();
  return out;
}

std::vector<double> row_of(const Floats& x, std::int64_t row, std::int64_t width) {
  return to_double(&x[static_cast<std::size_t>(row * width)], width);
}

void check_row(const Connection& c, const PreOut& got, std::int64_t r,
               const std::vector<double>& streams) {
  const std::int64_t s = c.n_streams;
  const auto want = reference::hyper_pre(c.exact, streams, c.params);
  const auto y = reference::rms_norm(want.x, to_double(c.norm), 1e-6);
  BOOST_TEST(largest_error(&got.y[static_cast<std::size_t>(r * c.d)], y) < 3e-5);
  BOOST_TEST(largest_error(&got.post[static_cast<std::size_t>(r * s)], want.post) < 1e-5);
  BOOST_TEST(largest_error(&got.comb[static_cast<std::size_t>(r * s * s)], want.comb) < 1e-5);
}

bool has_clusters() { return Mirror().clusters(); }

}  // namespace

BOOST_AUTO_TEST_CASE(hc_pre_equals_the_reference_for_every_type_and_stream_count) {
  Random random(61);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 96}, {8, 32}, {3, 192}, {4, 4096}}) {
      const Connection c(random, s, d, false, type);
      Step step;
      step.add_run(0, 0, 5);
      const Floats streams = normal_floats(random, step.n_rows * s * d, 2);
      const PreOut got = run_pre(c, step, streams, false, nullptr, 7);
      for (std::int64_t r = 0; r < step.n_rows; ++r) {
        check_row(c, got, r, row_of(streams, r, s * d));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(hc_pre_by_clusters_equals_the_reference_with_and_without_what_comes_before) {
  if (!has_clusters()) {
    BOOST_TEST_MESSAGE("SKIPPED: this device has no clusters of blocks");
    return;
  }
  Random random(67);
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const std::int64_t d : {64, 96, 256, 320, 512, 2048, 4096}) {
      const Connection c(random, 4, d, false, type);
      Step step;
      step.add_run(0, 0, 5);
      const Floats streams = normal_floats(random, 5 * 4 * d, 2);
      PreOut got = run_pre(c, step, streams, true, nullptr, 9);
      for (std::int64_t r = 0; r < 5; ++r) check_row(c, got, r, row_of(streams, r, 4 * d));
      for (const std::int32_t n_used : {0, 1, 6, 9}) {
        Before before;
        before.n_used = n_used;
        before.post = normal_floats(random, 5 * 4);
        before.comb = normal_floats(random, 5 * 16);
        before.o = normal_floats(random, 5 * d);
        if (n_used > 0) {
          before.partial = normal_floats(random, 5 * (n_used + 1) * d);
          before.weights = normal_floats(random, 5 * n_used);
          before.ids.assign(static_cast<std::size_t>(5 * n_used), 7);
          for (std::int64_t r = 0; r < 5; ++r) {
            for (std::int64_t i = 0; i < d; ++i) {
              const auto at = [&](std::int64_t slot) {
                return before.partial[static_cast<std::size_t>((r * (n_used + 1) + slot) * d + i)];
              };
              float sum = 0;
              for (std::int64_t slot = 0; slot < n_used; ++slot) {
                sum += before.weights[static_cast<std::size_t>(r * n_used + slot)] * at(slot);
              }
              before.o[static_cast<std::size_t>(r * d + i)] = sum + at(n_used);
            }
          }
        }
        Before given = before;
        if (n_used > 0) given.o = nan_floats(5 * d);
        got = run_pre(c, step, streams, true, &given);
        for (std::int64_t r = 0; r < 5; ++r) {
          const reference::HyperMix mix{{}, row_of(before.post, r, 4), row_of(before.comb, r, 16)};
          const auto want =
              reference::hyper_post(row_of(before.o, r, d), row_of(streams, r, 4 * d), mix);
          BOOST_TEST(largest_error(&got.streams[static_cast<std::size_t>(r * 4 * d)], want) < 4e-6);
          check_row(c, got, r, row_of(got.streams, r, 4 * d));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(hc_pre_of_a_row_does_not_depend_on_the_batch) {
  Random random(63);
  for (const bool clusters : {false, true}) {
    if (clusters && !has_clusters()) continue;
    for (const std::int64_t d : {128, 4096}) {
      const Connection c(random, 4, d, false, DType::f16);
      Step all;
      all.add_run(0, 0, 130);
      const Floats streams = normal_floats(random, 130 * 4 * d);
      const PreOut want = run_pre(c, all, streams, clusters);
      for (const std::int32_t n : {1, 2, 7, 33}) {
        for (std::int32_t first = 0; first + n <= 130; first += n + 31) {
          Step part;
          part.add_run(0, first, n);
          const PreOut got = run_pre(
              c, part, {streams.begin() + first * 4 * d, streams.begin() + (first + n) * 4 * d},
              clusters);
          BOOST_REQUIRE(std::equal(got.y.begin(), got.y.end(), want.y.begin() + first * d));
          BOOST_REQUIRE(
              std::equal(got.comb.begin(), got.comb.end(), want.comb.begin() + first * 16));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(hc_post_sums_over_the_source_stream) {
  Random random(64);
  for (const auto& [s, d] : {std::pair{4, 256}, {1, 64}, {2, 97}, {8, 5}}) {
    Step step;
    step.add_run(0, 0, 3);
    const Floats o = normal_floats(random, 3 * d), post = normal_floats(random, 3 * s),
                 comb = normal_floats(random, 3 * s * s),
                 before = normal_floats(random, std::int64_t{3} * s * d);
    Floats streams = before;
    Mirror mirror;
    HcPostArgs a{mirror.step(step),
                 mirror.put(o),
                 mirror.put(post),
                 mirror.put(comb),
                 mirror.share(streams),
                 s,
                 d};
    require_cuda(cuda::hc_post(mirror.launch(0), a));
    mirror.fetch();
    for (std::int64_t r = 0; r < 3; ++r) {
      const reference::HyperMix mix{{}, row_of(post, r, s), row_of(comb, r, s * s)};
      const auto want = reference::hyper_post(row_of(o, r, d), row_of(before, r, s * d), mix);
      BOOST_TEST(largest_error(&streams[static_cast<std::size_t>(r * s * d)], want) < 2e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(hc_head_serves_the_out_rows_only) {
  Random random(65);
  const Connection c(random, 4, 192, true, DType::f32);
  Step step;
  step.add_run(0, 0, 9);
  step.out_row = {8, 2};
  step.n_out = 2;
  Floats streams = normal_floats(random, 9 * 4 * 192);
  for (std::size_t i = 0; i < 2 * 768; ++i) streams[i] = std::numeric_limits<float>::quiet_NaN();
  Floats y = nan_floats(2 * 192);
  Mirror mirror;
  HcHeadArgs a;
  a.step = mirror.step(step);
  a.streams = mirror.put(streams);
  a.hyper = c.weights(mirror);
  a.norm_weight = mirror.put(c.norm);
  a.y = mirror.share(y);
  a.n_streams = 4;
  a.d = 192;
  require_cuda(cuda::hc_head(mirror.launch(cuda::hyper_workspace(2, 4, 192)), a));
  mirror.fetch();
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto row = row_of(streams, step.out_row[static_cast<std::size_t>(i)], 768);
    const auto want =
        reference::rms_norm(reference::hyper_head(c.exact, row, c.params), to_double(c.norm), 1e-6);
    BOOST_TEST(largest_error(&y[static_cast<std::size_t>(i * 192)], want) < 1e-5);
  }
}
