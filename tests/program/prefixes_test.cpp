#include "tools/ebb/prefixes.h"

#include <boost/test/unit_test.hpp>
#include <numeric>

namespace ebb::cli {
namespace {

using Ids = std::vector<std::int32_t>;

/// Tokens from, from + 1 and so on.
Ids run(std::int32_t from, std::size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::deque<Job> jobs(const std::vector<Ids>& prompts) {
  std::deque<Job> all;
  for (const Ids& prompt : prompts) all.push_back({std::to_string(all.size()), prompt, {}});
  return all;
}

const Ids kDocument = run(1000, 600), kSystem = run(50000, 300);

BOOST_AUTO_TEST_CASE(what_one_other_shares_is_worth_holding_from_some_length_on) {
  const Ids prompt = kDocument + Ids{1, 2};
  BOOST_TEST(prefix_to_hold(prompt, {}, 0) == 0);
  BOOST_TEST(prefix_to_hold(prompt, jobs({kDocument + Ids{3}}), 0) == 600);
  BOOST_TEST(prefix_to_hold(prompt, jobs({run(0, 600)}), 0) == 0);
  BOOST_TEST(prefix_to_hold(prompt, jobs({run(1000, 256) + Ids{3}}), 0) == 256);
  BOOST_TEST(prefix_to_hold(prompt, jobs({run(1000, 255) + Ids{3}}), 0) == 0);
  BOOST_TEST(prefix_to_hold(Ids{}, jobs({kDocument}), 0) == 0);
}

BOOST_AUTO_TEST_CASE(the_last_token_of_either_is_fed) {
  BOOST_TEST(prefix_to_hold(kDocument, jobs({kDocument}), 0) == 599);
  BOOST_TEST(prefix_to_hold(kDocument, jobs({kDocument + Ids{1}}), 0) == 599);
  BOOST_TEST(prefix_to_hold(kDocument + Ids{1}, jobs({kDocument}), 0) == 599);
  BOOST_TEST(prefix_to_hold(run(1000, 256), jobs({run(1000, 256)}), 0) == 0);
  BOOST_TEST(prefix_to_hold(run(1000, 257), jobs({run(1000, 257)}), 0) == 256);
}

// 8 documents after one system prompt, 9 questions to each: the documents are shared, not the
// system prompt alone, nor what two of the questions begin with.
BOOST_AUTO_TEST_CASE(length_and_number_are_weighed) {
  std::vector<Ids> prompts;
  for (std::int32_t document = 0; document < 8; ++document) {
    for (std::int32_t question = 0; question < 9; ++question) {
      const Ids asks = question < 2 ? run(7, 40) + Ids{question} : Ids{question};
      prompts.push_back(kSystem + run(1000 * document, 700) + asks);
    }
  }
  const std::deque<Job> waiting(jobs({prompts.begin() + 1, prompts.end()}));
  BOOST_TEST(prefix_to_hold(prompts[0], waiting, 0) == 1000);
  // Many short ones outweigh a long one that two share.
  std::vector<Ids> others(20, kDocument + Ids{5});
  others.push_back(kDocument + run(0, 500) + Ids{5});
  BOOST_TEST(prefix_to_hold(kDocument + run(0, 500) + Ids{6}, jobs(others), 0) == 600);
  others.insert(others.end(), 3, kDocument + run(0, 500) + Ids{7});
  BOOST_TEST(prefix_to_hold(kDocument + run(0, 500) + Ids{6}, jobs(others), 0) == 1100);
}

BOOST_AUTO_TEST_CASE(what_is_held_anyhow_does_not_count) {
  const Ids prompt = kDocument + run(0, 300) + Ids{9};
  const auto waiting = jobs({kDocument + Ids{5}, kDocument + run(0, 300) + Ids{5}});
  BOOST_TEST(prefix_to_hold(prompt, waiting, 0) == 900);  // 450 a prompt are spared, not 400
  BOOST_TEST(prefix_to_hold(prompt, waiting, 600) == 900);
  BOOST_TEST(prefix_to_hold(prompt, waiting, 700) == 0);  // 200 more are too few
}

BOOST_AUTO_TEST_CASE(a_prompt_uses_the_longest_prefix_that_it_goes_on_from) {
  Prefixes prefixes;
  BOOST_TEST(prefixes.use(kDocument) == nullptr);
  const auto* const system = prefixes.add(4, kSystem);
  const auto* const document = prefixes.add(2, kSystem + kDocument);
  BOOST_TEST(prefixes.use(kSystem + Ids{1}) == system);
  BOOST_TEST(prefixes.use(kSystem + kDocument) == system);  // none of its tokens would be left
  BOOST_TEST(prefixes.use(kSystem + kDocument + Ids{1}) == document);
  BOOST_TEST(prefixes.use(kSystem) == nullptr);
  BOOST_TEST(prefixes.use(kDocument) == nullptr);
  BOOST_TEST(system->sequence == 4);
  prefixes.remove(system);
  BOOST_TEST(prefixes.use(kSystem + Ids{1}) == nullptr);
  BOOST_TEST(prefixes.size() == 1U);
}

BOOST_AUTO_TEST_CASE(who_goes_on_from_a_held_prefix_is_first) {
  Prefixes prefixes;
  auto waiting = jobs({run(0, 9), kSystem + Ids{1}, kDocument + Ids{1}, kDocument + Ids{2}});
  BOOST_TEST(prefixes.choose(waiting)->id == "0");
  prefixes.add(0, kDocument);
  BOOST_TEST(prefixes.choose(waiting)->id == "2");
  prefixes.add(1, kSystem);
  BOOST_TEST(prefixes.choose(waiting)->id == "1");
}

BOOST_AUTO_TEST_CASE(room_is_made_by_what_was_used_longest_ago_and_nobody_waits_for) {
  Prefixes prefixes;
  const auto* const a = prefixes.add(0, kDocument);
  const auto* const b = prefixes.add(1, kSystem);
  const auto* const c = prefixes.add(2, run(0, 300));
  BOOST_TEST(prefixes.least_needed(nullptr, {}) == a);
  BOOST_TEST(prefixes.least_needed(a, {}) == b);
  prefixes.use(kDocument + Ids{1});
  BOOST_TEST(prefixes.least_needed(nullptr, {}) == b);
  const auto waiting = jobs({kSystem + Ids{1}, run(0, 301)});
  BOOST_TEST(prefixes.least_needed(nullptr, waiting) == a);
  BOOST_TEST(prefixes.least_needed(a, waiting) == nullptr);
  BOOST_TEST(c->sequence == 2);
}

}  // namespace
}  // namespace ebb::cli
