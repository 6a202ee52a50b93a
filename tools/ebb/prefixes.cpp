#include "tools/ebb/prefixes.h"

#include <algorithm>
#include <functional>

namespace ebb::cli {
namespace {

using Tokens = std::span<const std::int32_t>;

std::int64_t common_prefix(Tokens a, Tokens b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

bool goes_on_from(Tokens prompt, const Prefixes::Held& held) {
  return prompt.size() > held.tokens.size() &&
         std::equal(held.tokens.begin(), held.tokens.end(), prompt.begin());
}

}  // namespace

std::int64_t prefix_to_hold(Tokens prompt, const std::deque<Job>& waiting, std::int64_t held) {
  std::vector<std::int64_t> shared;
  for (const Job& job : waiting) {
    const std::int64_t n = common_prefix(prompt, job.prompt);
    shared.push_back(std::min({n, std::ssize(prompt) - 1, std::ssize(job.prompt) - 1}));
  }
  std::sort(shared.begin(), shared.end(), std::greater<>());
  std::int64_t best = 0;
  double most_spared = 0;
  for (std::size_t i = 0; i < shared.size() && shared[i] - held >= kLeastPrefix; ++i) {
    const auto others = static_cast<double>(i + 1);
    const double spared = static_cast<double>(shared[i] - held) * others / (others + 1);
    if (spared <= most_spared) continue;
    most_spared = spared;
    best = shared[i];
  }
  return best;
}

const Prefixes::Held* Prefixes::use(Tokens prompt) {
  Held* longest = nullptr;
  for (Held& held : all_) {
    if (goes_on_from(prompt, held) &&
        (longest == nullptr || held.tokens.size() > longest->tokens.size())) {
      longest = &held;
    }
  }
  if (longest != nullptr) longest->used = ++n_uses_;
  return longest;
}

const Prefixes::Held* Prefixes::add(std::int32_t sequence, Tokens tokens) {
  return &all_.emplace_back(Held{sequence, {tokens.begin(), tokens.end()}, ++n_uses_});
}

std::deque<Job>::iterator Prefixes::choose(std::deque<Job>& waiting) const {
  const auto found = std::find_if(waiting.begin(), waiting.end(), [this](const Job& job) {
    return std::any_of(all_.begin(), all_.end(),
                       [&job](const Held& held) { return goes_on_from(job.prompt, held); });
  });
  return found == waiting.end() ? waiting.begin() : found;
}

const Prefixes::Held* Prefixes::least_needed(const Held* kept,
                                             const std::deque<Job>& waiting) const {
  const Held* least = nullptr;
  for (const Held& held : all_) {
    const bool is_needed = std::any_of(waiting.begin(), waiting.end(), [&held](const Job& job) {
      return goes_on_from(job.prompt, held);
    });
    if (&held == kept || is_needed) continue;
    if (least == nullptr || held.used < least->used) least = &held;
  }
  return least;
}

void Prefixes::remove(const Held* held) {
  all_.remove_if([held](const Held& one) { return &one == held; });
}

}  // namespace ebb::cli
