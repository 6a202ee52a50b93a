#define BOOST_TEST_MODULE reference
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/reference/attention.h"
#include "tests/reference/compressor.h"
#include "tests/reference/hyper.h"
#include "tests/reference/indexer.h"
#include "tests/reference/moe.h"
#include "tests/reference/norm_rope.h"

// Known values of the model's parts. Where a test names no source, its expectation follows by hand
// from the formula in the header under test.

using namespace ebb::reference;

namespace {

void check_close(double found, double expected, double tolerance) {
  BOOST_TEST(std::fabs(found - expected) <= tolerance,
             "found " << found << ", expected " << expected << " within " << tolerance);
}

const Yarn kFlashYarn{16, 65536, 32, 1};

}  // namespace

BOOST_AUTO_TEST_SUITE(hyper_connections)

BOOST_AUTO_TEST_CASE(sinkhorn_reaches_known_values_after_20_iterations) {
  const Vector logits{2, 0, 0, -1, 0, 3, 0, 0, 1, 0, 2, 0, 0, 0, -1, 4};
  const Vector expected{.742128, .081302, .157895, .019159, .051706, .840657, .081286, .026811,
                        .173635, .051707, .742002, .033122, .032531, .026333, .018816, .920908};
  const Vector found = sinkhorn(logits, 4, 20, 1e-6);
  for (std::size_t i = 0; i < expected.size(); ++i) check_close(found[i], expected[i], 6e-7);
}

BOOST_AUTO_TEST_CASE(sinkhorn_of_one_iteration_divides_columns_once) {
  const Vector logits{2, 0, 0, -1, 0, 3, 0, 0, 1, 0, 2, 0, 0, 0, -1, 4};
  const Vector expected{.726298, .095547, .134404, .033604};
  const Vector found = sinkhorn(logits, 4, 1, 1e-6);
  for (std::size_t i = 0; i < expected.size(); ++i) check_close(found[i], expected[i], 6e-7);
}

BOOST_AUTO_TEST_CASE(streams_mix_from_the_first_index_to_the_second) {
  HyperMix mix;
  mix.post = {2, 0};
  mix.comb = {0, 1, 0, 0};  // stream 0 flows into stream 1, stream 1 into nothing
  const Vector streams{5, 6, 7, 8};
  const Vector expected{20, 40, 5, 6};
  const Vector found = hyper_post({10, 20}, streams, mix);
  BOOST_TEST(found == expected);
}

