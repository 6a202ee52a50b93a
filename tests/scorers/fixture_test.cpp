#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/rope.h"
#include "tests/scorers/bench.h"

// Parity with answers that were made elsewhere, in the layout that make_fixture.py describes. More
// fixtures are named behind `--`: scorers_test -t parity_fixtures* -- l10.fmsc l12.fmsc

namespace ebb {
namespace {

using namespace ebb::test;

struct Fixture {
  std::int32_t n_chunks = 0, n_heads = 0, d = 0, rank = 0, d_model = 0, n_rot = 0;
  std::int64_t pos = 0;
  float eps = 0;
  std::vector<float> wq_a, wq_b, q_norm, weights, frequency, hidden, logits, scores;
  std::vector<std::byte> keys;
};

Fixture read_fixture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::size_t at = 0;
  const auto take = [&](void* to, std::size_t n) {
    if (bytes.size() - at < n) throw std::runtime_error(path + ": too short for a fixture");
    std::memcpy(to, bytes.data() + at, n);
    at += n;
  };
  const auto floats = [&take](std::vector<float>& to, std::int64_t n) {
    to.resize(static_cast<std::size_t>(n));
    take(to.data(), to.size() * sizeof(float));
  };
  std::uint32_t magic = 0;
  std::int32_t version = 0;
  Fixture f;
  take(&magic, 4);
  take(&version, 4);
  if (magic != 0x464D5343 || version != 1) throw std::runtime_error(path + ": not a fixture");
  for (std::int32_t* n : {&f.n_chunks, &f.n_heads, &f.d, &f.rank, &f.d_model, &f.n_rot}) take(n, 4);
  take(&f.pos, 8);
  take(&f.eps, 4);
  floats(f.wq_a, std::int64_t{f.rank} * f.d_model);
  floats(f.wq_b, std::int64_t{f.n_heads} * f.d * f.rank);
  floats(f.q_norm, f.rank);
  floats(f.weights, std::int64_t{f.n_heads} * f.d_model);
  floats(f.frequency, f.n_rot / 2);
  floats(f.hidden, f.d_model);
  f.keys.resize(static_cast<std::size_t>(f.n_chunks) * static_cast<std::size_t>(f.d + 4));
  take(f.keys.data(), f.keys.size());
  floats(f.logits, f.n_chunks);
  floats(f.scores, f.n_chunks);
  if (at != bytes.size()) throw std::runtime_error(path + ": longer than its sizes say");
  return f;
}

std::string_view bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void check_fixture(const std::string& path) {
  Fixture f = read_fixture(path);
  BOOST_TEST(f.eps == 1e-6F);
  std::vector<double> frequency(f.frequency.size());
  rope_frequencies({160000, 16, 65536, 32, 1}, f.n_rot / 2, frequency.data());
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    BOOST_TEST(std::fabs(frequency[i] - f.frequency[i]) <= 1e-5);
  }

  Bench bench;
  const TempFolder folder;
  SafetensorsFile file;
  file.add("f.wq_a.weight", "F32", {f.rank, f.d_model}, bytes_of(f.wq_a))
      .add("f.wq_b.weight", "F32", {std::int64_t{f.n_heads} * f.d, f.rank}, bytes_of(f.wq_b))
      .add("f.q_norm_weight", "F32", {f.rank}, bytes_of(f.q_norm))
      .add("f.weights_proj.weight", "F32", {f.n_heads, f.d_model}, bytes_of(f.weights));
  MadeUpAttention attention;
  ScoredLayer& layer = attention.scored;
  layer.d_model = f.d_model;
  layer.hidden = f.hidden.data();
  layer.keys.data = f.keys.data();
  layer.keys.format = RowFormat::fp8;
  layer.keys.row_bytes = f.d + 4;
  layer.keys.n_rows = f.n_chunks;
  layer.keys.sequence_bytes = static_cast<std::int64_t>(f.keys.size());
  layer.d = f.d;
  layer.n_pairs = f.n_rot / 2;
  layer.transformed = true;
  layer.frequency = frequency.data();
  // All keys of a fixture count, wherever its query stands.
  layer.ratio = static_cast<std::int32_t>(std::max<std::int64_t>((f.pos + 1) / f.n_chunks, 1));
  while ((f.pos + 1) / layer.ratio > f.n_chunks) ++layer.ratio;
  bench.services().parts().attention = &attention;
  const ModulePtr<Scorer> scorer = test::require(
      bench.scorer("scorer_flashmemory", "layer = 2\ntensor_prefix = \"f.\"\nweights = \"" +
                                             folder.write("x.safetensors", file.bytes()) + "\""));
  test::require(scorer->load());
  const auto pos = static_cast<std::int32_t>(f.pos);
  const auto logits = ask(bench.compute(), *scorer.get(), {{0, pos}}, 0, f.n_chunks);
  const auto n = static_cast<std::size_t>((f.pos + 1) / layer.ratio);
  for (std::size_t c = 0; c < n; ++c) {
    BOOST_TEST(std::fabs(logits[c] - f.logits[c]) <= 1e-4 * (1 + std::fabs(f.logits[c])));
    BOOST_TEST(std::fabs(sigmoid(logits[c]) - f.scores[c]) <= 5e-3);
  }
  const auto best = [n](const std::vector<float>& values) {
    return std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n)) -
           values.begin();
  };
  BOOST_TEST(best(logits) == best(f.logits));
}

}  // namespace

BOOST_AUTO_TEST_CASE(parity_fixtures_are_met) {
  check_fixture(EBB_TEST_DATA "/scorers/small.fmsc");
  const auto& suite = boost::unit_test::framework::master_test_suite();
  for (int i = 1; i < suite.argc; ++i) check_fixture(suite.argv[i]);
}

}  // namespace ebb
