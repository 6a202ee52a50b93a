#include "modules/compute_cuda/allocations.h"

#include "core/api/session.h"

namespace ebb::cuda {

std::byte* Allocations::pretend(std::uint64_t bytes) {
  const std::uint64_t begin = Arena::kAlign + pretended_;
  pretended_ += (bytes + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
  return reinterpret_cast<std::byte*>(begin);
}

Result<std::byte*> Allocations::take(std::uint64_t bytes, const char* what) {
  if (is_rehearsal_) {
    allocated_ += bytes;
    return pretend(bytes);
  }
  if (limit_ > 0 && (bytes > limit_ || allocated_ > limit_ - bytes)) {
    return make_error(Errc::out_of_memory,
                      "compute_cuda: %s needs %llu bytes, %llu are in use and memory_limit is %llu",
                      what, static_cast<unsigned long long>(bytes),
                      static_cast<unsigned long long>(allocated_),
                      static_cast<unsigned long long>(limit_));
  }
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return make_error(Errc::out_of_memory,
                      "compute_cuda: %s needs %llu bytes, the device has %zu of %zu free", what,
                      static_cast<unsigned long long>(bytes), free, total);
  }
  EBB_TRY(check(code, what));
  device_.emplace_back(static_cast<std::byte*>(memory));
  allocated_ += bytes;
  return device_.back().get();
}

// Small ones share an allocation, since the device hands out large pages.
Result<std::byte*> Allocations::take_weights(std::uint64_t bytes, const TensorView& tensor) {
  constexpr std::uint64_t kSlab = std::uint64_t{8} << 20;
  bytes = (bytes + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
  if (bytes > slab_left_) {
    const std::uint64_t wanted = bytes >= kSlab / 2 ? bytes : kSlab;
    EBB_ASSIGN(std::byte* const place, take(wanted, std::string(tensor.name).c_str()));
    if (wanted == bytes) return place;
    slab_ = place;
    slab_left_ = wanted;
  }
  std::byte* const place = slab_;
  slab_ += bytes;
  slab_left_ -= bytes;
  return place;
}

Result<std::byte*> Allocations::take_host(std::uint64_t bytes, const char* what) {
  if (is_rehearsal_) {
    allocated_host_ += bytes;
    return pretend(bytes);
  }
  void* memory = nullptr;
  const cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return make_error(Errc::out_of_memory,
                      "compute_cuda: %s needs %llu bytes of page-locked memory: %s", what,
                      static_cast<unsigned long long>(bytes), cudaGetErrorString(code));
  }
  pinned_.emplace_back(static_cast<std::byte*>(memory));
  allocated_host_ += bytes;
  return pinned_.back().get();
}

}  // namespace ebb::cuda
