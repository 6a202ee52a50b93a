#define BOOST_TEST_MODULE scorers
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "kernels/cpu/vector.h"
#include "kernels/numeric.h"
#include "kernels/rope.h"
#include "tests/scorers/bench.h"
#include "tests/worst.h"

// scorer_flashmemory against the reference of this folder, over a made-up attention.

namespace ebb {
namespace {

using namespace ebb::test;

// Single precision is good for less than 1e-6 here; but a query value that lies next to a tie of
// its rounding to bf16 may go the other way, and that moves a logit by some 1e-5.
constexpr double kLogit = 1e-4, kScore = 5e-3, kFrequency = 1e-5;

/// What a scorer reads, as an attention has it.
struct Read {
  std::vector<double> frequency;
  std::vector<float> hidden;                 // [n_kept, d_model]
  std::vector<std::byte> memory;             // of the keys
  std::vector<std::vector<double>> decoded;  // [n_sequences][n_chunks, d]
  ScoredLayer layer;

  Read(const RetrieverShape& shape, RowFormat format, std::int64_t n_chunks,
       std::int32_t n_sequences, std::int32_t n_kept, std::uint32_t seed)
      : frequency(static_cast<std::size_t>(shape.n_pairs)) {
    rope_frequencies({160000, 16, 65536, 32, 1}, shape.n_pairs, frequency.data());
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    hidden.resize(static_cast<std::size_t>(n_kept * shape.d_model));
    for (float& value : hidden) value = normal(random);
    layer.d_model = shape.d_model;
    layer.hidden = hidden.data();
    layer.d = shape.d;
    layer.n_pairs = shape.n_pairs;
    layer.frequency = frequency.data();
    layer.keys.format = format;
    layer.keys.row_bytes = row_bytes(format, shape.d, 0);
    layer.keys.n_rows = n_chunks;
    layer.keys.sequence_bytes = n_chunks * layer.keys.row_bytes;
    memory.resize(static_cast<std::size_t>(n_sequences * layer.keys.sequence_bytes));
    layer.keys.data = memory.data();
    std::vector<float> key(static_cast<std::size_t>(shape.d));
    for (std::int32_t s = 0; s < n_sequences; ++s) {
      std::vector<double>& all = decoded.emplace_back();
      for (std::int64_t c = 0; c < n_chunks; ++c) {
        for (float& value : key) value = normal(random);
        std::byte* const row = row_at(layer.keys, s, c);
        encode_row(format, shape.d, 0, key.data(), row);
        decode_row(format, shape.d, 0, row, key.data());
        all.insert(all.end(), key.begin(), key.end());
      }
    }
  }
  std::vector<double> kept(std::int64_t row) const {
    const float* const x = hidden.data() + row * layer.d_model;
    return {x, x + layer.d_model};
  }
  std::vector<double> keys(std::int32_t seq, std::int64_t n) const {
    const std::vector<double>& all = decoded[static_cast<std::size_t>(seq)];
    return {all.begin(), all.begin() + n * layer.d};
  }
};

/// Compares the logits of one row; what lies behind the visible chunks was not touched.
void compare(const float* got, const std::vector<double>& want, std::int64_t stride) {
  double worst = 0, worst_score = 0;
  std::size_t best = 0, best_wanted = 0;
  for (std::size_t c = 0; c < want.size(); ++c) {
    worst = worse(worst, std::fabs(got[c] - want[c]) / (1 + std::fabs(want[c])));
    worst_score = worse(worst_score, std::fabs(sigmoid(got[c]) - sigmoid(want[c])));
    if (got[c] > got[best]) best = c;
    if (want[c] > want[best_wanted]) best_wanted = c;
  }
  BOOST_TEST_MESSAGE("largest error of a logit " << worst << ", of a score " << worst_score);
  BOOST_TEST(worst <= kLogit);
  BOOST_TEST(worst_score <= kScore);
  BOOST_TEST(best == best_wanted);
  for (auto c = static_cast<std::int64_t>(want.size()); c < stride; ++c) {
    BOOST_TEST(std::isnan(got[c]));
  }
}

struct Case {
  RetrieverShape shape;
  RowFormat format = RowFormat::f32;
  bool transformed = false;
  bool rounds = true;
  std::size_t padding = 0;  // of the header: how the data are aligned
};

/// A file with one scorer of random weights, and these weights in double.
struct ScorerFile {
  TempFolder folder;
  SafetensorsFile file;
  reference::Retriever retriever;
  std::string path;

