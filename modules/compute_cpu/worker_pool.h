#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "kernels/cpu/phase.h"

namespace ebb::cpu {

/// Runs the phases of a plan, one after another, each on all workers.
///
/// The caller of run() is worker 0 and leads: it alone decides which phase is open. An open phase
/// is one 64-bit ticket (phase, number of tasks, next task); a claim is one fetch_add, and what it
/// returns says all three, so a worker that comes late can never run a task of a phase that has
/// closed. A phase closes when all its tasks are done, whoever did them: a worker that the system
/// has put to sleep delays nobody. A phase of one task is run by the leader without opening it.
/// Idle workers spin for a while, then sleep on a futex.
class WorkerPool {
 public:
  /// `n_workers` >= 1 counts the caller of run(). With `pin`, worker i > 0 stays on the i-th CPU
  /// that the process may use; the caller's own placement is left alone. Throws std::system_error
  /// if the system refuses a thread.
  WorkerPool(std::int32_t n_workers, bool pin);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Makes every worker's scratch at least `bytes` long. Not while run() is under way.
  void reserve_scratch(std::size_t bytes);
  /// Thread: [decode]; one caller at a time. With `seconds` (one per phase), adds each phase's
  /// time.
  void run(std::span<const std::unique_ptr<Phase>> phases, std::span<double> seconds);

  std::int32_t n_workers() const noexcept { return n_workers_; }

 private:
  struct alignas(64) Scratch {
    std::byte* data = nullptr;
  };

  void work(std::int32_t worker);
  void stop();
  std::int64_t run_open_tasks(std::int32_t worker);

  const std::int32_t n_workers_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_memory_;
  std::vector<Scratch> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::span<const std::unique_ptr<Phase>> phases_;  // written by the leader before a ticket opens
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  std::int64_t n_tasks_ = 0;                       ///< of the open phase
  std::int64_t stride_ = 1;                        ///< tasks of one claim
  alignas(64) std::atomic<std::int64_t> done_{0};  ///< claims
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<std::int32_t> n_asleep_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace ebb::cpu
