#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "modules/loader_gguf/gguf_loader.h"
#include "tests/reference/model.h"
#include "tests/reference/model_file.h"
#include "tests/worst.h"

// The reference model against logits of two other implementations (tests/data/README.md): a numpy
// model in double, which it must equal to the rounding of the stored f32, and libllama in f32.

namespace ebb::reference {

/// Lengths of recorded prompts that cover the edges of a chunk of 4 tokens and the end of one of
/// 128.
inline const std::set<std::size_t> kFewLengths{1, 2, 3, 4, 5, 7, 8, 131};

/// One recorded prompt.
struct Prompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> argmax;  ///< per position
  std::set<std::size_t> unsure;      ///< positions where argmax is a matter of rounding
  std::size_t row = 0;               ///< in the logits files
};

inline std::vector<Prompt> read_prompts(const std::string& folder,
                                        const std::set<std::size_t>& lengths) {
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

inline std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file, "cannot read " << path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

inline double largest_difference(const Vector& logits, const std::vector<float>& rows,
                                 std::size_t row) {
  BOOST_REQUIRE_GE(rows.size(), (row + 1) * logits.size());
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    worst = test::worse(worst, std::fabs(logits[i] - rows[row * logits.size() + i]));
  }
  return worst;
}

inline Weights open_weights(const std::string& path) {
  const auto loader = gguf::GgufLoader::open(path, false);
  if (!loader) BOOST_FAIL(loader.error().message);
  return load_weights(model_file(**loader));
}

/// The prompts of these lengths, without and with the rounding simulation.
inline void check_model(const std::string& path, const std::string& vectors,
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

}  // namespace ebb::reference
