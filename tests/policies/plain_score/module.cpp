// What swap_score says it does (docs/swapping.md, the formula in its sequence.cpp), done in the
// plainest way: maps, values computed when they are asked for, and a sort for every question. It
// shares no code with the module beyond the interface of policies, so that numbers on which the two
// agree are those of the formula.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "modules/swap_common/slot_staging.h"

namespace ebb {
namespace {

class PlainScore final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<PlainScore>> create(Host&, Options& options) {
    auto policy = std::make_unique<PlainScore>();
    policy->score_ = options.get_float("score", 0.5, 0, 1e6);
    policy->frequency_ = options.get_float("frequency", 0.5, 0, 1e6);
    policy->recency_ = options.get_float("recency", 1, 0, 1e6);
    policy->half_life_ = options.get_float("half_life", 32, 1, 1e6);
    EBB_TRY(options.finish());
    return policy;
  }

  Status open(const SwapShape& shape) noexcept override {
    shape_ = shape;
    sequences_.assign(static_cast<std::size_t>(shape.max_open), {});
    return ok_status();
  }
  void forget(std::int32_t sequence) noexcept override { at(sequence) = {}; }

  void selected(CacheId cache, std::span<const std::int32_t> chunks,
                const SlotView&) noexcept override {
    Sequence& sequence = at(cache.sequence);
    if (cache.layer <= sequence.layer) ++sequence.step;
    sequence.layer = cache.layer;
    for (const std::int32_t chunk : chunks) {
      Known* const known = meet(sequence, {cache.layer, chunk});
      if (known == nullptr) continue;
      const double share = 1 - fading(1);  // of this step in the average
      known->average = known->average * fading(sequence.step - known->used) + share;
      known->used = sequence.step;
      known->use = ++sequence.n_uses;
    }
  }
  void inserted(CacheId cache, std::int32_t chunk, SlotReason) noexcept override {
    Sequence& sequence = at(cache.sequence);
    Known* const known = meet(sequence, {cache.layer, chunk});
    if (known == nullptr || known->has_slot) return;
    known->average *= fading(sequence.step - known->used);
    known->used = sequence.step;
    known->use = ++sequence.n_uses;
    known->has_slot = true;
  }
  void evicted(CacheId cache, std::int32_t chunk) noexcept override {
    Sequence& sequence = at(cache.sequence);
    const auto found = sequence.known.find({cache.layer, chunk});
    if (found == sequence.known.end()) return;
    found->second.has_slot = false;
    found->second.since = ++sequence.n_leavings;
  }
  void scored(std::int32_t number, std::span<const float> scores) noexcept override {
    Sequence& sequence = at(number);
    std::vector<double> finite;
    for (const float score : scores) {
      if (std::isfinite(score)) finite.push_back(static_cast<double>(score));
    }
    if (finite.empty()) return;
    double mean = 0, squares = 0;
    for (const double score : finite) mean += score;
    mean /= static_cast<double>(finite.size());
    for (const double score : finite) squares += score * score;
    const double variance = squares / static_cast<double>(finite.size()) - mean * mean;
    sequence.scores.assign(static_cast<std::size_t>(shape_.n_chunks), 0.5f);
    for (std::size_t c = 0; c < std::min(scores.size(), sequence.scores.size()); ++c) {
      const double far =
          (static_cast<double>(scores[c]) - mean) / std::sqrt(std::max(variance, 1e-30));
      sequence.scores[c] = std::isnan(far) ? 0.f : static_cast<float>(1 / (1 + std::exp(-far)));
    }
    sequence.scored_at = sequence.step;
  }

  std::size_t admit(CacheId cache, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    const Sequence& sequence = at(cache.sequence);
    std::vector<std::int32_t> chunks(missed.begin(), missed.end());
    const auto worth = [&](std::int32_t chunk) {
      const auto found = sequence.known.find({cache.layer, chunk});
      const double average =
          found == sequence.known.end()
              ? 0
              : found->second.average * fading(sequence.step - found->second.used);
      return frequency_ * average + foreseen(sequence, chunk);
    };
    std::stable_sort(chunks.begin(), chunks.end(), [&](std::int32_t a, std::int32_t b) {
      return std::make_pair(-worth(a), a) < std::make_pair(-worth(b), b);
    });
    chunks.resize(std::min(chunks.size(), out.size()));
    std::copy(chunks.begin(), chunks.end(), out.begin());
    return chunks.size();
  }

  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    const Sequence& sequence = at(cache.sequence);
    std::vector<std::tuple<double, std::uint64_t, std::int32_t, std::int32_t>> ranking;
    for (const auto& [chunk, known] : sequence.known) {
      if (!known.has_slot) continue;
      const double value =
          (recency_ + frequency_ * known.average) * fading(sequence.step - known.used) +
          foreseen(sequence, chunk.second);
      ranking.emplace_back(value, known.use, chunk.first, chunk.second);
    }
    std::sort(ranking.begin(), ranking.end());
    std::size_t n = 0;
    for (const auto& [value, use, layer, chunk] : ranking) {
      if (n == out.size()) break;
      if (slots.evictable({layer, chunk})) out[n++] = {layer, chunk};
    }
    return n;
  }

 private:
  using Chunk = std::pair<std::int32_t, std::int32_t>;  // layer, chunk
  struct Known {
    double average = 0;     // of "was selected", at step `used`
    std::int64_t used = 0;  // step of the last selection or insertion
    std::uint64_t use = 0;  // its number among all
    bool has_slot = false;
    std::uint64_t since = 0;  // without a slot: its number among those that lost or had none
  };
  struct Sequence {
    std::map<Chunk, Known> known;
    std::vector<float> scores;
    std::int64_t step = 0, scored_at = 0;
    std::int32_t layer = -1;
    std::uint64_t n_uses = 0, n_leavings = 0;
  };

  Sequence& at(std::int32_t sequence) { return sequences_[static_cast<std::size_t>(sequence)]; }
  double fading(std::int64_t steps) const {
    return std::pow(0.5, static_cast<double>(steps) / half_life_);
  }
  double foreseen(const Sequence& sequence, std::int32_t chunk) const {
    if (sequence.scores.empty()) return 0;
    return score_ * static_cast<double>(sequence.scores[static_cast<std::size_t>(chunk)]) *
           fading(sequence.step - sequence.scored_at);
  }

  // What is known of a chunk. Beside those with slots, as many are remembered as there are slots,
  // and one selection more; who has been without one for longest is forgotten.
  Known* meet(Sequence& sequence, Chunk chunk) const {
    if (const auto found = sequence.known.find(chunk); found != sequence.known.end()) {
      return &found->second;
    }
    const std::int64_t most =
        std::min(shape_.n_layers * shape_.n_chunks, 2 * shape_.n_slots + shape_.top_k);
    if (std::ssize(sequence.known) >= most) {
      auto oldest = sequence.known.end();
      for (auto i = sequence.known.begin(); i != sequence.known.end(); ++i) {
        if (i->second.has_slot) continue;
        if (oldest == sequence.known.end() || i->second.since < oldest->second.since) oldest = i;
      }
      if (oldest == sequence.known.end()) return nullptr;
      sequence.known.erase(oldest);
    }
    Known& known = sequence.known[chunk];
    known.used = sequence.step;
    known.since = ++sequence.n_leavings;
    return &known;
  }

  double score_ = 0, frequency_ = 0, recency_ = 0, half_life_ = 1;
  SwapShape shape_;
  std::vector<Sequence> sequences_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::PlainScore>, "swap_plain_score", EBB_VERSION);
