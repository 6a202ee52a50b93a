#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/manifest.h"

namespace ebb::cli {

/// [sampling]: how the next token is chosen where a request does not say.
struct SamplingSettings {
  double temperature = 0;  ///< 0 is greedy: the other settings do not matter then
  double top_p = 1;  ///< keep the most probable tokens up to this mass, at least one; 1 is off
  std::int32_t top_k = 0;  ///< keep this many of the most probable tokens; 0 is off
  std::uint64_t seed = 0;  ///< the engine's, unless [sampling] has its own

  /// Errors: invalid_argument with all mistakes of the section.
  static Result<SamplingSettings> read(const Manifest& manifest);
};

/// Chooses the next token from one row of logits.
///   greedy:  the highest logit
///   else:    keep top_k; p = softmax(logits / temperature) over those; keep the shortest prefix of
///            the descending order whose mass is at least top_p; draw by inverse cumulative sum
/// Ties go to the lower id; NaN is never chosen; logits of +inf share the probability equally.
/// The n-th draw depends on seed and n alone (SplitMix64, so every platform draws the same
/// numbers): a request gives the same tokens alone or in a batch. Thread: [decode]; allocates
/// nothing once a row of the same size was seen.
class Sampler {
 public:
  explicit Sampler(const SamplingSettings& settings) : settings_(settings) {}

  /// Token id, never `banned`; -1 if nothing is left that is a number.
  std::int32_t sample(std::span<const float> logits, std::int32_t banned = -1);

  /// The n-th number of the stream `seed`, in [0, 1), a multiple of 2^-53.
  static double uniform(std::uint64_t seed, std::uint64_t n);

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double weight;  ///< exp((logit - highest) / temperature)
  };

  SamplingSettings settings_;
  std::uint64_t n_draws_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace ebb::cli
