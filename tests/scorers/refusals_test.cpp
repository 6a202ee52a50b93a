#include <boost/test/unit_test.hpp>

#include "tests/scorers/bench.h"

// What scorer_flashmemory refuses, and what it says.

namespace ebb {
namespace {

using namespace ebb::test;

constexpr const char* kNames[] = {"wq_a.weight", "q_norm_weight", "wq_b.weight",
                                  "weights_proj.weight"};

struct Shapes {
  std::vector<std::int64_t> of[4] = {{6, 16}, {6}, {24, 6}, {3, 16}};  // d_model 16, d 8
  std::string type[4] = {"F32", "F32", "F32", "F32"};
  int absent = -1;
};

std::string file_of(const Shapes& shapes, const std::string& prefix) {
  SafetensorsFile file;
  for (int i = 0; i < 4; ++i) {
    if (i == shapes.absent) continue;
    std::size_t n = shapes.type[i] == "F32" ? 4 : shapes.type[i] == "I8" ? 1 : 2;
    for (const std::int64_t extent : shapes.of[i]) n *= static_cast<std::size_t>(extent);
    file.add(prefix + kNames[i], shapes.type[i], shapes.of[i], std::string(n, '\0'));
  }
  return file.bytes();
}

/// A model of width 16 whose layers 2, 4 and 7 have index keys of 8 values.
struct Model {
  Bench bench;
  MadeUpAttention attention;
  TempFolder folder;

