#define BOOST_TEST_MODULE reference_model
#define BOOST_TEST_DYN_LINK
#include "tests/reference/model.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "modules/loader_gguf/gguf_loader.h"
#include "tests/reference/model_file.h"

// The reference model against logits of two other implementations (tests/data/README.md): a numpy
// model in double, which it must equal to the rounding of the stored f32, and libllama in f32.

using namespace ebb;
using namespace ebb::reference;

namespace {

// Around the chunk of 4 tokens, and past the chunk of 128.
const std::set<std::size_t> kFewLengths{1, 2, 3, 4, 5, 7, 8, 131};

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> argmax;  // per position
  std::set<std::size_t> unsure;      // positions where argmax is a matter of rounding
  std::size_t row = 0;               // in the logits files
};

std::vector<Prompt> read_prompts(const std::string& folder, const std::set<std::size_t>& lengths) {
  std::ifstream file(folder + "/index.json");
  BOOST_REQUIRE_MESSAGE(file, "cannot read " << folder << "/index.json");
  const nlohmann::json index = nlohmann::json::parse(file);
  std::vector<Prompt> prompts;
  for (const auto& entry : index["prompts"]) {
    Prompt p{entry["tokens"], entry["argmax"], entry["argmax_unsure"], entry["row"]};
    if (lengths.contains(p.tokens.size())) prompts.push_back(std::move(p));
  }
  return prompts;
}

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file, "cannot read " << path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

double largest_difference(const Vector& logits, const std::vector<float>& rows, std::size_t row) {
  BOOST_REQUIRE_GE(rows.size(), (row + 1) * logits.size());
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::fabs(logits[i] - rows[row * logits.size() + i]));
  }
  return worst;
}

Weights open_weights(const std::string& path) {
  const auto loader = gguf::GgufLoader::open(path, false);
  if (!loader) BOOST_FAIL(loader.error().message);
  return load_weights(model_file(**loader));
}

/// The prompts of these lengths, without and with the rounding simulation.
void check_model(const std::string& path, const std::string& vectors,
                 const std::set<std::size_t>& lengths) {
  const Weights weights = open_weights(path);
  const std::string folder = EBB_TEST_DATA "/vectors/" + vectors;
  const std::vector<float> plain = read_floats(folder + "/last_logits_fp64.f32");
  const std::vector<float> libllama = read_floats(folder + "/last_logits.f32");
  const std::vector<float> simulated = read_floats(folder + "/last_logits_sim.f32");
  const std::vector<Prompt> prompts = read_prompts(folder, lengths);
  BOOST_REQUIRE_EQUAL(prompts.size(), lengths.size());
  for (const Prompt& prompt : prompts) {
    BOOST_TEST_CONTEXT(vectors << ", prompt of " << prompt.tokens.size() << " tokens") {
      Model model(weights, false);
      Vector logits;
      for (std::size_t i = 0; i < prompt.tokens.size(); ++i) {
        logits = model.step(prompt.tokens[i]).logits;
        const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        if (!prompt.unsure.contains(i)) BOOST_TEST(best == prompt.argmax[i], "position " << i);
      }
      BOOST_TEST(largest_difference(logits, plain, prompt.row) < 5e-6);
      BOOST_TEST(largest_difference(logits, libllama, prompt.row) < 2.5e-4);
      const Vector rounded = last_logits(weights, prompt.tokens, true);
      BOOST_TEST(largest_difference(rounded, simulated, prompt.row) < 5e-6);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(unquantised_model_equals_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_f32.gguf", "tiny_f32",
              {1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 131, 132, 300});
}

BOOST_AUTO_TEST_CASE(two_bit_model_equals_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_q2mix.gguf", "tiny_q2mix", kFewLengths);
}

BOOST_AUTO_TEST_CASE(mixed_types_and_clamps_equal_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_kmix.gguf", "tiny_kmix", kFewLengths);
}

BOOST_AUTO_TEST_CASE(demo_model_equals_both_oracles) {
  check_model(EBB_DEMO_MODEL, "ds4-mini-q8_0", kFewLengths);
}

BOOST_AUTO_TEST_CASE(split_model_has_the_same_logits_as_the_single_file) {
  const Weights single = open_weights(EBB_TEST_DATA "/models/tiny_f32.gguf");
  const Weights split = open_weights(EBB_TEST_DATA "/models/tiny_f32-00001-of-00002.gguf");
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  BOOST_TEST(last_logits(single, tokens, false) == last_logits(split, tokens, false));
}

BOOST_AUTO_TEST_CASE(a_tensor_of_the_wrong_size_is_named) {
  const auto loader = gguf::GgufLoader::open(EBB_TEST_DATA "/models/tiny_f32.gguf", false);
  BOOST_REQUIRE(loader);
  const ModelFile file = model_file(**loader);
  const auto shortened = [&](const std::string& name) {
    Vector values =
        dequantise(file.tensor(name)->type, {file.tensor(name)->data, file.tensor(name)->n_bytes});
    if (name == "blk.3.attn_kv.weight") values.pop_back();
    return values;
  };
  BOOST_CHECK_EXCEPTION(load_weights(read_config(file), shortened), std::invalid_argument,
                        [](const std::exception& e) {
                          return std::string(e.what()).starts_with("blk.3.attn_kv.weight");
                        });
}