BOOST_AUTO_TEST_CASE(zero_mix_weights_leave_bases_alone) {
  const HyperWeights w{{24, 8, Vector(192, 0.0)}, {1, 1, 1}, Vector(24, 0.0)};
  const Vector streams{1, 2, 3, 4, 5, 6, 7, 8};
  const HyperMix mix = hyper_pre(w, streams, {});
  check_close(mix.x[0], (0.5 + 1e-6) * (1 + 3 + 5 + 7), 1e-12);
  check_close(mix.post[2], 1.0, 1e-12);
  for (const double c : mix.comb) check_close(c, 0.25, 1e-6);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(rope)

BOOST_AUTO_TEST_CASE(window_layers_use_plain_frequencies) {
  const Vector f = rope_frequencies(64, 10000);
  BOOST_TEST(f.size() == 32U);
  check_close(f[1], 0.7498942093, 5e-11);
  check_close(f[31], 1.333521432e-4, 5e-14);
}

BOOST_AUTO_TEST_CASE(compressing_layers_blend_frequencies_between_pairs_15_and_25) {
  const Vector f = rope_frequencies_yarn(64, 160000, kFlashYarn);
  const Vector plain = rope_frequencies(64, 160000);
  check_close(f[1], 0.687656, 5e-7);
  check_close(f[8], 5.0e-2, 1e-15);
  check_close(f[15], 3.635538584e-3, 5e-13);
  check_close(f[16], 2.265625e-3, 1e-15);
  check_close(f[16] / plain[16], 0.90625, 1e-12);
  check_close(f[20], 2.969777783e-4, 5e-14);
  check_close(f[24], 1.953125e-5, 1e-17);
  check_close(f[25], 5.372312671e-6, 5e-16);
  check_close(f[31], 5.680529037e-7, 5e-17);
}

BOOST_AUTO_TEST_CASE(pair_16_at_position_5000_has_the_known_angle) {
  const Vector f = rope_frequencies_yarn(64, 160000, kFlashYarn);
  Vector head(64, 0.0);
  head[32] = 1;
  rotate(head, f, 5000);
  check_close(head[32], 0.326455, 5e-7);
  check_close(head[33], -0.945213, 5e-7);
}

BOOST_AUTO_TEST_CASE(only_the_last_dims_rotate_in_adjacent_pairs) {
  const Vector f = rope_frequencies(64, 10000);
  Vector head(512, 0.0);
  head[3] = 2;
  head[448] = 1;
  rotate(head, f, 1);
  Vector expected(512, 0.0);
  expected[3] = 2;
  expected[448] = std::cos(1.0);
  expected[449] = std::sin(1.0);
  BOOST_TEST(head == expected);
}

BOOST_AUTO_TEST_CASE(rotation_keeps_length_and_its_inverse_undoes_it) {
  const Vector f = rope_frequencies_yarn(64, 160000, kFlashYarn);
  Vector head;
  for (int i = 0; i < 128; ++i) head.push_back(std::sin(i * 1.7));
  const Vector before = head;
  rotate(head, f, 123457);
  check_close(dot(head, head), dot(before, before), 1e-10);
  rotate(head, f, 123457, -1);
  for (std::size_t i = 0; i < head.size(); ++i) check_close(head[i], before[i], 1e-12);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(compressor)

namespace {

/// Width 1, model width 2; at ratio 4 column 0 is the previous chunk's series, column 1 this one's.
CompressorWeights plain_weights(std::int64_t ratio) {
  const std::int64_t c = ratio == 4 ? 2 : 1;
  CompressorWeights w;
  w.kv = {c, 2, ratio == 4 ? Vector{1, 0, 0, 1} : Vector{1, 0}};
  w.gate = {c, 2, Vector(static_cast<std::size_t>(2 * c), 0.0)};
  w.ape = {ratio, c, Vector(static_cast<std::size_t>(ratio * c), 0.0)};
  w.norm = {1};
  return w;
}

/// What the norm makes of a row of one value: its sign. The unnormed row is seen through eps.
double unnormed(double value, double eps) { return value / std::sqrt(value * value + eps); }

}  // namespace

BOOST_AUTO_TEST_CASE(ratio_4_pools_eight_tokens_from_two_column_series) {
  const CompressorWeights w = plain_weights(4);
  const Vector no_rotation;
  const double eps = 1e6;  // far above the values, so that the norm keeps their size
  Compressor compressor(w, no_rotation, eps);
  for (int t = 0; t < 8; ++t) {
    const Vector a{100.0 + t, 1.0 + t};
    const std::optional<Vector> row = compressor.push(a);
    BOOST_TEST(row.has_value() == (t % 4 == 3));
    if (t == 3) check_close(row->front(), unnormed((1 + 2 + 3 + 4) / 4.0, eps), 1e-15);
    if (t == 7) {
      const double previous = 100 + 101 + 102 + 103, current = 5 + 6 + 7 + 8;
      check_close(row->front(), unnormed((previous + current) / 8, eps), 1e-15);
    }
  }
}

BOOST_AUTO_TEST_CASE(ape_weighs_tokens_by_their_place_in_the_chunk) {
  CompressorWeights w = plain_weights(4);
  w.ape.values[2 * 2 + 1] = 1000;  // third token of the current series takes all the weight
  const Vector no_rotation;
  const double eps = 1e6;
  Compressor compressor(w, no_rotation, eps);
  for (int t = 0; t < 12; ++t) {
    const std::optional<Vector> row = compressor.push(Vector{100.0 + t, 1.0 + t});
    if (row) check_close(row->front(), unnormed(t, eps), 1e-15);  // token t-1 holds value t
  }
}

BOOST_AUTO_TEST_CASE(ratio_128_pools_its_own_tokens_only) {
  const CompressorWeights w = plain_weights(128);
  const Vector no_rotation;
  const double eps = 1e6;
  Compressor compressor(w, no_rotation, eps);
  for (int t = 0; t < 256; ++t) {
    const std::optional<Vector> row = compressor.push(Vector{t < 128 ? 7.0 : 3.0, 0.0});
    BOOST_TEST(row.has_value() == (t % 128 == 127));
    if (row) check_close(row->front(), unnormed(t < 128 ? 7.0 : 3.0, eps), 1e-15);
  }
}

BOOST_AUTO_TEST_CASE(a_row_is_rotated_to_its_chunks_first_token) {
  CompressorWeights w;
  w.kv = {4, 1, {1, 0, 1, 0}};
  w.gate = {4, 1, Vector(4, 0.0)};
  w.ape = {4, 4, Vector(16, 0.0)};
  w.norm = {1, 1};
  const Vector one_radian{1.0};
  Compressor compressor(w, one_radian, 0.0);
  for (int t = 0; t < 8; ++t) {
    const std::optional<Vector> row = compressor.push(Vector{1.0});
    if (!row) continue;
    check_close((*row)[0], std::sqrt(2.0) * std::cos(t - 3), 1e-12);
    check_close((*row)[1], std::sqrt(2.0) * std::sin(t - 3), 1e-12);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(indexer)

BOOST_AUTO_TEST_CASE(hadamard_is_in_sylvester_order_and_orthonormal) {
  const std::size_t n = 128;
  for (std::size_t column = 0; column < n; ++column) {
    Vector x(n, 0.0);
    x[column] = 1;
    hadamard(x);
    for (std::size_t row = 0; row < n; ++row) {
      const bool negative = (__builtin_popcountll(row & column) & 1) != 0;
      check_close(x[row], (negative ? -1 : 1) / std::sqrt(128.0), 1e-15);
    }
  }
}

BOOST_AUTO_TEST_CASE(relu_is_per_head_before_the_weights) {
  const Vector queries{1, 0, 0, 1, -1, -1};  // three heads of width 2
  BOOST_TEST(index_score(queries, {1, -1, 5}, {3, 2}) == 3 - 2);
  BOOST_TEST(index_score(queries, {1, -1, 5}, {-3, 2}) == -2 + 5 * 1);
}

BOOST_AUTO_TEST_CASE(top_k_prefers_the_lower_id_of_equal_scores) {
  const Vector scores{0, 2, 1, 2, 1, 1};
  BOOST_TEST(top_k(scores, 1) == (std::vector<std::int32_t>{1}));
  BOOST_TEST(top_k(scores, 3) == (std::vector<std::int32_t>{1, 2, 3}));
  BOOST_TEST(top_k(scores, 6) == (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  BOOST_TEST(top_k(scores, 512).size() == 6U);
  BOOST_TEST(top_k({}, 512).empty());
}

BOOST_AUTO_TEST_CASE(top_k_takes_nan_for_minus_infinity) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  BOOST_TEST(top_k(Vector{nan, -1, -infinity, nan}, 1) == (std::vector<std::int32_t>{1}));
  BOOST_TEST(top_k(Vector{nan, -1, -infinity, nan}, 2) == (std::vector<std::int32_t>{0, 1}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(attention)

BOOST_AUTO_TEST_CASE(a_large_sink_takes_the_output_away) {
  const Vector row{1, 2};
  const Vector out = attend({0, 0}, {row, row}, Vector{100});
  BOOST_TEST(std::fabs(out[1]) < 1e-40);
}

BOOST_AUTO_TEST_CASE(a_sink_of_minus_infinity_is_plain_softmax) {
  const Vector a{1, 0}, b{0, 1};
  const Vector q{std::sqrt(2.0) * std::log(3.0), 0};  // scores log 3 and 0
  const Vector out = attend(q, {a, b}, Vector{-std::numeric_limits<double>::infinity()});
  check_close(out[0], 0.75, 1e-14);
  check_close(out[1], 0.25, 1e-14);
}

BOOST_AUTO_TEST_CASE(the_sink_is_not_scaled_by_the_head_width) {
  const Vector row{1, 0, 0, 0};
  const Vector out = attend(Vector(4, 0.0), {row}, Vector{std::log(3.0)});
  check_close(out[0], 0.25, 1e-14);
}

BOOST_AUTO_TEST_CASE(output_groups_see_only_their_own_heads) {
  const Matrix a{2, 2, {1, 10, 100, 1000}};  // two groups of rank 1 over two values each
  const Matrix b{2, 2, {1, 0, 0, 1}};
  const Vector expected{1 + 20, 300 + 4000};
  BOOST_TEST(project_output(a, b, {1, 2, 3, 4}, 2) == expected);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(experts)

namespace {

/// Router over a 1-wide input: logit e = logits[e] * f.
MoeWeights router_of(const Vector& logits, const Vector& bias) {
  MoeWeights w;
  w.router = {static_cast<std::int64_t>(logits.size()), 1, logits};
  w.bias = bias;
  return w;
}

}  // namespace

BOOST_AUTO_TEST_CASE(router_probability_is_the_root_of_softplus) {
  const MoeRoute r = route(router_of({0, 1, -5, 25}, Vector(4, 0.0)), Vector{1}, 0, 2, 1.5);
  check_close(r.probs[0], 0.8325546, 5e-8);
  check_close(r.probs[1], 1.1459763, 5e-8);
  check_close(r.probs[2], 0.0819472, 5e-8);
  check_close(r.probs[3], 5, 1e-9);
}

BOOST_AUTO_TEST_CASE(bias_chooses_but_does_not_weigh) {
  const MoeRoute r = route(router_of({1, 1, 1, 0}, {0, 0, 0, 9}), Vector{1}, 0, 2, 1.5);
  BOOST_TEST(r.ids == (std::vector<std::int32_t>{0, 3}));
  check_close(r.weights[0] + r.weights[1], 1.5, 1e-14);
  check_close(r.weights[0] / r.weights[1], 1.1459763 / 0.8325546, 1e-7);
}

BOOST_AUTO_TEST_CASE(hash_layers_take_their_experts_from_the_table) {
  MoeWeights w = router_of({9, 0, 1, 0}, {});
  w.table = {0, 1, 3, 2};
  const MoeRoute r = route(w, Vector{1}, 1, 2, 1.5);
  BOOST_TEST(r.ids == (std::vector<std::int32_t>{3, 2}));
  check_close(r.weights[1], 1.5 * 1.1459763 / (1.1459763 + 0.8325546), 1e-7);
}

BOOST_AUTO_TEST_CASE(extreme_router_logits_stay_finite) {
  const MoeRoute r = route(router_of({100, -100, -1000}, Vector(3, 0.0)), Vector{1}, 0, 3, 1.5);
  for (const double weight : r.weights) BOOST_TEST(std::isfinite(weight));
  const MoeRoute none = route(router_of({-2000, -2000}, Vector(2, 0.0)), Vector{1}, 0, 1, 1.5);
  BOOST_TEST(none.weights.front() == 0);
}

BOOST_AUTO_TEST_CASE(gate_is_clamped_from_above_only) {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  check_close(clamped_swiglu(20, 20, 10), silu(10) * 10, 1e-12);
  check_close(clamped_swiglu(-20, 3, 10), silu(-20) * 3, 1e-18);
  check_close(clamped_swiglu(1, -20, 10), silu(1) * -10, 1e-12);
}

BOOST_AUTO_TEST_CASE(the_shared_expert_always_runs_with_its_own_clamp) {
  MoeWeights w = router_of({0, 0}, {0, 0});
  w.experts = {{2, 1, {1, 100}}, {2, 1, {1, 1}}, {2, 1, {1, 1}}};
  w.shared = {{1, 1, {100}}, {1, 1, {1}}, {1, 1, {1}}};
  w.clamp_routed = 10;
  w.clamp_shared = 4;
  const Vector f{1};
  const MoeRoute r = route(w, f, 0, 2, 1.5);
  const Vector y = run_experts(w, r, f);
  const double expected = 0.75 * sigmoid(1) + 0.75 * 10 * sigmoid(10) + 4 * sigmoid(4);
  check_close(y[0], expected, 1e-12);
}

BOOST_AUTO_TEST_SUITE_END()
