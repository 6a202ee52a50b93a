#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <vector>

#include "tools/ebb/job.h"

namespace ebb::cli {

/// Fewer tokens are not worth a sequence: a step costs about the same without them.
inline constexpr std::int64_t kLeastPrefix = 256;

/// How many of a prompt's first tokens to hold for those that wait: as many as spare the most. If c
/// of them begin with the same n tokens, those are fed once instead of c + 1 times, which spares
/// each of the c + 1 prompts (n - held) * c / (c + 1) on average; `held` tokens are spared anyhow.
/// The last token of a prompt is always fed. 0 if nothing is worth it.
std::int64_t prefix_to_hold(std::span<const std::int32_t> prompt, const std::deque<Job>& waiting,
                            std::int64_t held);

/// The prefixes that sequences hold, to be copied from. Knows tokens and numbers of sequences, not
/// the engine. Pointers are valid until what they point to is closed.
class Prefixes {
 public:
  struct Held {
    std::int32_t sequence;
    std::vector<std::int32_t> tokens;
    std::uint64_t used;  ///< when, counted in uses
  };

  /// The longest that a prompt goes on from, which uses it; nullptr if there is none.
  const Held* use(std::span<const std::int32_t> prompt);
  const Held* add(std::int32_t sequence, std::span<const std::int32_t> tokens);
  /// The first job that goes on from any; the first of all if none does. `waiting` is not empty.
  std::deque<Job>::iterator choose(std::deque<Job>& waiting) const;
  /// What may make room for another: the one whose use is longest ago of those that no waiting job
  /// goes on from, and that is not `kept`; nullptr if there is none.
  const Held* least_needed(const Held* kept, const std::deque<Job>& waiting) const;
  void remove(const Held* held);

  std::size_t size() const { return all_.size(); }
  const std::list<Held>& all() const { return all_; }

 private:
  std::list<Held> all_;
  std::uint64_t n_uses_ = 0;
};

}  // namespace ebb::cli
