// A round walks up the frontiers. At each, all sequences are brought to the same length, and then
// the largest batch decodes first: a smaller one takes the first sequences of the one before it, so
// that those of a batch always have one length.

#include "tools/ebb/bench_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "tools/ebb/prefill.h"
#include "tools/ebb/sampler.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

std::int32_t BenchRun::token_at(std::size_t i, std::int64_t position) const {
  const double draw = Sampler::uniform(seed_ + i, static_cast<std::uint64_t>(position));
  return static_cast<std::int32_t>(draw * engine_.model().vocab_size);
}

Result<bool> BenchRun::run(const Hooks& hooks) {
  for (round_ = 0; round_ < plan_.n_rounds; ++round_) {
    EBB_ASSIGN(const bool through, round(hooks));
    for (const std::int32_t sequence : sequences_) engine_.close_sequence(sequence);
    sequences_.clear();
    if (!through) return false;
  }
  return true;
}

Result<bool> BenchRun::round(const Hooks& hooks) {
  const auto n = static_cast<std::size_t>(plan_.batches.front());
  for (const std::int64_t frontier : plan_.frontiers) {
    // Only an empty sequence can be filled.
    for (; plan_.synthetic && !sequences_.empty(); sequences_.pop_back()) {
      engine_.close_sequence(sequences_.back());
    }
    while (sequences_.size() < n) {
      EBB_ASSIGN(const std::int32_t sequence, engine_.open_sequence());
      sequences_.push_back(sequence);
    }
    next_.resize(n);
    EBB_ASSIGN(const bool filled, fill(frontier, hooks));
    if (!filled) return false;
    for (const std::int32_t batch : plan_.batches) {
      EBB_ASSIGN(const bool decoded, decode(frontier, batch, hooks));
      if (!decoded) return false;
    }
  }
  return true;
}

Result<bool> BenchRun::fill(std::int64_t frontier, const Hooks& hooks) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (plan_.synthetic) {
      // The last step's worth is fed to the first sequence, to measure prefill at this length.
      const std::int64_t fed = i == 0 ? std::min<std::int64_t>(engine_.max_rows(), frontier) : 0;
      EBB_TRY(engine_.fill(sequences_[i], frontier - fed, seed_ + i));
      next_[i] = token_at(i, frontier);
      if (fed == 0) continue;
    }
    EBB_ASSIGN(const bool fed, feed(i, frontier, i == 0, hooks));
    if (!fed) return false;
  }
  return true;
}

Result<bool> BenchRun::feed(std::size_t i, std::int64_t frontier, bool measured,
                            const Hooks& hooks) {
  BenchPoint point{true, frontier, engine_.length(sequences_[i]), frontier, 1, {}};
  std::vector<std::int32_t> tokens;
  for (std::int64_t at = point.from; at < frontier; ++at) tokens.push_back(token_at(i, at));
  const Clock::time_point begin = Clock::now();
  EBB_ASSIGN(const bool fed, prefill(engine_, sequences_[i], tokens,
                                     [&](std::int64_t) { return !hooks.stopped(); }));
  if (!fed) return false;
  EBB_ASSIGN(next_[i], engine_.argmax(0));  // waits for the device
  point.seconds.push_back(seconds_since(begin));
  if (measured) add(point, hooks);
  return true;
}

Result<bool> BenchRun::decode(std::int64_t frontier, std::int32_t batch, const Hooks& hooks) {
  const std::int64_t from = engine_.length(sequences_[0]) + 1;
  BenchPoint point{false, frontier, from, from + plan_.n_steps, batch, {}};
  std::vector<StepRow> rows(static_cast<std::size_t>(batch));
  for (std::int64_t step = 0; step <= plan_.n_steps; ++step) {
    if (hooks.stopped()) return false;
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = {sequences_[i], next_[i], true};
    const Clock::time_point begin = Clock::now();
    EBB_TRY(engine_.step(rows));
    for (std::int32_t i = 0; i < batch; ++i) {
      EBB_ASSIGN(next_[static_cast<std::size_t>(i)], engine_.argmax(i));
    }
    // The first step pays for what a prefill left in caches and queues.
    if (step > 0) point.seconds.push_back(seconds_since(begin));
  }
  add(point, hooks);
  return true;
}

void BenchRun::add(const BenchPoint& measured, const Hooks& hooks) {
  const double sum = std::accumulate(measured.seconds.begin(), measured.seconds.end(), 0.0);
  const auto n_tokens = static_cast<double>((measured.to - measured.from) * measured.batch);
  hooks.progress(fmt::format("round {} of {}, {} from {} to {}, {} sequence{}: {:.2f} tokens/s",
                             round_ + 1, plan_.n_rounds, measured.is_prefill ? "prefill" : "decode",
                             measured.from, measured.to, measured.batch,
                             measured.batch == 1 ? "" : "s", n_tokens / sum));
  for (BenchPoint& point : points_) {
    if (point.is_prefill != measured.is_prefill || point.frontier != measured.frontier ||
        point.batch != measured.batch) {
      continue;
    }
    point.seconds.insert(point.seconds.end(), measured.seconds.begin(), measured.seconds.end());
    return;
  }
  points_.push_back(measured);
}

std::vector<BenchPoint> BenchRun::points() const {
  std::vector<BenchPoint> sorted = points_;
  std::sort(sorted.begin(), sorted.end(), [](const BenchPoint& a, const BenchPoint& b) {
    if (a.frontier != b.frontier) return a.frontier < b.frontier;
    if (a.is_prefill != b.is_prefill) return a.is_prefill;
    return a.batch < b.batch;
  });
  return sorted;
}

}  // namespace ebb::cli
