#include <boost/test/unit_test.hpp>
#include <random>

#include "kernels/ops/scoring.h"
#include "kernels/row_format.h"
#include "tests/core/support.h"
#include "tests/engine/harness.h"
#include "tests/scorers/retriever.h"
#include "tests/worst.h"
#include "tools/trace/swap_tap.h"

// scorer_flashmemory in a whole engine: what a forecast says is what the reference makes of the
// vectors and keys that an engine without scorers holds at the same token.

namespace ebb {
namespace {

using namespace ebb::test;

class Listener final : public trace::SwapTap {
 public:
  using SwapTap::SwapTap;
  void scored(const Forecast& forecast) noexcept override {
    scores.emplace_back(forecast.scores.begin(), forecast.scores.end());
    SwapTap::scored(forecast);
  }

  std::vector<std::vector<float>> scores;
};

constexpr std::size_t kPrompt = 101, kTokens = 160, kInterval = 16;

/// Feeds the prompt at once and the rest token by token; `fed` hears every position that asks, and
/// in which row of its step it was.
void feed(Engine& engine, const std::function<void(std::int32_t pos, std::int64_t row)>& fed) {
  std::mt19937 random(8);
  const std::int32_t sequence = test::require(engine.open_sequence());
  for (std::size_t at = 0; at < kTokens;) {
    const std::size_t n = at == 0 ? kPrompt : 1;
    std::vector<StepRow> rows;
    for (std::size_t i = 0; i < n; ++i) {
      rows.push_back({sequence, static_cast<std::int32_t>(random() % 320), i + 1 == n});
    }
    test::require(engine.step(rows));
    at += n;
    if ((at - kPrompt) % kInterval == 0) {
      fed(static_cast<std::int32_t>(at - 1), static_cast<std::int64_t>(n - 1));
    }
  }
  engine.close_sequence(sequence);
}

/// What the reference makes of a layer's kept vector and keys.
std::vector<double> logits_of(const Engine& engine, const reference::Retriever& retriever,
                              std::int32_t layer, std::int32_t pos, std::int64_t row) {
  ScoredLayer scored;
  test::require(engine.attention().scored_layer(layer, scored));
  const float* const x = scored.hidden + row * scored.d_model;
  std::vector<double> keys;
  std::vector<float> key(static_cast<std::size_t>(scored.d));
  for (std::int32_t c = 0; c < (pos + 1) / scored.ratio; ++c) {
    decode_row(scored.keys.format, scored.d, 0, row_at(scored.keys, 0, c), key.data());
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return reference::retriever_logits(retriever, {x, x + scored.d_model}, pos, keys,
                                     scored.transformed, true);
}

BOOST_AUTO_TEST_CASE(forecasts_of_an_engine_are_those_of_the_reference) {
  const TempFolder folder;
  SafetensorsFile file;
  // The model's layers of ratio 4, in order.
  std::vector<std::int32_t> layers;
  {
    const auto engine = open_engine(synthetic_manifest(), {});
    ScoredLayer scored;
    for (std::int32_t i = 0; i < 6; ++i) {
      if (engine->attention().scored_layer(i, scored)) layers.push_back(i);
    }
  }
  BOOST_TEST_REQUIRE(layers.size() >= 2);
  const RetrieverShape shape{256, 48, 8, 128, 32};
  std::vector<reference::Retriever> retrievers;
  std::string tables;
  for (std::size_t j : {0, 1}) {
    retrievers.push_back(
        random_retriever(shape, "retrievers.l" + std::to_string(j) + ".", 10 * j, file));
  }
  const std::string path = folder.write("x.safetensors", file.bytes());
  for (std::size_t j : {0, 1}) {
    tables += std::string(j > 0 ? "," : "") + ("{module=\"scorer_flashmemory\",layer=") +
              std::to_string(layers[j]) + ",weights=\"" + path + "\"}";
  }
  const std::vector<std::string> variants[] = {
      {"attention.index_format=f32"},
      {"attention.index_format=fp8"},
      {"attention.index_format=fp4"},
      {"attention.index_format=f32", "decoder.qat_simulation=true"}};
  for (const std::vector<std::string>& variant : variants) {
    std::vector<std::string> sizes{"engine.max_context=200", "engine.prefill_chunk=128"};
    sizes.insert(sizes.end(), variant.begin(), variant.end());
    std::vector<std::vector<double>> want;
    const auto plain =
        open_engine(synthetic_manifest(), sizes, false, nullptr, {layers[0], layers[1]});
    feed(*plain, [&](std::int32_t pos, std::int64_t row) {
      std::vector<double>& best =
          want.emplace_back(logits_of(*plain, retrievers[0], layers[0], pos, row));
      const auto other = logits_of(*plain, retrievers[1], layers[1], pos, row);
      for (std::size_t c = 0; c < best.size(); ++c) best[c] = std::max(best[c], other[c]);
    });

    std::vector<std::string> asking = sizes;
    for (const std::string& more :
         {std::string("memory.module=memory_flash"), "memory.interval=" + std::to_string(kInterval),
          "memory.scorer=[" + tables + "]", std::string("swap.module=swap_lru"),
          std::string("swap.slots=9")}) {
      asking.push_back(more);
    }
    const auto engine = open_engine(synthetic_manifest(), asking);
    Listener listener(*engine);
    feed(*engine, [](std::int32_t, std::int64_t) {});
    // The last query has had no two steps to take effect in, if it stands at the end.
    BOOST_TEST_REQUIRE(listener.scores.size() >= 3);
    BOOST_TEST_REQUIRE(listener.scores.size() <= want.size());
    for (std::size_t f = 0; f < listener.scores.size(); ++f) {
      BOOST_TEST_REQUIRE(listener.scores[f].size() == want[f].size());
      double worst = 0;
      for (std::size_t c = 0; c < want[f].size(); ++c) {
        worst = worse(worst,
                      std::fabs(listener.scores[f][c] - want[f][c]) / (1 + std::fabs(want[f][c])));
      }
      BOOST_TEST(worst <= 1e-4, variant.front() << ", forecast " << f << ": " << worst);
    }
  }
}

}  // namespace
}  // namespace ebb
