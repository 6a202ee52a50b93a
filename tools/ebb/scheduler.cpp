#include "tools/ebb/scheduler.h"

#include <chrono>

#include "tools/ebb/prefill.h"
#include "tools/ebb/swap_counters.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

class JobLoop {
 public:
  JobLoop(Engine& engine, const Hooks& hooks)
      : engine_(engine), hooks_(hooks), start_(Clock::now()) {}

  Result<bool> run() {
    const auto limit = static_cast<std::size_t>(engine_.session().max_decode);
    for (bool has_more = true; has_more || !open_.empty();) {
      while (has_more && open_.size() < limit) {
        if (stopped()) return false;
        EBB_ASSIGN(std::optional<Job> job, hooks_.next());
        has_more = job.has_value();
        if (!has_more) break;
        EBB_ASSIGN(const bool is_fed, admit(*std::move(job)));
        if (!is_fed) return false;
      }
      if (open_.empty()) continue;
      if (stopped()) return false;
      EBB_TRY(step());
    }
    return true;
  }

 private:
  struct Open {
    Job job;
    Generation generation;
    std::int32_t sequence;
    Timings timings;
    Clock::time_point first_token;
    SwapCounters swap_before;
    MemoryCounters memory_before;
  };

  MemoryCounters memory_counters() const {
    return engine_.memory() ? engine_.memory()->counters() : MemoryCounters{};
  }

  bool stopped() const { return hooks_.stopped && hooks_.stopped(); }

  // Prefills a job and takes its first token. False if it was stopped on the way.
  Result<bool> admit(Job job) {
    EBB_ASSIGN(const std::int32_t sequence, engine_.open_sequence());
    EBB_ASSIGN(const std::span<const SwapCounters> swap, engine_.swap_counters());
    const SwapCounters swap_before = total(swap);
    const MemoryCounters memory_before = memory_counters();
    const auto begin = Clock::now();
    EBB_ASSIGN(const bool is_fed,
               prefill(engine_, sequence, job.prompt, [this, &job](std::int64_t fed) {
                 if (hooks_.prefilled) hooks_.prefilled(job, fed);
                 return !stopped();
               }));
    if (!is_fed) return false;
    Generation generation(job.settings, engine_.tokenizer(), job.prompt);
    const Status drawn = generation.sample(engine_, 0);
    Open open{std::move(job), std::move(generation), sequence,     {},
              Clock::now(),   swap_before,           memory_before};
    if (!drawn) {
      EBB_TRY(drop(open, drawn.error()));
      return true;
    }
    open.timings.queue = seconds(start_, begin);
    open.timings.prefill = seconds(begin, open.first_token);
    EBB_ASSIGN(const bool is_over, settle(open));
    if (!is_over) open_.push_back(std::move(open));
    return true;
  }

  // One token for each open sequence.
  Status step() {
    rows_.clear();
    for (const Open& open : open_) {
      rows_.push_back({open.sequence, open.generation.last_token(), true});
    }
    EBB_TRY(engine_.step(rows_));
    std::size_t kept = 0;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const Status drawn = open_[i].generation.sample(engine_, static_cast<std::int32_t>(i));
      bool is_over = true;
      if (drawn) {
        EBB_ASSIGN(is_over, settle(open_[i]));
      } else {
        EBB_TRY(drop(open_[i], drawn.error()));
      }
      if (is_over) continue;
      if (kept != i) open_[kept] = std::move(open_[i]);
      ++kept;
    }
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(kept), open_.end());
    return ok_status();
  }

  // Ends one sequence that has nothing to go on with; a fault of the device ends the run.
  Status drop(const Open& open, const Error& why) {
    if (why.code != Errc::internal || !hooks_.failed) return why;
    engine_.close_sequence(open.sequence);
    return hooks_.failed(open.job, why);
  }

  // After a token: hands it on, and closes the sequence if it was the last.
  Result<bool> settle(Open& open) {
    if (!open.generation.is_finished() &&
        engine_.length(open.sequence) >= engine_.session().max_context) {
      open.generation.end_by_context();
    }
    if (hooks_.token) hooks_.token(open.job, open.generation);
    if (!open.generation.is_finished()) return false;
    open.timings.decode = seconds(open.first_token, Clock::now());
    engine_.close_sequence(open.sequence);
    EBB_ASSIGN(const std::span<const SwapCounters> swap, engine_.swap_counters());
    if (!swap.empty()) open.timings.swap = total(swap, open.swap_before);
    if (engine_.memory()) {
      open.timings.memory = difference(memory_counters(), open.memory_before);
    }
    EBB_TRY(hooks_.finished(open.job, open.generation, open.timings));
    return true;
  }

  Engine& engine_;
  const Hooks& hooks_;
  Clock::time_point start_;
  std::vector<Open> open_;
  std::vector<StepRow> rows_;
};

}  // namespace

Result<bool> run_jobs(Engine& engine, const Hooks& hooks) { return JobLoop(engine, hooks).run(); }

}  // namespace ebb::cli
