#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ebb {

/// How scorers are taken together. A score is a logit here: ranks stay exact where its sigmoid
/// would be 1.
enum class Ensemble : std::int32_t { max, mean };

/// scores[c] of one chunk from those of every scorer, `all[i]` [n] by chunk. max: the largest;
/// mean: the logit of the mean of the sigmoids. NaN counts as -inf; returns how many there were.
/// Source: retriever reference 2.6
std::int64_t combine(Ensemble ensemble, std::span<const float* const> all,
                     std::span<float> scores) noexcept;

/// Which chunks a forecast keeps. Tokens are counted in chunks that they reach into.
struct ChoiceRules {
  enum class By : std::int32_t { top_k, threshold, pages };

  By by = By::top_k;
  double threshold = 0.5;  ///< of the sigmoid
  double budget = 1;       ///< of the chunks, as a part; forced ones count
  std::int64_t page_chunks = 64;
  std::int64_t sink_chunks = 0, recent_chunks = 0;  ///< forced: kept whatever the budget is
  std::int64_t max_chunks = INT64_MAX;              ///< budget in chunks, if that is less
};

/// Chooses with memory of its own, which it takes in the constructor.
class Chooser {
 public:
  Chooser(const ChoiceRules& rules, std::int64_t n_chunks);

  /// Of chunks with these scores, the kept ones, ascending; equal scores go to the lower id.
  ///   top_k      the forced, then the best, up to the budget
  ///   threshold  the forced and all above the threshold; if these exceed the budget, the best
  ///   pages      pages of page_chunks with a forced chunk, then those with most chunks above the
  ///              threshold, up to the budget in whole pages; all chunks of each
  /// Valid until the next call.   Source: retriever reference 2.6 (a) to (c)
  std::span<const std::int32_t> choose(std::span<const float> scores) noexcept;

 private:
  bool forced(std::int64_t chunk, std::int64_t n) const {
    return chunk < rules_.sink_chunks || chunk >= n - rules_.recent_chunks;
  }
  std::int64_t budget(std::int64_t n) const;
  void best(std::span<const float> scores, bool only_above);
  void best_pages(std::span<const float> scores);

  ChoiceRules rules_;
  float above_;  // logit of the threshold
  std::vector<std::int32_t> kept_;
  std::vector<std::int32_t> others_;  // candidates: chunks or pages
  std::vector<std::int32_t> counts_;  // by page
};

}  // namespace ebb
