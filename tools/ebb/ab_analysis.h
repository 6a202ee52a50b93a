#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/ebb/ab_passes.h"
#include "tools/ebb/statistics.h"

// From the passes of an experiment to its figures. Knows no engine and no file.

namespace ebb::cli {

/// One measured quantity on both sides.
struct AbMeasure {
  std::string name, unit;
  bool is_speed = true;  ///< more is better; else less is
  /// By round. Speeds: geometric mean over the prompts.
  std::vector<double> a, b, ratios;
  std::vector<double> logs;       ///< of the ratios
  double mean_a = 0, mean_b = 0;  ///< geometric, over rounds: their ratio is `ratio`
  Ratio ratio;                    ///< B over A; its interval is one of all measures together
  SignTest drift_a;               ///< whether A itself changed in the course of the rounds
  double change_a = 1;  ///< geometric mean of the second half of A's rounds over the first
};

/// Decode and prefill speed, the median time of a token, which does not see what strikes few of
/// them, and wall time, of the timed rounds. Of each prompt, a round gives the logarithm of B over
/// A; a round is their mean, and rounds are what the interval is over, since the prompts of one
/// round share whatever the machine did meanwhile. Prompts that failed in any pass, and those of
/// one token for decode, do not count; a speed that no prompt has is left out. `passes`: both sides
/// of each round.
std::vector<AbMeasure> measures_of(const std::vector<AbPass>& passes);

/// What became of one prompt's tokens.
struct AbTokens {
  std::size_t prompt = 0;
  std::string error;  ///< of the first pass that failed, on either side: the rest says nothing then
  bool a_repeats = true, b_repeats = true;  ///< the same in every pass of the side
  bool equal = true;                        ///< A's first pass and B's first pass
  std::size_t first_difference = 0;  ///< if not equal: place of the first other token, from 0
  const AbSample* a = nullptr;       ///< first pass of each side; borrowed
  const AbSample* b = nullptr;
};
std::vector<AbTokens> tokens_of(const std::vector<AbPass>& passes);

/// Text of a sample's tokens [from, end), as far as there are so many.
std::string text_between(const AbSample& sample, std::size_t from, std::size_t end);

/// Seconds from token to token in all timed passes of a side, ascending.
std::vector<double> latencies_of(const std::vector<AbPass>& passes, std::size_t side);

/// The counters of a side's timed passes: those of the last one, and whether all passes have the
/// same (stall_us and wait_us, which are times, excepted). Nothing if it neither swaps nor
/// forecasts.
struct AbCounters {
  std::optional<SwapCounters> swap;
  std::optional<MemoryCounters> memory;
  bool same = true;
};
std::optional<AbCounters> counters_of(const std::vector<AbPass>& passes, std::size_t side);

/// Rounds that are timed and whole.
std::int32_t rounds_of(const std::vector<AbPass>& passes);

/// What the figures say, in sentences. Without two rounds, nothing is claimed.
std::vector<std::string> verdict_of(const std::vector<AbMeasure>& measures, std::int32_t n_rounds);
/// On what an interval cannot see: A's own change, sides that gave other tokens.
std::vector<std::string> cautions_of(const std::vector<AbMeasure>& measures,
                                     const std::vector<AbTokens>& tokens,
                                     const std::vector<Job>& jobs);
/// One sentence on the sign test of A's decode speed, or of what there is.
std::string drift_text(const std::vector<AbMeasure>& measures);

/// "95 % interval", or, of several measures, "95 % interval, 4 together".
std::string interval_name(std::size_t n_measures);
/// What that means, in a sentence.
std::string together_text(std::size_t n_measures);
/// "0.970", and "0.9703" where the interval is too narrow for three digits.
std::string ratio_text(const Ratio& ratio);
/// "0.962 to 0.978", or "" without an interval.
std::string interval_text(const Ratio& ratio);

}  // namespace ebb::cli
