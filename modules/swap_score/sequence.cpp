#include "modules/swap_score/sequence.h"

#include <algorithm>
#include <cmath>

// The value of a chunk at step t is
//   v(t) = recency * h(t - last use) + frequency * average(t) + score * s * h(t - scoring)
// with h(n) = 2^(-n / half_life); the average of "was selected" decays by h as well, and s is the
// chunk's score as a logistic of its distance from the mean in standard deviations, so that logits
// and probabilities weigh the same. Every term shrinks by the same factor per step, so the order of
// two chunks that nothing happens to never changes: log2 v(t) + t / half_life is constant, and is
// the key under which a heap keeps it. A key is new after a use and after a scoring only; equal
// ones go by the order of the last use. Until the first scoring s is 0.

namespace ebb::score {
namespace {

constexpr double kLeastValue = 1e-30;
// Entries that must not go and that one call passes over before it gives up.
constexpr int kMaxProbes = 256;

}  // namespace

Settings Settings::read(Options& options) {
  Settings s;
  s.score = options.get_float("score", s.score, 0, 1e6);
  s.frequency = options.get_float("frequency", s.frequency, 0, 1e6);
  s.recency = options.get_float("recency", s.recency, 0, 1e6);
  s.half_life = options.get_float("half_life", s.half_life, 1, 1e6);
  return s;
}

void Sequence::resize(const SwapShape& shape, const Settings& settings) {
  settings_ = settings;
  per_step_ = std::exp2(-1 / settings.half_life);
  const std::int64_t n_all = shape.n_layers * shape.n_chunks;
  // As many chunks without a slot are remembered as there are slots.
  const auto n_entries =
      static_cast<std::int32_t>(std::min(n_all, 2 * shape.n_slots + shape.top_k));
  table_.resize(shape.n_layers, shape.n_chunks, n_entries);
  entries_.resize(static_cast<std::size_t>(n_entries));
  heap_.resize(n_entries);
  rest_.resize(n_entries, 1);
  scores_.resize(static_cast<std::size_t>(shape.n_chunks));
  aside_.reserve(static_cast<std::size_t>(n_entries));
  ranked_.reserve(static_cast<std::size_t>(shape.n_chunks));
  clear();
}

void Sequence::clear() {
  heap_.clear();
  rest_.clear();
  table_.clear();
  std::fill(scores_.begin(), scores_.end(), 0.f);
  step_ = scored_at_ = 0;
  last_layer_ = kNone;
  order_ = 0;
}

// Of the chunks without a slot, the one that lost it first makes room.
std::int32_t Sequence::entry_for(ChunkId chunk) {
  std::int32_t i = table_.find(chunk);
  if (i != kNone) return i;
  if (table_.full()) {
    const std::int32_t oldest = rest_.back(0);
    if (oldest == kNone) return kNone;
    rest_.remove(oldest);
    table_.give_back(oldest);
  }
  i = table_.take(chunk);
  entry(i) = {0, step_, 0};
  rest_.push_front(0, i);
  return i;
}

double Sequence::decay(std::int64_t steps) const {
  return std::exp2(-static_cast<double>(steps) / settings_.half_life);
}

double Sequence::predicted(std::int32_t chunk) const {
  return settings_.score * static_cast<double>(scores_[static_cast<std::size_t>(chunk)]) *
         decay(step_ - scored_at_);
}

ValueHeap::Value Sequence::value(std::int32_t i) const {
  const Entry& state = entry(i);
  const double now =
      (settings_.recency + settings_.frequency * state.average) * decay(step_ - state.used) +
      predicted(table_.chunk(i).chunk);
  const double key =
      std::log2(std::max(now, kLeastValue)) + static_cast<double>(step_) / settings_.half_life;
  return {key, state.order};
}

void Sequence::use(std::int32_t i, bool is_selected) {
  Entry& state = entry(i);
  state.average *= decay(step_ - state.used);
  if (is_selected) state.average += 1 - per_step_;
  state.used = step_;
  state.order = ++order_;
  if (heap_.holds(i)) heap_.set(i, value(i));
}

void Sequence::selected(std::int32_t layer, std::span<const std::int32_t> chunks, const SlotView&) {
  if (layer <= last_layer_) ++step_;  // layers come in order, so this is the next step
  last_layer_ = layer;
  for (const std::int32_t chunk : chunks) {
    const std::int32_t i = entry_for({layer, chunk});
    if (i != kNone) use(i, true);
  }
}

void Sequence::inserted(ChunkId chunk) {
  const std::int32_t i = entry_for(chunk);
  if (i == kNone || heap_.holds(i)) return;
  use(i, false);
  rest_.remove(i);
  heap_.set(i, value(i));
}

void Sequence::evicted(ChunkId chunk) {
  const std::int32_t i = table_.find(chunk);
  if (i == kNone || !heap_.holds(i)) return;
  heap_.remove(i);
  rest_.push_front(0, i);
}

void Sequence::scored(std::span<const float> scores) {
  const std::size_t n = std::min(scores.size(), scores_.size());
  double sum = 0, squares = 0, n_finite = 0;
  for (const float score : scores.first(n)) {
    if (!std::isfinite(score)) continue;
    sum += static_cast<double>(score);
    squares += static_cast<double>(score) * static_cast<double>(score);
    ++n_finite;
  }
  if (n_finite < 1) return;
  const double mean = sum / n_finite;
  const double deviation = std::sqrt(std::max(squares / n_finite - mean * mean, 1e-30));
  for (std::size_t c = 0; c < scores_.size(); ++c) {
    const double score = c < n ? static_cast<double>(scores[c]) : mean;
    // NaN foresees nothing.
    scores_[c] = std::isnan(score)
                     ? 0.f
                     : static_cast<float>(1 / (1 + std::exp(-(score - mean) / deviation)));
  }
  scored_at_ = step_;
  for (const std::int32_t i : heap_.entries()) heap_.set_later(i, value(i));
  heap_.restore_all();
}

std::size_t Sequence::admit(std::int32_t layer, std::span<const std::int32_t> missed,
                            std::span<std::int32_t> out) {
  ranked_.clear();
  for (const std::int32_t chunk : missed) {
    const std::int32_t i = table_.find({layer, chunk});
    const double average = i == kNone ? 0 : entry(i).average * decay(step_ - entry(i).used);
    ranked_.push_back({-(settings_.frequency * average + predicted(chunk)), chunk});
  }
  const std::size_t n = std::min(missed.size(), out.size());
  std::partial_sort(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(n),
                    ranked_.end());
  for (std::size_t i = 0; i < n; ++i) out[i] = ranked_[i].second;
  return n;
}

std::size_t Sequence::victims(std::int32_t, std::span<ChunkId> out, const SlotView& slots) {
  std::size_t n = 0;
  aside_.clear();
  for (int n_passed = 0; n < out.size() && n_passed < kMaxProbes && !heap_.empty();) {
    const std::int32_t i = heap_.top();
    const ChunkId chunk = table_.chunk(i);
    if (slots.evictable(chunk)) {
      out[n++] = chunk;
    } else {
      ++n_passed;
    }
    heap_.remove(i);
    aside_.push_back(i);
  }
  for (const std::int32_t i : aside_) heap_.set(i, heap_.value(i));
  return n;
}

}  // namespace ebb::score
