#include "modules/compute_cpu/read_rate.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>

namespace ebb::cpu {
namespace {

constexpr std::size_t kTaskBytes = std::size_t{4} << 20;
constexpr int kPasses = 5;

/// Sums the words of one piece per task, in as many chains as hide the additions.
class ReadPhase final : public Phase {
 public:
  ReadPhase(const std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::int64_t n_tasks() const noexcept override {
    return static_cast<std::int64_t>(bytes_ / kTaskBytes);
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    const auto* words = reinterpret_cast<const std::uint64_t*>(
        memory_ + static_cast<std::size_t>(task) * kTaskBytes);
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i < kTaskBytes / sizeof(std::uint64_t); i += 8) {
      for (std::size_t k = 0; k < 8; ++k) sum[k] += words[i + k];
    }
    std::uint64_t all = 0;
    for (const std::uint64_t part : sum) all += part;
    sum_.fetch_add(all, std::memory_order_relaxed);  // so that the reads are of use
  }
  const char* name() const noexcept override { return "read"; }

 private:
  const std::byte* memory_;
  std::uint64_t bytes_;
  mutable std::atomic<std::uint64_t> sum_{0};
};

/// Writes the pages, so that they exist and are not one shared page of zeros.
class TouchPhase final : public Phase {
 public:
  TouchPhase(std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::int64_t n_tasks() const noexcept override {
    return static_cast<std::int64_t>(bytes_ / kTaskBytes);
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    std::memset(memory_ + static_cast<std::size_t>(task) * kTaskBytes, 1, kTaskBytes);
  }
  const char* name() const noexcept override { return "touch"; }

 private:
  std::byte* memory_;
  std::uint64_t bytes_;
};

}  // namespace

Result<double> measure_read_rate(WorkerPool& pool) {
  PhaseList touch, read;
  void* const memory =
      mmap(nullptr, kReadRateBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return make_error(Errc::out_of_memory, "compute_cpu: no %llu bytes to measure reading with",
                      static_cast<unsigned long long>(kReadRateBytes));
  }
  const std::unique_ptr<void, void (*)(void*)> owner(
      memory, [](void* mapping) { munmap(mapping, kReadRateBytes); });
  madvise(memory, kReadRateBytes, MADV_HUGEPAGE);
  auto* const bytes = static_cast<std::byte*>(memory);
  touch.push_back(std::make_unique<TouchPhase>(bytes, kReadRateBytes));
  read.push_back(std::make_unique<ReadPhase>(bytes, kReadRateBytes));
  pool.run(touch, {});
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool.run(read, {});
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, static_cast<double>(kReadRateBytes) / seconds);
  }
  return best;
}

}  // namespace ebb::cpu
