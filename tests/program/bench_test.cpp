// What a benchmark is told to do, and how its rows are written.

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tools/ebb/bench_plan.h"
#include "tools/ebb/bench_report.h"
#include "tools/ebb/statistics.h"

using namespace ebb;
using namespace ebb::cli;
using Lengths = std::vector<std::int64_t>;

namespace {

std::string mistake(const Status& status) { return status ? "" : status.error().message; }

BenchPlan plan_of(const Lengths& frontiers, const std::vector<std::int32_t>& batches = {1}) {
  BenchPlan plan;
  plan.frontiers = frontiers;
  plan.batches = batches;
  plan.n_steps = 9;  // with the first one, ten steps a batch
  return plan;
}

SessionShape session_of(std::int64_t max_context, std::int32_t max_sequences = 1) {
  return {.max_context = max_context, .max_open = max_sequences, .max_decode = max_sequences};
}

bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

BOOST_AUTO_TEST_CASE(lengths_are_read_with_their_units_and_sorted) {
  const auto lengths = parse_lengths("64K,100,2k,1M,100");
  BOOST_REQUIRE(lengths);
  BOOST_TEST(*lengths == (Lengths{100, 2048, 65536, 1048576}));
  const auto batches = parse_batches("1,16,4");
  BOOST_REQUIRE(batches);
  BOOST_TEST(*batches == (std::vector<std::int32_t>{16, 4, 1}));
}

BOOST_AUTO_TEST_CASE(what_is_no_length_is_refused_by_name) {
  for (const char* text : {"", "1,", ",1", "2X", "K", "-1", "0", "1.5", "99999999999999999999",
                           "17M", "9007199254740993K"}) {
    BOOST_TEST(!parse_lengths(text), text);
  }
  BOOST_TEST(has(parse_lengths("1,2X").error().message, "\"2X\""));
  BOOST_TEST(!parse_batches("1025"));
  BOOST_TEST(!parse_batches("2M"));
}

BOOST_AUTO_TEST_CASE(default_frontiers_are_those_with_room_to_decode) {
  BenchPlan plan = plan_of({});
  BOOST_TEST(mistake(fit_plan(plan, session_of(16384 + 10))) == "");
  BOOST_TEST(plan.frontiers == (Lengths{2048, 4096, 16384}));
  plan = plan_of({});
  BOOST_TEST(mistake(fit_plan(plan, session_of(16384 + 9))) == "");
  BOOST_TEST(plan.frontiers == (Lengths{2048, 4096}));
  plan = plan_of({});
  BOOST_TEST(mistake(fit_plan(plan, session_of(512))) == "");
  BOOST_TEST(plan.frontiers == (Lengths{502}));
}

BOOST_AUTO_TEST_CASE(plans_beyond_the_session_say_which_key_to_raise) {
  BenchPlan plan = plan_of({100});
  BOOST_TEST(has(mistake(fit_plan(plan, session_of(109))), "max_context = 110"));
  plan = plan_of({1});
  BOOST_TEST(has(mistake(fit_plan(plan, session_of(10))), "max_context"));
  plan = plan_of({100}, {4, 1});
  BOOST_TEST(has(mistake(fit_plan(plan, session_of(200, 3))), "max_sequences allows 3"));
}

BOOST_AUTO_TEST_CASE(fed_contexts_must_grow_past_what_was_decoded) {
  BenchPlan plan = plan_of({100, 120}, {2, 1});
  BOOST_TEST(has(mistake(fit_plan(plan, session_of(200, 2))), "leave nothing to feed"));
  plan = plan_of({100, 121}, {2, 1});
  BOOST_TEST(mistake(fit_plan(plan, session_of(200, 2))) == "");
  plan = plan_of({100, 120}, {2, 1});
  plan.synthetic = true;
  BOOST_TEST(mistake(fit_plan(plan, session_of(200, 2))) == "");
}

BOOST_AUTO_TEST_CASE(quantiles_lie_between_ordered_values) {
  const std::vector<double> values{4, 1, 3, 2, 5};
  BOOST_TEST(quantile(values, 0) == 1);
  BOOST_TEST(quantile(values, 0.5) == 3);
  BOOST_TEST(quantile(values, 0.9) == 4.6);
  BOOST_TEST(quantile(values, 1) == 5);
  BOOST_TEST(quantile({}, 0.5) == 0);
}

BOOST_AUTO_TEST_CASE(csv_quotes_what_would_break_a_line) {
  const nlohmann::ordered_json row{
      {"a", 1}, {"b", nullptr}, {"c", "x, \"y\""}, {"d", "plain"}, {"e", 0.5}};
  BOOST_TEST(bench_csv({row, row}) ==
             "a,b,c,d,e\n1,,\"x, \"\"y\"\"\",plain,0.5\n"
             "1,,\"x, \"\"y\"\"\",plain,0.5\n");
  BOOST_TEST(bench_csv({}) == "");
}