  Model() {
    attention.layers = {2, 4, 7};
    attention.scored.d_model = 16;
    attention.scored.d = 8;
    attention.scored.n_pairs = 2;
    attention.scored.ratio = 4;
    bench.services().parts().attention = &attention;
  }
  std::string said(const std::string& table) {
    return message(bench.scorer("scorer_flashmemory", table), folder);
  }
  std::string said_of(const Shapes& shapes, const std::string& more = "") {
    const std::string path = folder.write("x", file_of(shapes, "retrievers.l1."));
    return said("layer = 4\nweights = \"" + path + "\"\n" + more);
  }
};

BOOST_AUTO_TEST_CASE(the_prefix_follows_from_the_layer) {
  Model model;
  SafetensorsFile none;
  BOOST_TEST(model.said_of({}) == "");
  const std::string path = model.folder / "x";
  BOOST_TEST(model.said("layer = 7\nweights = \"" + path + "\"") ==
             "x: tensor retrievers.l2.wq_a.weight: not in the file, which holds scorers under "
             "\"retrievers.l1.\"");
  BOOST_TEST(model.said("layer = 7\nweights = \"" + path +
                        "\"\ntensor_prefix = \"retrievers.l1.\"") == "");
  const std::string empty = model.folder.write("empty", none.bytes());
  BOOST_TEST(model.said("layer = 2\nweights = \"" + empty + "\"") ==
             "empty: tensor retrievers.l0.wq_a.weight: not in the file, which holds no scorer");
}

BOOST_AUTO_TEST_CASE(shapes_and_types_that_do_not_fit_are_named) {
  Model model;
  const auto with = [](int i, std::vector<std::int64_t> shape) {
    Shapes shapes;
    shapes.of[i] = std::move(shape);
    return shapes;
  };
  const std::string t = "x: tensor retrievers.l1.";
  BOOST_TEST(model.said_of(with(0, {6, 15})) == t + "wq_a.weight: shape [6, 15], want [6, 16]");
  BOOST_TEST(model.said_of(with(0, {96})) ==
             t + "wq_a.weight: shape [96], want [rank, d_model] of 1..65536 rows");
  BOOST_TEST(model.said_of(with(0, {0, 16})) ==
             t + "wq_a.weight: shape [0, 16], want [rank, d_model] of 1..65536 rows");
  BOOST_TEST(model.said_of(with(0, {65537, 16})) ==
             t + "wq_a.weight: shape [65537, 16], want [rank, d_model] of 1..65536 rows");
  BOOST_TEST(model.said_of(with(0, {5, 16})) == t + "q_norm_weight: shape [6], want [5]");
  BOOST_TEST(model.said_of(with(1, {6, 1})) == t + "q_norm_weight: shape [6, 1], want [6]");
  BOOST_TEST(model.said_of(with(1, {7})) == t + "q_norm_weight: shape [7], want [6]");
  BOOST_TEST(model.said_of(with(2, {24, 7})) == t + "wq_b.weight: shape [24, 7], want [24, 6]");
  BOOST_TEST(model.said_of(with(2, {25, 6})) == t + "wq_b.weight: shape [25, 6], want [24, 6]");
  BOOST_TEST(model.said_of(with(3, {4, 16})) == t + "wq_b.weight: shape [24, 6], want [32, 6]");
  BOOST_TEST(model.said_of(with(3, {3, 17})) ==
             t + "weights_proj.weight: shape [3, 17], want [3, 16]");
  BOOST_TEST(model.said_of(with(3, {0, 16})) ==
             t + "weights_proj.weight: shape [0, 16], want [heads, d_model] of 1..65536 rows");
  for (int i = 0; i < 4; ++i) {
    Shapes shapes;
    shapes.absent = i;
    BOOST_TEST(model.said_of(shapes).starts_with(t + kNames[i] + ": not in the file"));
    shapes = {};
    shapes.type[i] = "I8";
    BOOST_TEST(model.said_of(shapes) == t + kNames[i] + ": type I8, want F32, F16 or BF16");
    shapes.type[i] = "BF16";
    BOOST_TEST(model.said_of(shapes) == "");
  }
}

BOOST_AUTO_TEST_CASE(options_that_do_not_fit_are_named) {
  Model model;
  const std::string weights =
      "weights = \"" + model.folder.write("x", file_of({}, "retrievers.l0.")) + "\"\n";
  BOOST_TEST(model.said(weights) ==
             "m.toml:1:1: [memory.scorer] layer: missing, want a layer that has index keys");
  BOOST_TEST(model.said(weights + "layer = 3") ==
             "m.toml:2:9: [memory.scorer] layer: layer 3 has no index keys");
  BOOST_TEST(model.said("layer = 2") ==
             "m.toml:1:1: [memory.scorer] weights: missing, want a .safetensors file");
  BOOST_TEST(model.said(weights + "layer = 2\nrounding = \"f16\"") ==
             "m.toml:3:12: [memory.scorer] rounding = \"f16\": want one of bf16, none");
  BOOST_TEST(model.said(weights + "layer = 2\nlogit_offset = nan")
                 .starts_with("m.toml:3:16: [memory.scorer] logit_offset = nan: want a number"));
  BOOST_TEST(model.said(weights + "layer = 2\nhead = 2")
                 .starts_with("m.toml:3:1: [memory.scorer] head: unknown key"));
  BOOST_TEST(model.said("layer = 2\nweights = \"" + (model.folder / "absent") + "\"") ==
             "absent: cannot open: No such file or directory");
  BOOST_TEST(
      model.said("layer = 2\nweights = \"" + model.folder.write("t", "text, no weights") + "\"")
          .starts_with("t: not a safetensors file: "));
  model.bench.services().parts().attention = nullptr;
  BOOST_TEST(model.said(weights + "layer = 2") ==
             "scorer_flashmemory needs a compute and an attention module");
}

BOOST_AUTO_TEST_CASE(a_plan_takes_as_many_queries_as_rows_are_kept) {
  Model model;
  const std::string path = model.folder.write("x", file_of({}, "retrievers.l0."));
  const auto scorer = test::require(
      model.bench.scorer("scorer_flashmemory", "layer = 2\nweights = \"" + path + "\""));
  test::require(scorer->load());
  SessionShape shape;
  shape.max_open = 3;
  Arena arena;
  scorer->carve(arena, shape);
  BOOST_TEST(arena.parts().size() == 1);
  BOOST_TEST(arena.parts()[0].first == "scorer scratch");
  Ops* const ops = test::require(model.bench.compute().begin_plan());
  StepView step;
  for (const auto& [n, first] : {std::pair{7, 0}, {4, 3}, {1, 6}, {0, 0}, {1, -1}}) {
    step.max_rows = n;
    BOOST_TEST(message(scorer->plan(*ops, step, first, nullptr, 10), model.folder) ==
               "scorer_flashmemory: " + std::to_string(n) + " queries from kept row " +
                   std::to_string(first) + " on: there are 6");
  }
  test::require(model.bench.compute().end_plan());
}

// The widest scorer of the most sequences has 2^32 query values.
BOOST_AUTO_TEST_CASE(a_wide_scorer_gets_all_of_its_scratch) {
  Model model;
  model.attention.scored.d = 32;
  Shapes shapes;
  shapes.of[0] = {1, 16};
  shapes.of[1] = {1};
  shapes.of[2] = {65536 * 32, 1};
  shapes.of[3] = {65536, 16};
  for (std::string& type : shapes.type) type = "BF16";
  const std::string path = model.folder.write("x", file_of(shapes, "retrievers.l0."));
  const auto scorer = test::require(
      model.bench.scorer("scorer_flashmemory", "layer = 2\nweights = \"" + path + "\""));
  SessionShape shape;
  shape.max_open = 1024;
  Arena arena;
  scorer->carve(arena, shape);
  // A query of rank 1: latent, heads, weights of heads, and cosine and sine of two pairs.
  const std::uint64_t n_floats = 2048 * (1 + std::uint64_t{65536} * 32 + 65536 + 4);
  BOOST_TEST(arena.bytes() == n_floats * sizeof(float));
}

}  // namespace
}  // namespace ebb
