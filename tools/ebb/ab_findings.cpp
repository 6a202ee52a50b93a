// The words of an experiment: what its figures say, and what they cannot say.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "tools/ebb/ab_analysis.h"

namespace ebb::cli {
namespace {

// Three digits, or as many as the interval's width deserves.
int digits_of(const Ratio& ratio) {
  if (!ratio.interval) return 3;
  const double width = ratio.interval->high - ratio.interval->low;
  return width > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(width))) + 1, 3, 6) : 6;
}

std::string percent(double factor) { return fmt::format("{:.1f} %", 100 * std::abs(factor - 1)); }

}  // namespace

std::string ratio_text(const Ratio& ratio) {
  return fmt::format("{:.{}f}", ratio.value, digits_of(ratio));
}

std::string interval_text(const Ratio& ratio) {
  if (!ratio.interval) return "";
  const int digits = digits_of(ratio);
  return fmt::format("{:.{}f} to {:.{}f}", ratio.interval->low, digits, ratio.interval->high,
                     digits);
}

std::string interval_name(std::size_t n_measures) {
  return n_measures < 2 ? "95 % interval" : fmt::format("95 % interval, {} together", n_measures);
}

std::string together_text(std::size_t n_measures) {
  if (n_measures < 2) return "The interval holds the true ratio in 95 % of experiments.";
  return fmt::format(
      "The {0} intervals hold all {0} true ratios at once in at least 95 % of experiments: of "
      "equal "
      "sides at most one experiment in twenty shows any difference. Each by itself is one of "
      "{1:.4g} "
      "%.",
      n_measures, 100 * confidence_of_each(n_measures));
}

std::vector<std::string> verdict_of(const std::vector<AbMeasure>& measures, std::int32_t n_rounds) {
  if (n_rounds == 0) return {"No round was finished: there is nothing to report."};
  if (n_rounds == 1) {
    return {
        "One round supports no claim: its ratios are single observations, and there is nothing "
        "to tell a difference between the sides from a difference between two moments. Run more "
        "rounds (--rounds)."};
  }
  std::vector<std::string> verdict;
  for (const AbMeasure& measure : measures) {
    const Ratio& ratio = measure.ratio;
    const bool has_one = ratio.interval->low <= 1 && ratio.interval->high >= 1;
    const std::string figures = fmt::format("B over A {}, interval {}, {} rounds",
                                            ratio_text(ratio), interval_text(ratio), n_rounds);
    if (has_one) {
      verdict.push_back(fmt::format("{}: no difference is shown ({}).", measure.name, figures));
    } else {
      const bool is_more = ratio.value > 1;
      const char* what =
          measure.is_speed ? (is_more ? "faster" : "slower") : (is_more ? "longer" : "shorter");
      verdict.push_back(fmt::format("{}: B is {} {} than A ({}).", measure.name,
                                    percent(ratio.value), what, figures));
    }
    verdict.back().front() = static_cast<char>(std::toupper(verdict.back().front()));
  }
  verdict.push_back(together_text(measures.size()));
  return verdict;
}

std::string drift_text(const std::vector<AbMeasure>& measures) {
  if (measures.empty() || measures.front().a.size() < 2) return "";
  const AbMeasure& measure = measures.front();
  const SignTest& test = measure.drift_a;
  const std::int64_t n = test.n_up + test.n_down;
  std::string text = fmt::format(
      "Drift: A's own {} speed was higher in the later round in {} of {} pairs of rounds, half the "
      "experiment apart (sign test, p = {:.3f}); the second half is {} {} on average.",
      measure.name, test.n_up, n, test.p, percent(measure.change_a),
      measure.change_a < 1 ? "lower" : "higher");
  if (test.least_p > 0.05) {
    text += fmt::format(
        " {} pairs are too few for the test to show drift; it takes six, which is "
        "12 rounds.",
        n);
  }
  return text;
}

std::vector<std::string> cautions_of(const std::vector<AbMeasure>& measures,
                                     const std::vector<AbTokens>& tokens,
                                     const std::vector<Job>& jobs) {
  std::vector<std::string> cautions;
  for (const AbMeasure& measure : measures) {
    if (measure.drift_a.p >= 0.05) continue;
    cautions.push_back(fmt::format(
        "A's own {} drifted: {} {} in the second half of the rounds (sign test, p = {:.3f}). The "
        "order of the sides cancels steady drift; what caused it may have struck unevenly.",
        measure.name, percent(measure.change_a), measure.change_a < 1 ? "lower" : "higher",
        measure.drift_a.p));
  }
  const auto n_all = tokens.size();
  const auto unequal = std::count_if(tokens.begin(), tokens.end(), [](const AbTokens& one) {
    return one.error.empty() && !one.equal;
  });
  if (unequal > 0) {
    cautions.push_back(
        fmt::format("The sides give other tokens for {} of {} prompts: speeds are of other texts, "
                    "and wall times are not comparable where their lengths differ.",
                    unequal, n_all));
  }
  for (const char side : {'A', 'B'}) {
    const auto changing = std::count_if(tokens.begin(), tokens.end(), [&](const AbTokens& one) {
      return one.error.empty() && !(side == 'A' ? one.a_repeats : one.b_repeats);
    });
    if (changing > 0) {
      cautions.push_back(fmt::format(
          "Side {} gives other tokens from round to round for {} of {} prompts, which it should "
          "not: results are meant to depend on the prompt, the model and the seed alone.",
          side, changing, n_all));
    }
  }
  for (const AbTokens& one : tokens) {
    if (!one.error.empty()) {
      cautions.push_back(fmt::format("Prompt {} failed and does not count: {}",
                                     printable(jobs[one.prompt].id, 60), printable(one.error)));
    } else if (one.a->n_prompt != one.b->n_prompt) {
      cautions.push_back(
          fmt::format("Prompt {} has {} tokens on side A and {} on side B: the "
                      "tokenizers differ.",
                      printable(jobs[one.prompt].id, 60), one.a->n_prompt, one.b->n_prompt));
    }
  }
  return cautions;
}

}  // namespace ebb::cli
