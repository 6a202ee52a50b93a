#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/engine.h"
#include "tools/ebb/bench_plan.h"

namespace ebb::cli {

/// One measured quantity: prefill of the tokens from..to of one sequence, or decode steps of
/// `batch` sequences that each grow from `from` to `to` tokens.
struct BenchPoint {
  bool is_prefill = false;
  std::int64_t frontier = 0;
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int32_t batch = 1;
  std::vector<double> seconds;  ///< of each prefill, or of each decode step, over all rounds
};

/// Runs a plan. Tokens fed are random ids, tokens decoded those of the highest logit, read back
/// after every step as a caller would.
class BenchRun {
 public:
  struct Hooks {
    std::function<bool()> stopped;                     ///< asked after every step
    std::function<void(const std::string&)> progress;  ///< a line for people
  };

  BenchRun(Engine& engine, const BenchPlan& plan, std::uint64_t seed)
      : engine_(engine), plan_(plan), seed_(seed) {}

  /// Returns false if it was stopped. What was measured until then, or until an error, is in
  /// points().
  Result<bool> run(const Hooks& hooks);

  /// In the order of frontiers; prefill, then decode by ascending batch.
  std::vector<BenchPoint> points() const;

 private:
  Result<bool> round(const Hooks& hooks);
  Result<bool> fill(std::int64_t frontier, const Hooks& hooks);
  /// Feeds sequence i to `frontier`, and counts the time if `measured`.
  Result<bool> feed(std::size_t i, std::int64_t frontier, bool measured, const Hooks& hooks);
  Result<bool> decode(std::int64_t frontier, std::int32_t batch, const Hooks& hooks);
  void add(const BenchPoint& measured, const Hooks& hooks);
  std::int32_t token_at(std::size_t i, std::int64_t position) const;

  Engine& engine_;
  const BenchPlan& plan_;
  const std::uint64_t seed_;
  std::int32_t round_ = 0;
  std::vector<std::int32_t> sequences_;
  std::vector<std::int32_t> next_;  // token to feed, by sequence
  std::vector<BenchPoint> points_;
};

}  // namespace ebb::cli
