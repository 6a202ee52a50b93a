#include "tools/ebb/scheduler.h"

#include <chrono>
#include <deque>

#include "tools/ebb/prefill.h"
#include "tools/ebb/prefixes.h"
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
      : engine_(engine),
        hooks_(hooks),
        n_prefixes_(
            static_cast<std::size_t>(engine.session().max_open - engine.session().max_decode)),
        start_(Clock::now()) {}

  Result<bool> run() {
    const auto limit = static_cast<std::size_t>(engine_.session().max_decode);
    for (;;) {
      while (open_.size() < limit) {
        if (stopped()) return false;
        EBB_ASSIGN(std::optional<Job> job, take());
        if (!job) break;
        EBB_ASSIGN(const bool is_fed, admit(*std::move(job)));
        if (!is_fed) return false;
      }
      if (open_.empty()) break;
      if (stopped()) return false;
      EBB_TRY(step());
    }
    for (const Prefixes::Held& held : prefixes_.all()) engine_.close_sequence(held.sequence);
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

  // The next job; nothing when there is none left.
  Result<std::optional<Job>> take() {
    const std::size_t most = n_prefixes_ > 0 ? kMostAhead : 1;
    while (has_more_ && waiting_.size() < most && n_waiting_tokens_ < kMostAheadTokens &&
           (waiting_.empty() || !stopped())) {
      EBB_ASSIGN(std::optional<Job> job, hooks_.next());
      has_more_ = job.has_value();
      if (!has_more_) break;
      n_waiting_tokens_ += job->prompt.size();
      waiting_.push_back(*std::move(job));
    }
    if (waiting_.empty()) return std::optional<Job>();
    const auto next = prefixes_.choose(waiting_);
    std::optional<Job> job(std::move(*next));
    waiting_.erase(next);
    n_waiting_tokens_ -= job->prompt.size();
    return job;
  }

  // Feeds a job's tokens [from, end) to a sequence that holds those before. False if stopped.
  Result<bool> feed(const Job& job, std::int32_t sequence, std::int64_t from, std::int64_t end) {
    const auto tokens =
        std::span(job.prompt)
            .subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(end - from));
    return prefill(
        engine_, sequence, tokens,
        [this, &job, from](std::int64_t fed) {
          if (hooks_.prefilled) hooks_.prefilled(job, from + fed);
          return !stopped();
        },
        end == std::ssize(job.prompt));
  }

  // An empty sequence, or one with what is held.
  Result<std::int32_t> open_with(const Prefixes::Held* held) {
    EBB_ASSIGN(const std::int32_t sequence, engine_.open_sequence());
    if (held != nullptr) EBB_TRY(engine_.copy(held->sequence, sequence));
    return sequence;
  }

  // Feeds what a job shares with those that wait to a sequence of its own, if that is worth it and
  // there is room; `held` is then that. False if stopped.
  Result<bool> hold(const Job& job, const Prefixes::Held*& held) {
    const std::int64_t from = held != nullptr ? std::ssize(held->tokens) : 0;
    const std::int64_t end = n_prefixes_ > 0 ? prefix_to_hold(job.prompt, waiting_, from) : 0;
    if (end == 0) return true;
    if (prefixes_.size() == n_prefixes_) {
      const Prefixes::Held* const least = prefixes_.least_needed(held, waiting_);
      if (least == nullptr) return true;
      engine_.close_sequence(least->sequence);
      prefixes_.remove(least);
    }
    EBB_ASSIGN(const std::int32_t sequence, open_with(held));
    EBB_ASSIGN(const bool is_fed, feed(job, sequence, from, end));
    if (is_fed) {
      held = prefixes_.add(sequence, std::span(job.prompt).first(static_cast<std::size_t>(end)));
    }
    return is_fed;
  }

  // Prefills a job and takes its first token. False if it was stopped on the way.
  Result<bool> admit(Job job) {
    EBB_ASSIGN(const std::span<const SwapCounters> swap, engine_.swap_counters());
    const SwapCounters swap_before = total(swap);
    const MemoryCounters memory_before = memory_counters();
    const auto begin = Clock::now();
    const Prefixes::Held* held = prefixes_.use(job.prompt);
    const std::int64_t n_reused = held != nullptr ? std::ssize(held->tokens) : 0;
    EBB_ASSIGN(const bool is_held, hold(job, held));
    if (!is_held) return false;
    EBB_ASSIGN(const std::int32_t sequence, open_with(held));
    EBB_ASSIGN(const bool is_fed,
               feed(job, sequence, engine_.length(sequence), std::ssize(job.prompt)));
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
    open.timings.n_reused = n_reused;
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
  const std::size_t n_prefixes_;  // that may be held
  Clock::time_point start_;
  bool has_more_ = true;  // jobs to ask for
  std::deque<Job> waiting_;
  std::size_t n_waiting_tokens_ = 0;
  Prefixes prefixes_;
  std::vector<Open> open_;
  std::vector<StepRow> rows_;
};

}  // namespace

Result<bool> run_jobs(Engine& engine, const Hooks& hooks) { return JobLoop(engine, hooks).run(); }

}  // namespace ebb::cli
