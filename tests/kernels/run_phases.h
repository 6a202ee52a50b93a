#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kernels/cpu/phase.h"

namespace ebb::test {

/// How the tasks of a phase are handed out.
struct Schedule {
  int n_workers = 1;
  bool backwards = false;
};

/// Runs phases one after another. Every task finds its scratch full of NaNs, so that nothing can be
/// handed from task to task through it; the scratch is exactly as long as the phase asked for.
inline void run_phases(const cpu::PhaseList& list, Schedule schedule = {}) {
  for (const auto& phase : list) {
    const std::int64_t n_tasks = phase->n_tasks();
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
      const std::size_t bytes = phase->scratch_bytes();
      const auto free = [](std::byte* p) { ::operator delete[](p, std::align_val_t{64}); };
      const std::unique_ptr<std::byte, decltype(free)> scratch(
          static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})), free);
      for (std::int64_t i = next++; i < n_tasks; i = next++) {
        std::memset(scratch.get(), 0xff, bytes);
        phase->run(schedule.backwards ? n_tasks - 1 - i : i, scratch.get());
      }
    };
    std::vector<std::thread> others;
    for (int w = 1; w < schedule.n_workers; ++w) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }
}

}  // namespace ebb::test
