#define BOOST_TEST_DYN_LINK
#include "kernels/cuda/hyper.h"
#include "tests/cuda/mirror.h"
#include "tests/kernels/hyper_bench.h"

using namespace ebb;
using namespace ebb::test;

namespace {

HyperWeights placed(const Connection& c, Mirror& mirror) {
  HyperWeights weights = c.weights();
  weights.fn.data = mirror.put(c.fn);
  weights.base = mirror.put(c.base);
  weights.scale = mirror.put(c.scale);
  return weights;
}

/// What hc_post before hc_pre reads, and the experts before that.
struct Before {
  Floats o, post, comb;
  Floats partial, weights;
  std::vector<std::int32_t> ids;
  std::int32_t n_used = 0;
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
  a.hyper = placed(c, mirror);
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

/// Steps have room for more rows than they hold.
PreOut run_pre(const Connection& c, const Step& step, const Floats& streams) {
  return run_pre(c, step, streams, false, nullptr, step.n_rows + 2);
}

void run_post(const Step& step, const Floats& o, const Floats& post, const Floats& comb,
              Floats& streams, std::int32_t n_streams, std::int64_t d) {
  Mirror mirror;
  const HcPostArgs a{mirror.step(step),
                     mirror.put(o),
                     mirror.put(post),
                     mirror.put(comb),
                     mirror.share(streams),
                     n_streams,
                     d};
  require_cuda(cuda::hc_post(mirror.launch(0), a));
  mirror.fetch();
}

Floats run_head(const Connection& c, const Step& step, const Floats& streams) {
  Floats y = nan_floats(step.n_out * c.d);
  Mirror mirror;
  HcHeadArgs a;
  a.step = mirror.step(step);
  a.streams = mirror.put(streams);
  a.hyper = placed(c, mirror);
  a.norm_weight = mirror.put(c.norm);
  a.y = mirror.share(y);
  a.n_streams = c.n_streams;
  a.d = c.d;
  require_cuda(
      cuda::hc_head(mirror.launch(cuda::hyper_workspace(step.n_out, c.n_streams, c.d)), a));
  mirror.fetch();
  return y;
}

bool has_clusters() { return Mirror().clusters(); }

}  // namespace

// One list for all backends; it wants the functions above.
#include "tests/kernels/hyper_suite.h"

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
        Before summed = before;  // as experts that add their parts themselves leave it
        summed.n_used = 0;
        const PreOut apart = run_pre(c, step, streams, true, &summed);
        BOOST_TEST((got.streams == apart.streams));
        BOOST_TEST((got.y == apart.y));
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

// Whether a step has an op between the two decides if one launch does both: it must not show.
BOOST_AUTO_TEST_CASE(hc_pre_has_the_same_bits_with_what_comes_before_it_and_behind_it) {
  Random random(68);
  for (const bool clusters : {false, true}) {
    if (clusters && !has_clusters()) continue;
    for (const std::int64_t d : {64, 320, 4096}) {
      for (const std::int32_t n_rows : {1, 2, 20}) {
        const Connection c(random, 4, d, false, DType::f16);
        Step step;
        step.add_run(0, 0, n_rows);
        const Floats streams = normal_floats(random, n_rows * 4 * d, 2);
        Before before;
        before.o = normal_floats(random, n_rows * d);
        before.post = normal_floats(random, n_rows * 4);
        before.comb = normal_floats(random, n_rows * 16);
        const PreOut together = run_pre(c, step, streams, clusters, &before);
        Floats moved = streams;
        run_post(step, before.o, before.post, before.comb, moved, 4, d);
        const PreOut apart = run_pre(c, step, moved, clusters);
        BOOST_TEST((together.streams == moved));
        BOOST_TEST((together.y == apart.y));
        BOOST_TEST((together.post == apart.post));
        BOOST_TEST((together.comb == apart.comb));
      }
    }
  }
}