  explicit ScorerFile(const RetrieverShape& shape, std::size_t padding = 0)
      : retriever(random_retriever(shape, "retrievers.l0.", 3, file)),
        path(folder.write("scorers.safetensors", file.bytes(padding))) {}
};

std::string describe(const Case& c) {
  return "d_model " + std::to_string(c.shape.d_model) + " rank " + std::to_string(c.shape.rank) +
         " heads " + std::to_string(c.shape.n_heads) + " d " + std::to_string(c.shape.d) + " " +
         c.shape.type + " format " + std::to_string(static_cast<int>(c.format)) +
         (c.transformed ? " transformed" : "") + (c.rounds ? " bf16" : "");
}

/// The scorer of a case, at positions whose visible chunks are about 128: `ratio` grows with them.
void check_positions(const Case& c, const std::vector<std::int32_t>& positions) {
  constexpr std::int64_t kChunks = 128;
  Bench bench;
  const ScorerFile file(c.shape, c.padding);
  const Read read(c.shape, c.format, kChunks, 1, 3, 11);
  MadeUpAttention attention;
  attention.scored = read.layer;
  attention.scored.transformed = c.transformed;
  bench.services().parts().attention = &attention;
  const ModulePtr<Scorer> scorer = test::require(bench.scorer(
      "scorer_flashmemory", "layer = 2\nweights = \"" + file.path + "\"\nrounding = \"" +
                                (c.rounds ? "bf16" : "none") + "\""));
  BOOST_TEST(scorer->layer() == 2);
  test::require(scorer->load());
  for (const std::int32_t pos : positions) {
    BOOST_TEST_CONTEXT(describe(c) << " pos " << pos) {
      attention.scored.ratio = std::max<std::int32_t>(1, (pos + 1) / kChunks);
      const std::int32_t visible = (pos + 1) / attention.scored.ratio;
      const auto logits = ask(bench.compute(), *scorer.get(), {{0, pos}}, 1, kChunks);
      const auto want = reference::retriever_logits(file.retriever, read.kept(1), pos,
                                                    read.keys(0, visible), c.transformed, c.rounds);
      compare(logits.data(), want, kChunks);
    }
  }
}

const std::vector<std::int32_t> kPositions{0, 127, 4095, 65535, 65536, 262143, 1048575};

BOOST_AUTO_TEST_CASE(frequencies_are_those_that_scorers_were_trained_with) {
  std::vector<double> got(32);
  rope_frequencies({160000, 16, 65536, 32, 1}, 32, got.data());
  const std::vector<double> want = reference::retriever_frequencies(32);
  for (std::size_t i = 0; i < want.size(); ++i) {
    BOOST_TEST(std::fabs(got[i] - want[i]) <= kFrequency * want[i]);
  }
  // Pairs 15 and 25 end the ramp.
  BOOST_TEST(got[15] == std::pow(160000, -30.0 / 64), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(got[25] == std::pow(160000, -50.0 / 64) / 16, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(small_scorers_agree_with_the_reference) {
  const Case cases[] = {
      {{96, 40, 8, 128, 32}},
      {{96, 40, 8, 128, 32}, RowFormat::f32, true},
      {{96, 40, 8, 128, 32}, RowFormat::fp8, true},
      {{96, 40, 8, 128, 32}, RowFormat::fp4, true},
      {{96, 40, 8, 128, 32}, RowFormat::f32, false, false},
      {{96, 40, 8, 128, 32}, RowFormat::fp8, true, false},
      {{256, 64, 16, 64, 16, "BF16"}, RowFormat::fp8, true},
      {{256, 64, 16, 64, 16, "F16"}, RowFormat::f32, false},
      {{64, 32, 3, 32, 16}, RowFormat::f32, true},
      {{100, 17, 1, 40, 16}, RowFormat::f32, false},
      {{96, 40, 8, 128, 32}, RowFormat::f32, false, true, 1},
      {{96, 40, 8, 128, 32, "F16"}, RowFormat::f32, false, true, 1},
      {{96, 40, 8, 128, 32, "BF16"}, RowFormat::f32, false, true, 3},
  };
  for (const Case& c : cases) check_positions(c, kPositions);
}

BOOST_AUTO_TEST_CASE(a_scorer_of_the_released_size_agrees_with_the_reference) {
  check_positions({{4096, 2048, 128, 128, 32}, RowFormat::fp8, true}, kPositions);
}

BOOST_AUTO_TEST_CASE(queries_of_many_sequences_read_their_own_vectors_and_keys) {
  const RetrieverShape shape{96, 40, 8, 128, 32};
  Bench bench;
  const TempFolder folder;
  SafetensorsFile file;
  (void)random_retriever(shape, "other.", 90, file);
  const reference::Retriever retriever = random_retriever(shape, "mine.", 3, file);
  const std::string path = folder.write("scorers.safetensors", file.bytes());
  const Read read(shape, RowFormat::fp8, 300, 4, 8, 12);
  MadeUpAttention attention;
  attention.scored = read.layer;
  attention.scored.ratio = 4;
  attention.scored.transformed = true;
  bench.services().parts().attention = &attention;
  const auto table = [&path](const std::string& more) {
    return "layer = 2\ntensor_prefix = \"mine.\"\nweights = \"" + path + "\"\n" + more;
  };
  const auto scorer = test::require(bench.scorer("scorer_flashmemory", table("")));
  test::require(scorer->load());
  // Positions 0 to 2 see no chunk yet; 1199 sees all 300.
  const std::vector<Query> queries{{2, 1199}, {0, 2}, {3, 3}, {1, 517}};
  const auto logits = ask(bench.compute(), *scorer.get(), queries, 4, 300);
  for (std::size_t r = 0; r < queries.size(); ++r) {
    const auto [seq, pos] = queries[r];
    const auto want =
        reference::retriever_logits(retriever, read.kept(4 + static_cast<std::int64_t>(r)), pos,
                                    read.keys(seq, (pos + 1) / 4), true, true);
    compare(logits.data() + r * 300, want, 300);
  }
  // One at a time gives the same bits.
  for (std::size_t r = 0; r < queries.size(); ++r) {
    const auto alone =
        ask(bench.compute(), *scorer.get(), {queries[r]}, 4 + static_cast<std::int32_t>(r), 300);
    BOOST_TEST(std::memcmp(alone.data(), logits.data() + r * 300, 300 * sizeof(float)) == 0);
  }

  const auto shifted =
      test::require(bench.scorer("scorer_flashmemory", table("logit_offset = 5.5")));
  test::require(shifted->load());
  auto moved = ask(bench.compute(), *shifted.get(), queries, 4, 300);
  for (std::size_t r = 0; r < queries.size(); ++r) {
    const auto n = static_cast<std::size_t>((queries[r].pos + 1) / 4);
    const std::span row(moved.data() + r * 300, n);
    shifted->finish(queries[r].seq, queries[r].pos, row);
    for (std::size_t c = 0; c < n; ++c) {
      const float want = logits[r * 300 + c] + 5.5F;
      BOOST_TEST(row[c] == want);
    }
  }
}

// Both plans of a driver that asks again while it waits for the last answer may run at once.
BOOST_AUTO_TEST_CASE(plans_for_other_kept_rows_touch_other_memory) {
  const RetrieverShape shape{96, 40, 8, 128, 32};
  Bench bench;
  const ScorerFile file(shape);
  const Read read(shape, RowFormat::f32, 64, 3, 6, 15);
  MadeUpAttention attention;
  attention.scored = read.layer;
  attention.scored.ratio = 4;
  bench.services().parts().attention = &attention;
  const auto scorer = test::require(
      bench.scorer("scorer_flashmemory", "layer = 2\nweights = \"" + file.path + "\""));
  test::require(scorer->load());
  SessionShape session;
  session.max_open = 3;
  Arena counting;
  scorer->carve(counting, session);
  std::vector<std::byte> memory(counting.bytes() + Arena::kAlign);
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  Arena arena(memory.data() + (Arena::kAlign - at % Arena::kAlign) % Arena::kAlign);
  scorer->carve(arena, session);
  const std::int32_t n = 3, pos[] = {255, 100, 200}, seq[] = {0, 1, 2};
  StepView step;
  step.n_rows = &n;
  step.pos = pos;
  step.seq = seq;
  step.max_rows = 3;
  std::vector<float> logits(3 * 64);
  std::vector<bool> touched[2];
  for (const std::int32_t turn : {0, 1}) {
    Ops* const ops = test::require(bench.compute().begin_plan());
    test::require(scorer->plan(*ops, step, 3 * turn, logits.data(), 64));
    const PlanId plan = test::require(bench.compute().end_plan());
    // A byte that is left as it was under both fills was not written.
    std::vector<bool>& changed = touched[turn];
    changed.resize(memory.size());
    for (const std::byte fill : {std::byte{0xff}, std::byte{0x55}}) {
      std::fill(memory.begin(), memory.end(), fill);
      test::require(bench.compute().start(plan));
      test::require(bench.compute().wait());
      for (std::size_t i = 0; i < memory.size(); ++i) {
        if (memory[i] != fill) changed[i] = true;
      }
    }
  }
  std::size_t n_first = 0, n_both = 0;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    n_first += touched[0][i] ? 1 : 0;
    n_both += touched[0][i] && touched[1][i] ? 1 : 0;
  }
  BOOST_TEST(n_first >= 3 * 8 * 128 * sizeof(float) / 2);
  BOOST_TEST(n_both == 0);
}

BOOST_AUTO_TEST_CASE(the_transform_cancels_between_queries_and_keys) {
  const RetrieverShape shape{96, 40, 8, 128, 32};
  Bench bench;
  const ScorerFile file(shape);
  Read read(shape, RowFormat::f32, 200, 1, 1, 13);
  MadeUpAttention attention;
  attention.scored = read.layer;
  attention.scored.ratio = 4;
  bench.services().parts().attention = &attention;
  const auto scorer = test::require(
      bench.scorer("scorer_flashmemory", "layer = 2\nweights = \"" + file.path + "\""));
  test::require(scorer->load());
  const auto plain = ask(bench.compute(), *scorer.get(), {{0, 799}}, 0, 200);
  for (std::int64_t c = 0; c < 200; ++c) {
    cpu::hadamard_vector(reinterpret_cast<float*>(row_at(read.layer.keys, 0, c)), shape.d);
  }
  attention.scored.transformed = true;
  const auto transformed = ask(bench.compute(), *scorer.get(), {{0, 799}}, 0, 200);
  for (std::size_t c = 0; c < 200; ++c) {
    BOOST_TEST(std::fabs(plain[c] - transformed[c]) < 1e-5 * (1 + std::fabs(plain[c])));
  }
}

BOOST_AUTO_TEST_CASE(the_transform_is_orthonormal) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::int32_t n = 1; n <= 1024; n *= 2) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) value = normal(random);
    const std::vector<double> before(x.begin(), x.end());
    std::vector<double> want = before;
    reference::hadamard_by_definition(want);
    double norm = 0, norm_before = 0;
    cpu::hadamard_vector(x.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      BOOST_TEST(std::fabs(x[i] - want[i]) < 1e-5);
      norm += static_cast<double>(x[i]) * x[i];
      norm_before += before[i] * before[i];
    }
    BOOST_TEST(std::fabs(norm - norm_before) < 1e-5 * norm_before);
    cpu::hadamard_vector(x.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) BOOST_TEST(std::fabs(x[i] - before[i]) < 1e-5);
  }
}

