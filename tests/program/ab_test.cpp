// The figures and words of ebb ab, from passes that are made up; and its statistics by simulation.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "tools/ebb/ab_analysis.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/output_folder.h"
#include "tools/ebb/statistics.h"

using namespace ebb;
using namespace ebb::cli;
namespace fs = std::filesystem;
using boost::test_tools::tolerance;

namespace {

/// A sample that fed 100 tokens in `prefill` s and then made `n_new` tokens, each in `token` s.
AbSample sample(double prefill, double token, std::size_t n_new = 11) {
  AbSample sample;
  sample.n_prompt = 100;
  for (std::size_t i = 0; i < n_new; ++i) {
    sample.tokens.push_back(static_cast<std::int32_t>(i));
    sample.text += static_cast<char>('a' + i);
    sample.text_ends.push_back(sample.text.size());
    if (i > 0) sample.token_seconds.push_back(token);
  }
  sample.timings.prefill = prefill;
  sample.timings.decode = token * static_cast<double>(n_new - 1);
  return sample;
}

AbPass pass(std::int32_t round, std::size_t side, std::vector<AbSample> samples, double wall = 1) {
  AbPass pass;
  pass.round = round;
  pass.side = side;
  pass.wall = wall;
  pass.samples = std::move(samples);
  return pass;
}

const AbMeasure& named(const std::vector<AbMeasure>& measures, const std::string& name) {
  for (const AbMeasure& measure : measures) {
    if (measure.name == name) return measure;
  }
  BOOST_FAIL("no measure " << name);
  return measures.front();
}

bool contains(const std::vector<std::string>& sentences, const std::string& what) {
  return std::any_of(sentences.begin(), sentences.end(), [&](const std::string& sentence) {
    return sentence.find(what) != sentence.npos;
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ab)

BOOST_AUTO_TEST_CASE(sides_take_turns_as_abba_baab) {
  std::string order;
  for (std::int32_t round = 1; round <= 8; ++round) order += first_side(round) == 0 ? "AB" : "BA";
  BOOST_TEST(order == "ABBABAABBAABABBA");
}

// Ratios 1/2 and 1/8 have the mean 1/4; the interval is exp(log(1/4) -+ t (1 degree) * s / sqrt 2)
// with s = log(4) / sqrt 2 and t = tan(pi * 0.475), since Student's t of one degree is Cauchy's.
BOOST_AUTO_TEST_CASE(a_ratio_is_a_geometric_mean_with_students_interval) {
  const std::vector<double> logs{std::log(0.5), std::log(0.125)};
  const Ratio ratio = ratio_of(logs, 1);
  BOOST_TEST(ratio.value == 0.25, tolerance(1e-12));
  const double half = std::tan(M_PI * 0.475) * std::log(4.0) / 2;
  BOOST_REQUIRE(ratio.interval);
  BOOST_TEST(std::log(ratio.interval->high) == std::log(0.25) + half, tolerance(1e-9));
  BOOST_TEST(std::log(ratio.interval->low) == std::log(0.25) - half, tolerance(1e-9));
  // Four together: 0.05 is shared out, and each leaves out 0.0125, half of it above.
  const double wide = std::tan(M_PI * (0.5 - 0.0125 / 2)) * std::log(4.0) / 2;
  BOOST_TEST(std::log(ratio_of(logs, 4).interval->high) == std::log(0.25) + wide, tolerance(1e-9));
  BOOST_TEST(!ratio_of(std::vector<double>{0.1}, 1).interval);
}

// All of n signs alike have probability 2 / 2^n; one other of six, 2 * 7 / 64.
BOOST_AUTO_TEST_CASE(a_trend_is_judged_by_exact_binomial_probabilities) {
  std::vector<double> rising(12);
  std::iota(rising.begin(), rising.end(), 0.0);
  const SignTest up = trend_test(rising);
  BOOST_TEST(up.n_up == 6);
  BOOST_TEST(up.p == 2.0 / 64, tolerance(1e-12));
  BOOST_TEST(up.least_p == 2.0 / 64, tolerance(1e-12));
  rising[11] = -1;
  BOOST_TEST(trend_test(rising).p == 2.0 * 7 / 64, tolerance(1e-12));
  BOOST_TEST(trend_test(std::vector<double>{1, 1, 1, 1}).p == 1);
  // The middle one of five is left out.
  const SignTest odd = trend_test(std::vector<double>{3, 4, 99, 2, 1});
  BOOST_TEST(odd.n_down == 2);
  BOOST_TEST(odd.n_up == 0);
  BOOST_TEST(odd.p == 0.5, tolerance(1e-12));
  BOOST_TEST(trend_test(std::vector<double>{1}).p == 1);
}

BOOST_AUTO_TEST_CASE(a_round_is_the_mean_of_its_prompts_ratios) {
  // Decode: prompt 0 twice as fast on B, prompt 1 half as fast: no difference. Prefill: B takes 2
  // and 8 times as long: a quarter of the speed.
  const std::vector<AbPass> passes{pass(0, 0, {sample(9, 9), sample(9, 9)}),
                                   pass(0, 1, {sample(9, 9), sample(9, 9)}),
                                   pass(1, 0, {sample(1, 0.2), sample(1, 0.1)}, 3),
                                   pass(1, 1, {sample(2, 0.1), sample(8, 0.2)}, 6)};
  const std::vector<AbMeasure> measures = measures_of(passes);
  const AbMeasure& decode = named(measures, "decode");
  BOOST_TEST(decode.ratio.value == 1, tolerance(1e-12));
  BOOST_TEST(decode.mean_a == std::sqrt(5.0 * 10), tolerance(1e-12));
  BOOST_TEST(decode.ratios.size() == 1u);
  BOOST_TEST(!decode.ratio.interval);
  const AbMeasure& prefill = named(measures, "prefill");
  BOOST_TEST(prefill.ratio.value == 0.25, tolerance(1e-12));
  BOOST_TEST(prefill.mean_a == 100, tolerance(1e-12));
  BOOST_TEST(named(measures, "wall time").ratio.value == 2, tolerance(1e-12));
  BOOST_TEST(named(measures, "median token").mean_a == 1e3 * std::sqrt(0.02), tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(a_round_without_its_other_side_and_a_prompt_that_failed_do_not_count) {
  AbSample failed;
  failed.error = "no numbers";
  const std::vector<AbPass> passes{
      pass(0, 0, {sample(1, 0.1), sample(1, 0.1)}), pass(0, 1, {sample(1, 0.1), sample(1, 0.1)}),
      pass(1, 0, {sample(1, 0.1), sample(1, 5)}), pass(1, 1, {sample(1, 0.2), failed}),
      pass(2, 1, {sample(1, 7), sample(1, 7)})};
  BOOST_TEST(rounds_of(passes) == 1);
  const std::vector<AbMeasure> measures = measures_of(passes);
  BOOST_TEST(named(measures, "decode").ratio.value == 0.5, tolerance(1e-12));
  const std::vector<AbTokens> tokens = tokens_of(passes);
  BOOST_TEST(tokens[0].error.empty());
  BOOST_TEST(tokens[1].error == "no numbers");
}

BOOST_AUTO_TEST_CASE(prompts_of_one_token_have_no_decode_speed) {
  const std::vector<AbPass> passes{pass(1, 0, {sample(1, 0.1, 1)}),
                                   pass(1, 1, {sample(1, 0.1, 1)})};
  const std::vector<AbMeasure> measures = measures_of(passes);
  BOOST_TEST(measures.size() == 2u);
  BOOST_TEST(named(measures, "prefill").ratio.value == 1, tolerance(1e-12));
  BOOST_TEST(measures_of({}).empty());
}

BOOST_AUTO_TEST_CASE(tokens_are_compared_between_sides_and_rounds) {
  AbSample other = sample(1, 0.1), shorter = sample(1, 0.1, 6);
  other.tokens[4] = 99;
  const std::vector<AbPass> passes{
      pass(0, 0, {sample(1, 0.1), sample(1, 0.1), sample(1, 0.1), sample(1, 0.1)}),
      pass(0, 1, {sample(1, 0.1), other, shorter, sample(1, 0.1)}),
      pass(1, 0, {sample(1, 0.1), sample(1, 0.1), sample(1, 0.1), other}),
      pass(1, 1, {sample(1, 0.1), other, shorter, sample(1, 0.1)})};
  const std::vector<AbTokens> tokens = tokens_of(passes);
  BOOST_TEST((tokens[0].equal && tokens[0].a_repeats && tokens[0].b_repeats));
  BOOST_TEST((!tokens[1].equal && tokens[1].a_repeats && tokens[1].b_repeats));
  BOOST_TEST(tokens[1].first_difference == 4u);
  BOOST_TEST(!tokens[2].equal);
  BOOST_TEST(tokens[2].first_difference == 6u);
  BOOST_TEST((tokens[3].equal && !tokens[3].a_repeats && tokens[3].b_repeats));

  std::vector<Job> jobs(4);
  const std::vector<std::string> cautions = cautions_of(measures_of(passes), tokens, jobs);
  BOOST_TEST(contains(cautions, "The sides give other tokens for 2 of 4 prompts"));
  BOOST_TEST(contains(cautions, "Side A gives other tokens from round to round for 1 of 4"));
  BOOST_TEST(!contains(cautions, "Side B gives"));
}

BOOST_AUTO_TEST_CASE(text_around_a_token_is_cut_by_tokens) {
  const AbSample abc = sample(1, 0.1, 6);
  BOOST_TEST(text_between(abc, 0, 2) == "ab");
  BOOST_TEST(text_between(abc, 4, 99) == "ef");
  BOOST_TEST(text_between(abc, 9, 12) == "");
  AbSample without;
  without.tokens = {1, 2};
  BOOST_TEST(text_between(without, 0, 2) == "");
}

BOOST_AUTO_TEST_CASE(latencies_and_counters_are_of_the_timed_rounds) {
  std::vector<AbPass> passes{pass(0, 0, {sample(1, 9)}), pass(1, 0, {sample(1, 0.2, 3)}),
                             pass(2, 0, {sample(1, 0.1, 3)}), pass(1, 1, {sample(1, 7, 3)})};
  const std::vector<double> want{0.1, 0.1, 0.2, 0.2};
  BOOST_TEST(latencies_of(passes, 0) == want, boost::test_tools::per_element());
  BOOST_TEST(!counters_of(passes, 0));
  passes[1].swap = SwapCounters{.misses = 3, .stall_us = 1};
  passes[2].swap = SwapCounters{.misses = 3, .stall_us = 2};
  BOOST_TEST(counters_of(passes, 0)->same);
  passes[2].swap->misses = 4;
  BOOST_TEST(!counters_of(passes, 0)->same);
}

BOOST_AUTO_TEST_CASE(one_round_claims_nothing) {
  std::vector<AbPass> passes{pass(1, 0, {sample(1, 0.1)}), pass(1, 1, {sample(1, 0.2)})};
  std::vector<std::string> verdict = verdict_of(measures_of(passes), rounds_of(passes));
  BOOST_REQUIRE(verdict.size() == 1u);
  BOOST_TEST(contains(verdict, "One round supports no claim"));
  BOOST_TEST(!contains(verdict, "slower"));
  passes.push_back(pass(2, 0, {sample(1.1, 0.1)}, 1.1));
  passes.push_back(pass(2, 1, {sample(1.0, 0.2)}));
  verdict = verdict_of(measures_of(passes), rounds_of(passes));
  BOOST_TEST(contains(verdict, "Decode: B is 50.0 % slower than A"));
  BOOST_TEST(contains(verdict, "Prefill: no difference is shown"));
  BOOST_TEST(contains(verdict, "2 rounds"));
  BOOST_TEST(contains(verdict, "The 4 intervals hold all 4 true ratios at once"));
  BOOST_TEST(contains(verdict, "one of 98.75 %"));
}

BOOST_AUTO_TEST_CASE(drift_of_a_is_told) {
  std::vector<AbPass> passes;
  for (std::int32_t round = 1; round <= 12; ++round) {
    const double slow = 0.1 * (1 + 0.02 * round);
    passes.push_back(pass(round, 0, {sample(1, slow)}));
    passes.push_back(pass(round, 1, {sample(1, slow)}));
  }
  const std::vector<AbMeasure> measures = measures_of(passes);
  const std::vector<Job> jobs(1);
  BOOST_TEST(contains(cautions_of(measures, tokens_of(passes), jobs), "A's own decode drifted"));
  BOOST_TEST(drift_text(measures).find("too few") == std::string::npos);
  passes.resize(8);
  const std::vector<AbMeasure> few = measures_of(passes);
  BOOST_TEST(!contains(cautions_of(few, tokens_of(passes), jobs), "drifted"));
  BOOST_TEST(drift_text(few).find("too few") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(ratios_have_the_digits_that_their_intervals_deserve) {
  BOOST_TEST(ratio_text({0.97034, Interval{0.9, 1.04}}) == "0.970");
  BOOST_TEST(ratio_text({0.97034, Interval{0.9699, 0.9708}}) == "0.97034");
  BOOST_TEST(interval_text({0.97034, Interval{0.9, 1.04}}) == "0.900 to 1.040");
  BOOST_TEST(ratio_text({0.97034, std::nullopt}) == "0.970");
}

// All intervals at once have to hold the true ratios in 95 % of experiments or more, and each alone
// in 98.75 %, also where what both sides of a round share, and what a round has as a whole, is many
// times what tells the sides apart. 4,000 experiments have standard errors of 0.34 and 0.18 %.
BOOST_AUTO_TEST_CASE(intervals_hold_the_truth_as_often_as_they_say) {
  std::mt19937_64 random(20261201);
  std::normal_distribution<double> normal;
  for (const double truth : {1.0, 0.97}) {
    constexpr int kExperiments = 4000, kRounds = 8, kPrompts = 3;
    int n_held = 0, n_all_held = 0;
    for (int experiment = 0; experiment < kExperiments; ++experiment) {
      std::vector<AbPass> passes;
      for (int round = 1; round <= kRounds; ++round) {
        const double shared = 0.2 * normal(random);  // how busy the machine is
        for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
          const double own = shared + 0.03 * normal(random);  // while this side has its turn
          std::vector<AbSample> samples;
          for (int prompt = 0; prompt < kPrompts; ++prompt) {
            const double speed = (side == 1 ? truth : 1) * (1 + prompt);
            samples.push_back(sample(1, 0.01 / speed * std::exp(own + 0.01 * normal(random)), 2));
          }
          for (AbSample& one : samples) one.timings.prefill = std::exp(0.1 * normal(random));
          passes.push_back(pass(round, side, std::move(samples), std::exp(0.05 * normal(random))));
        }
      }
      const std::vector<AbMeasure> measures = measures_of(passes);
      const auto holds = [&](const char* name, double true_ratio) {
        const Ratio& ratio = named(measures, name).ratio;
        return ratio.interval->low <= true_ratio && true_ratio <= ratio.interval->high;
      };
      n_held += holds("decode", truth);
      n_all_held += holds("decode", truth) && holds("median token", 1 / truth) &&
                    holds("prefill", 1) && holds("wall time", 1);
    }
    const double share = static_cast<double>(n_held) / kExperiments;
    const double share_of_all = static_cast<double>(n_all_held) / kExperiments;
    BOOST_TEST_MESSAGE("ratio " << truth << ": held by " << 100 * share
                                << " % of intervals, by all " << 100 * share_of_all << " %");
    BOOST_TEST(std::abs(share - 0.9875) < 4 * 0.0018);
    BOOST_TEST(share_of_all > 0.95 - 4 * 0.0034);
    BOOST_TEST(share_of_all < share);
  }
}

// Twenty comparisons of a manifest with itself, as many times as it takes to see how often 19 of
// them hold 1.00: by the binomial distribution in 97.4 % of cases for one of four ratios, which is
// what can be promised.
BOOST_AUTO_TEST_CASE(nineteen_of_twenty_comparisons_with_itself_show_no_difference) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  constexpr int kTwenties = 500;
  int n_good = 0, n_held = 0;
  for (int i = 0; i < kTwenties; ++i) {
    int n = 0;
    for (int repetition = 0; repetition < 20; ++repetition) {
      std::vector<double> logs(8);
      for (double& log : logs) log = 0.05 * normal(random);
      const Ratio ratio = ratio_of(logs, 4);
      n += ratio.interval->low <= 1 && 1 <= ratio.interval->high;
    }
    n_held += n;
    n_good += n >= 19;
  }
  BOOST_TEST(std::abs(n_held / (20.0 * kTwenties) - 0.9875) < 4 * std::sqrt(0.9875 * 0.0125 / 1e4));
  BOOST_TEST(std::abs(n_good / double{kTwenties} - 0.9745) < 4 * std::sqrt(0.9745 * 0.0255 / 500));
}

BOOST_AUTO_TEST_CASE(an_output_folder_appears_whole_or_not_at_all) {
  std::string name = (fs::temp_directory_path() / "ebb_ab_XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
  const fs::path root = name;
  const std::string out = (root / "report").string();
  const auto put = [](const std::string& path) { std::ofstream(path) << "x"; };
  {
    const Result<OutputFolder> folder = OutputFolder::create(out + "/");
    BOOST_REQUIRE(folder);
    put(folder->file("a"));
    BOOST_TEST(!fs::exists(out));
  }
  BOOST_TEST(fs::is_empty(root));
  {
    fs::create_directory(out);  // an empty one may be there
    Result<OutputFolder> folder = OutputFolder::create(out);
    BOOST_REQUIRE(folder);
    put(folder->file("a"));
    BOOST_REQUIRE(folder->commit());
  }
  BOOST_TEST(fs::exists(out + "/a"));
  const auto refused = [](const std::string& path) {
    const Result<OutputFolder> folder = OutputFolder::create(path);
    BOOST_REQUIRE(!folder);
    BOOST_TEST(exit_status(folder.error().code) == kBadInput);
    return folder.error().message;
  };
  BOOST_TEST(refused(out).find("not empty") != std::string::npos);
  BOOST_TEST(refused(out + "/a").find("exists") != std::string::npos);
  BOOST_TEST(refused((root / "no" / "report").string()).find("cannot make") != std::string::npos);
  BOOST_TEST(!refused("").empty());
  {
    // Who is first stays; what the other one made is kept under a name that nobody cleans up.
    Result<OutputFolder> one = OutputFolder::create((root / "two").string());
    BOOST_REQUIRE(one);
    put(one->file("a"));
    fs::create_directory(root / "two");
    put((root / "two" / "b").string());
    const Status status = one->commit();
    BOOST_REQUIRE(!status);
    const std::string kept = fmt::format("{}/two.{}", root.string(), ::getpid());
    BOOST_TEST(status.error().message.ends_with("; it is " + kept));
    BOOST_TEST(fs::exists(kept + "/a"));
  }
  {
    fs::create_directory(root / "real");
    fs::create_directory_symlink("real", root / "link");
    Result<OutputFolder> folder = OutputFolder::create((root / "link").string());
    BOOST_REQUIRE(folder);
    put(folder->file("a"));
    BOOST_REQUIRE(folder->commit());
    BOOST_TEST(fs::exists(root / "real" / "a"));
    BOOST_TEST(fs::is_symlink(root / "link"));
  }
  BOOST_TEST(std::distance(fs::directory_iterator(root), fs::directory_iterator()) == 5);
  fs::remove_all(root);
}

BOOST_AUTO_TEST_CASE(what_dead_processes_left_of_a_folder_goes_and_what_the_living_make_stays) {
  std::string name = (fs::temp_directory_path() / "ebb_ab_XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
  const fs::path root = name;
  const std::string out = (root / "report").string();
  const auto make = [&](const char* pid, const char* file) {
    const fs::path folder = fmt::format("{}.{}.tmp", out, pid);
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << "x";
    return folder;
  };
  // Ours of a process of the same number, one of another, and three that no run of ours made.
  const fs::path own = make(std::to_string(::getpid()).c_str(), "a.trace");
  const fs::path other = make("1", "a.trace");
  const fs::path deep = make("2", "folder/a"), word = make("x", "a"), none = make("", "a");
  const std::string elsewhere = out + "s.1.tmp";
  fs::create_directory(elsewhere);
  BOOST_REQUIRE(OutputFolder::create(out));
  BOOST_TEST(!fs::exists(own));
  BOOST_TEST(!fs::exists(other));
  for (const fs::path& kept : {deep / "folder" / "a", word / "a", none / "a"}) {
    BOOST_TEST(fs::exists(kept), kept);
  }
  BOOST_TEST(fs::exists(elsewhere));

  const fs::path held = make("1", "a.trace");
  const int descriptor = ::open(held.c_str(), O_RDONLY);
  BOOST_REQUIRE(::flock(descriptor, LOCK_EX) == 0);
  const Result<OutputFolder> refused = OutputFolder::create(out);
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message == out + ": another process is writing it");
  BOOST_TEST(exit_status(refused.error().code) == kBadInput);
  BOOST_TEST(fs::exists(held / "a.trace"));
  ::close(descriptor);
  BOOST_TEST(OutputFolder::create(out).has_value());
  BOOST_TEST(!fs::exists(held));

  make(std::to_string(::getpid()).c_str(), "folder/a");
  const Result<OutputFolder> blocked = OutputFolder::create(out);
  BOOST_REQUIRE(!blocked);
  BOOST_TEST(blocked.error().message.starts_with(own.string() + ": there already: delete it"));
  fs::remove_all(root);
}

BOOST_AUTO_TEST_SUITE_END()
