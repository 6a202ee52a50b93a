#include "modules/compute_cpu/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/api/result.h"

namespace ebb::cpu {
namespace {

// A ticket is [phase : 20][tasks : 22][next task : 22]. Workers look before they claim, so the next
// task overshoots the number of tasks by at most the number of workers.
constexpr int kTaskBits = 22;
constexpr std::uint64_t kTaskMask = (std::uint64_t{1} << kTaskBits) - 1;
constexpr std::int64_t kMaxTasks = static_cast<std::int64_t>(kTaskMask) - 1024;

std::uint64_t make_ticket(std::size_t phase, std::int64_t n_tasks) {
  return (static_cast<std::uint64_t>(phase) << (2 * kTaskBits)) |
         (static_cast<std::uint64_t>(n_tasks) << kTaskBits);
}
std::size_t phase_of(std::uint64_t ticket) { return ticket >> (2 * kTaskBits); }
std::uint64_t tasks_of(std::uint64_t ticket) { return (ticket >> kTaskBits) & kTaskMask; }
std::uint64_t next_of(std::uint64_t ticket) { return ticket & kTaskMask; }

// About 100 microseconds on current processors: longer than the gaps inside a step, shorter than
// what a person or another process would notice.
constexpr int kSpins = 4000;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

void pin_thread(std::thread& thread, std::int32_t ordinal) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::int32_t seen = 0;
  const std::int32_t n_allowed = CPU_COUNT(&allowed);
  if (n_allowed == 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (seen++ != ordinal % n_allowed) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(thread.native_handle(), sizeof(one), &one);
    return;
  }
}

}  // namespace

WorkerPool::WorkerPool(std::int32_t n_workers, bool pin)
    : n_workers_(n_workers),
      scratch_memory_(static_cast<std::size_t>(n_workers)),
      scratch_(static_cast<std::size_t>(n_workers)) {
  threads_.reserve(static_cast<std::size_t>(n_workers - 1));
  try {
    for (std::int32_t worker = 1; worker < n_workers; ++worker) {
      threads_.emplace_back([this, worker] { work(worker); });
      if (pin) pin_thread(threads_.back(), worker);
    }
  } catch (...) {  // no destructor runs for an object half made
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::reserve_scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  for (std::size_t i = 0; i < scratch_.size(); ++i) {
    scratch_memory_[i] = std::make_unique<std::byte[]>(bytes + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_memory_[i].get());
    scratch_[i].data = scratch_memory_[i].get() + (64 - address % 64) % 64;
  }
  scratch_bytes_ = bytes;
}

std::int64_t WorkerPool::run_open_tasks(std::int32_t worker) {
  std::int64_t n_run = 0;
  for (;;) {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (next_of(ticket) >= tasks_of(ticket)) return n_run;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (next_of(ticket) >= tasks_of(ticket)) return n_run;
    const Phase& phase = *phases_[phase_of(ticket)];
    const std::int64_t first = static_cast<std::int64_t>(next_of(ticket)) * stride_;
    for (std::int64_t task = first; task < std::min(first + stride_, n_tasks_); ++task) {
      phase.run(task, scratch_[static_cast<std::size_t>(worker)].data);
    }
    done_.fetch_add(1, std::memory_order_release);
    ++n_run;
  }
}

void WorkerPool::work(std::int32_t worker) {
  int idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (run_open_tasks(worker) > 0) {
      idle = 0;
      continue;
    }
    if (++idle < kSpins) {
      pause_briefly();
      continue;
    }
    // Announce the sleep, then look once more: the leader looks at n_asleep_ after it opens a
    // phase.
    const std::uint32_t wake = wake_.load();
    n_asleep_.fetch_add(1);
    const std::uint64_t ticket = ticket_.load();
    if (next_of(ticket) >= tasks_of(ticket) && !stop_.load()) wake_.wait(wake);
    n_asleep_.fetch_sub(1);
    idle = 0;
  }
}

void WorkerPool::run(std::span<const std::unique_ptr<Phase>> phases, std::span<double> seconds) {
  using Clock = std::chrono::steady_clock;
  phases_ = phases;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const Clock::time_point start = seconds.empty() ? Clock::time_point{} : Clock::now();
    const std::int64_t n_tasks = phases[i]->n_tasks();
    if (n_tasks == 1 || n_workers_ == 1) {
      for (std::int64_t task = 0; task < n_tasks; ++task) phases[i]->run(task, scratch_[0].data);
    } else if (n_tasks > 1) {
      // The ticket publishes these two. More tasks than it can count go several to a claim.
      n_tasks_ = n_tasks;
      stride_ = (n_tasks + kMaxTasks - 1) / kMaxTasks;
      const std::int64_t n_claims = (n_tasks + stride_ - 1) / stride_;
      done_.store(0, std::memory_order_relaxed);
      ticket_.store(make_ticket(i, n_claims));
      if (n_asleep_.load() > 0) {
        wake_.fetch_add(1);
        wake_.notify_all();
      }
      run_open_tasks(0);
      while (done_.load(std::memory_order_acquire) < n_claims) pause_briefly();
    }
    if (!seconds.empty()) {
      seconds[i] += std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
}

}  // namespace ebb::cpu
