#include "modules/compute_cuda/read_rate.h"

#include <algorithm>

#include "kernels/cuda/read_all.h"
#include "modules/compute_cuda/handles.h"

namespace ebb::cuda {
namespace {

constexpr std::uint64_t kWanted = std::uint64_t{4} << 30;
constexpr std::uint64_t kLeast = std::uint64_t{512} << 20;  // ten times a large cache
constexpr int kPasses = 8;

}  // namespace

Result<double> measure_read_rate(const Launch& launch, std::uint64_t most_bytes) {
  std::size_t free = 0, total = 0;
  EBB_TRY(check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  const std::uint64_t bytes = std::min({kWanted, most_bytes, std::uint64_t{free} / 2}) / 16 * 16;
  if (bytes < kLeast) {
    return make_error(
        Errc::out_of_memory, "compute_cuda: %llu bytes are left to measure reading with, want %llu",
        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(kLeast));
  }
  EBB_ASSIGN(const DeviceMemory memory, new_device_memory(bytes, "memory to read"));
  EBB_ASSIGN(const DeviceMemory sum, new_device_memory(sizeof(std::uint32_t), "memory to read"));
  EBB_ASSIGN(const Event begin, new_event(cudaEventDefault));
  EBB_ASSIGN(const Event end, new_event(cudaEventDefault));
  EBB_TRY(check(cudaMemsetAsync(memory.get(), 1, bytes, launch.stream), "clearing memory"));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    EBB_TRY(check(cudaEventRecord(begin.get(), launch.stream), "cudaEventRecord"));
    EBB_TRY(check(read_all(launch, memory.get(), static_cast<std::int64_t>(bytes),
                           reinterpret_cast<std::uint32_t*>(sum.get())),
                  "reading memory"));
    EBB_TRY(check(cudaEventRecord(end.get(), launch.stream), "cudaEventRecord"));
    EBB_TRY(check(cudaStreamSynchronize(launch.stream), "waiting for the device"));
    float ms = 0;
    EBB_TRY(check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime"));
    best = std::max(best, static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3));
  }
  return best;
}

}  // namespace ebb::cuda