// A key whose first value has the code and whose others are 0, under one head: the logit is the
// head's weight times the code's value, if the product with the query is positive. What NaN means
// is for whoever combines scorers to say.
BOOST_AUTO_TEST_CASE(every_fp8_code_counts_as_its_value_and_nan_is_passed_on) {
  const RetrieverShape shape{64, 32, 1, 128, 32};
  Bench bench;
  const ScorerFile file(shape);
  Read read(shape, RowFormat::fp8, 256, 1, 1, 14);
  for (std::int32_t code = 0; code < 256; ++code) {
    std::byte* const row = row_at(read.layer.keys, 0, code);
    std::fill_n(row, shape.d, std::byte{0});
    row[0] = static_cast<std::byte>(code);
    const float scale = 1;
    std::memcpy(row + shape.d, &scale, sizeof(scale));
  }
  MadeUpAttention attention;
  attention.scored = read.layer;
  attention.scored.ratio = 4;
  attention.scored.transformed = true;
  bench.services().parts().attention = &attention;
  const auto scorer = test::require(
      bench.scorer("scorer_flashmemory", "layer = 2\nweights = \"" + file.path + "\""));
  test::require(scorer->load());
  auto logits = ask(bench.compute(), *scorer.get(), {{0, 1023}}, 0, 256);
  scorer->finish(0, 1023, logits);

  std::vector<double> q = reference::retriever_query(file.retriever, read.kept(0), 1023, true);
  reference::hadamard_by_definition(q);
  const double w = reference::times(file.retriever.weights, read.kept(0))[0] / std::sqrt(128.0);
  for (std::int32_t code = 0; code < 256; ++code) {
    // By hand: sign, four bits of exponent, three of mantissa; the topmost pattern is NaN.
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6)
                                 : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
    if ((code & 128) != 0) value = -value;
    const float got = logits[static_cast<std::size_t>(code)];
    if ((code & 127) == 127) {
      BOOST_TEST(std::isnan(e4m3_to_float(static_cast<std::uint8_t>(code))));
      BOOST_TEST(std::isnan(got), "code " << code << " gives " << got);
      continue;
    }
    BOOST_TEST(static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(code))) == value);
    const double want = w * std::max(q[0] * value, 0.0);
    BOOST_TEST(std::fabs(got - want) <= kLogit * (1 + std::fabs(want)), "code " << code);
  }
}

}  // namespace
}  // namespace ebb
