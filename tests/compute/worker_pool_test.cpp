#define BOOST_TEST_MODULE worker_pool
#define BOOST_TEST_DYN_LINK
#include "modules/compute_cpu/worker_pool.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <system_error>

using ebb::cpu::Phase;
using ebb::cpu::PhaseList;
using ebb::cpu::WorkerPool;

namespace {

/// Counts how often each task runs, and the tasks that run before all of the phases in front of
/// theirs are done or after a later phase has begun.
class CountingPhase final : public Phase {
 public:
  struct Ledger {
    std::atomic<std::int64_t> n_done{0};  ///< tasks of this round
    std::atomic<int> n_misplaced{0};
  };

  /// `n_before` tasks stand in the phases in front.
  CountingPhase(Ledger& ledger, std::int64_t n_before, std::int64_t n_tasks)
      : ledger_(ledger), n_before_(n_before), counts_(static_cast<std::size_t>(n_tasks)) {}

  std::int64_t n_tasks() const noexcept override {
    return static_cast<std::int64_t>(counts_.size());
  }
  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    std::memcpy(scratch, &task, sizeof(task));
    const std::int64_t n_done = ledger_.n_done;
    if (n_done < n_before_ || n_done >= n_before_ + n_tasks()) ++ledger_.n_misplaced;
    ++counts_[static_cast<std::size_t>(task)];
    // Scratch is the worker's own.
    if (std::memcmp(scratch, &task, sizeof(task)) != 0) ++ledger_.n_misplaced;
    ++ledger_.n_done;
  }
  std::size_t scratch_bytes() const noexcept override { return sizeof(std::int64_t); }
  const char* name() const noexcept override { return "counting"; }

  bool each_ran(int times) const {
    return std::all_of(counts_.begin(), counts_.end(),
                       [times](const std::atomic<int>& count) { return count == times; });
  }

 private:
  Ledger& ledger_;
  const std::int64_t n_before_;
  mutable std::vector<std::atomic<int>> counts_;
};

using Ledger = CountingPhase::Ledger;

}  // namespace

BOOST_AUTO_TEST_CASE(every_task_runs_once_and_in_its_phase) {
  for (const std::int32_t n_workers : {1, 2, 3, 8}) {
    WorkerPool pool(n_workers, n_workers % 2 == 0);
    Ledger ledger;
    PhaseList phases;
    std::vector<const CountingPhase*> counting;
    std::int64_t n_tasks = 0;
    for (int i = 0; i < 60; ++i) {
      const std::int64_t sizes[] = {0, 1, 2, 7, 64, 1};
      auto phase = std::make_unique<CountingPhase>(ledger, n_tasks, sizes[i % 6]);
      n_tasks += sizes[i % 6];
      counting.push_back(phase.get());
      phases.push_back(std::move(phase));
    }
    pool.reserve_scratch(64);
    for (int round = 1; round <= 50; ++round) {
      ledger.n_done = 0;
      pool.run(phases, {});
      for (const CountingPhase* phase : counting) BOOST_REQUIRE(phase->each_ran(round));
    }
    BOOST_TEST(ledger.n_misplaced == 0);
    BOOST_TEST(pool.n_workers() == n_workers);
  }
}

BOOST_AUTO_TEST_CASE(more_tasks_than_a_ticket_counts_run_once_each) {
  WorkerPool pool(2, false);
  Ledger ledger;
  PhaseList phases;
  constexpr std::int64_t kTasks = (std::int64_t{1} << 22) + 12345;
  phases.push_back(std::make_unique<CountingPhase>(ledger, 0, kTasks));
  pool.reserve_scratch(phases[0]->scratch_bytes());
  pool.run(phases, {});
  BOOST_TEST(static_cast<const CountingPhase&>(*phases[0]).each_ran(1));
  BOOST_TEST(ledger.n_misplaced == 0);
}

BOOST_AUTO_TEST_CASE(workers_that_fell_asleep_are_woken_and_seconds_are_added_up) {
  WorkerPool pool(4, false);
  Ledger ledger;
  PhaseList phases;
  phases.push_back(std::make_unique<CountingPhase>(ledger, 0, 100));
  const auto& phase = static_cast<const CountingPhase&>(*phases.front());
  pool.reserve_scratch(64);
  std::vector<double> seconds(1, 0.0);
  for (int round = 1; round <= 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double before = seconds[0];
    ledger.n_done = 0;
    pool.run(phases, seconds);
    BOOST_TEST(phase.each_ran(round));
    BOOST_TEST(seconds[0] > before);
  }
}

// The sanitizers' own mappings exceed any limit on the address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
BOOST_AUTO_TEST_CASE(a_thread_that_the_system_refuses_is_an_exception_and_nothing_is_left_behind) {
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    // A gibibyte of addresses: room for some stacks of 8 MiB, not for a thousand.
    const rlimit limit{1U << 30, 1U << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    try {
      WorkerPool pool(1024, false);
      _exit(2);
    } catch (const std::system_error&) {
      _exit(0);
    }
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == 0);
}
#endif
