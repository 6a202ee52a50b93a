// How scores become a resident set, against the definitions spelled out chunk by chunk.

#define BOOST_TEST_MODULE memory_choice
#define BOOST_TEST_DYN_LINK
#include "modules/memory_flash/choice.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace {

using ebb::ChoiceRules;
using ebb::Chooser;
using ebb::combine;
using ebb::Ensemble;
using Ids = std::vector<std::int32_t>;
using By = ChoiceRules::By;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double sigmoid(float x) { return 1 / (1 + std::exp(-static_cast<double>(x))); }

Ids chosen(const ChoiceRules& rules, const std::vector<float>& scores) {
  Chooser chooser(rules, static_cast<std::int64_t>(scores.size()));
  const auto kept = chooser.choose(scores);
  return {kept.begin(), kept.end()};
}

/// The definition, with a full sort.
Ids expected(const ChoiceRules& rules, const std::vector<float>& scores) {
  const auto n = static_cast<std::int64_t>(scores.size());
  const auto budget = std::min(
      std::max<std::int64_t>(static_cast<std::int64_t>(rules.budget * static_cast<double>(n)), 1),
      rules.max_chunks);
  const auto is_forced = [&](std::int64_t c) {
    return c < rules.sink_chunks || c >= n - rules.recent_chunks;
  };
  const std::int64_t unit = rules.by == By::pages ? rules.page_chunks : 1;
  struct Item {
    std::int64_t id;
    bool forced;
    double value;
    bool wanted;
  };
  std::vector<Item> items;
  for (std::int64_t first = 0; first < n; first += unit) {
    Item item{first / unit, false, 0, true};
    for (std::int64_t c = first; c < std::min(first + unit, n); ++c) {
      const float score = scores[static_cast<std::size_t>(c)];
      item.forced = item.forced || is_forced(c);
      if (rules.by == By::pages) {
        item.value += sigmoid(score) > rules.threshold ? 1 : 0;
      } else {
        item.value = static_cast<double>(score);
        item.wanted = rules.by == By::top_k || sigmoid(score) > rules.threshold;
      }
    }
    items.push_back(item);
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.forced != b.forced ? a.forced : !a.forced && a.value > b.value;
  });
  const std::int64_t most =
      rules.by == By::pages ? std::max<std::int64_t>(budget / unit, 1) : budget;
  Ids ids;
  std::int64_t taken = 0;
  for (const Item& item : items) {
    if (!item.forced && (taken >= most || !item.wanted)) continue;
    ++taken;
    for (std::int64_t c = item.id * unit; c < std::min((item.id + 1) * unit, n); ++c) {
      ids.push_back(static_cast<std::int32_t>(c));
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(F4_the_best_by_score_then_by_lower_id_without_doubles) {
  ChoiceRules rules;
  rules.budget = 0.5;
  BOOST_TEST(chosen(rules, {1, 3, 3, 3, 2, 0}) == (Ids{1, 2, 3}), boost::test_tools::per_element());
  BOOST_TEST(chosen(rules, {5, 5, 5, 5, 5, 5}) == (Ids{0, 1, 2}), boost::test_tools::per_element());
  BOOST_TEST(chosen(rules, {-kInf, kInf, -kInf, -kInf, kInf, -kInf}) == (Ids{0, 1, 4}),
             boost::test_tools::per_element());
  // Logits tell apart what their sigmoids cannot.
  BOOST_TEST(chosen(rules, {40, 41, 42, 43, 44, 45}) == (Ids{3, 4, 5}),
             boost::test_tools::per_element());
  rules.budget = 0;
  BOOST_TEST(chosen(rules, {1, 2, 3}) == (Ids{2}), boost::test_tools::per_element());
  BOOST_TEST(chosen(rules, {}).empty());
}

BOOST_AUTO_TEST_CASE(F4_nan_counts_as_the_lowest_score_and_is_counted) {
  const std::vector<float> a{1, kNan, kNan, 2}, b{0, 5, kNan, -kInf};
  const float* const both[] = {a.data(), b.data()};
  std::vector<float> scores(4);
  BOOST_TEST(combine(Ensemble::max, both, scores) == 3);
  BOOST_TEST(scores[0] == 1.0f);
  BOOST_TEST(scores[1] == 5.0f);
  BOOST_TEST(scores[2] == -kInf);
  BOOST_TEST(scores[3] == 2.0f);
  BOOST_TEST(combine(Ensemble::mean, both, scores) == 3);
  BOOST_TEST(sigmoid(scores[1]) == (sigmoid(5) + 0) / 2, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(scores[2] == -kInf);
  BOOST_TEST(combine(Ensemble::max, std::span(both).first(1), scores) == 2);
  BOOST_TEST(scores[1] == -kInf);
}

BOOST_AUTO_TEST_CASE(the_mean_is_that_of_the_sigmoids_and_does_not_saturate) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> logit(-6, 6);
  std::vector<std::vector<float>> all(3, std::vector<float>(100));
  std::vector<const float*> rows;
  for (auto& one : all) {
    for (float& value : one) value = logit(random);
    rows.push_back(one.data());
  }
  std::vector<float> scores(100);
  combine(Ensemble::mean, rows, scores);
  for (std::size_t c = 0; c < 100; ++c) {
    const double mean = (sigmoid(all[0][c]) + sigmoid(all[1][c]) + sigmoid(all[2][c])) / 3;
    BOOST_TEST(sigmoid(scores[c]) == mean, boost::test_tools::tolerance(1e-5));
  }
  const std::vector<float> high{30, 31}, higher{40, 40};
  const float* const two[] = {high.data(), higher.data()};
  std::vector<float> ranks(2);
  combine(Ensemble::mean, two, ranks);
  BOOST_TEST(ranks[0] < ranks[1]);
}

BOOST_AUTO_TEST_CASE(F5_sets_are_those_of_the_definition) {
  std::mt19937 random(2);
  for (int round = 0; round < 600; ++round) {
    ChoiceRules rules;
    rules.by = static_cast<By>(round % 3);
    rules.budget = std::array{0.0, 0.05, 0.15, 0.5, 1.0}[random() % 5];
    rules.threshold = std::array{0.0, 0.3, 0.5, 0.9, 1.0}[random() % 5];
    rules.page_chunks = std::array<std::int64_t, 4>{1, 3, 8, 64}[random() % 4];
    rules.sink_chunks = static_cast<std::int64_t>(random() % 6);
    rules.recent_chunks = static_cast<std::int64_t>(random() % 6);
    if (rules.by != By::pages && random() % 4 == 0) rules.max_chunks = 9;
    std::vector<float> scores(random() % 300);
    for (float& score : scores) {
      score = static_cast<float>(static_cast<int>(random() % 9) - 4);  // many ties
      if (random() % 20 == 0) score = random() % 2 == 0 ? kInf : -kInf;
    }
    BOOST_TEST(chosen(rules, scores) == expected(rules, scores), boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(F5_forced_chunks_are_kept_whatever_the_budget_is) {
  ChoiceRules rules;
  rules.budget = 0.1;
  rules.sink_chunks = 2;
  rules.recent_chunks = 2;
  const std::vector<float> scores{0, 0, 9, 9, 9, 9, 9, 9, 0, 0};
  BOOST_TEST(chosen(rules, scores) == (Ids{0, 1, 8, 9}), boost::test_tools::per_element());
  rules.by = By::pages;
  rules.page_chunks = 4;
  BOOST_TEST(chosen(rules, scores) == (Ids{0, 1, 2, 3, 8, 9}), boost::test_tools::per_element());
}
