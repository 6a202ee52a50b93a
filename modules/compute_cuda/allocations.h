#pragma once

#include <string>
#include <vector>

#include "core/api/loader.h"
#include "modules/compute_cuda/handles.h"

namespace ebb::cuda {

/// What the module takes of device memory and of page-locked host memory: counted, owned until the
/// end, within the limit. In a rehearsal it counts and takes nothing: addresses are made up, which
/// nobody follows.
class Allocations {
 public:
  /// `limit`: bytes of device memory; 0: what there is.
  Allocations(bool is_rehearsal, std::uint64_t limit)
      : is_rehearsal_(is_rehearsal), limit_(limit) {}

  /// Device memory. Errors: out_of_memory, which names `what`.
  Result<std::byte*> take(std::uint64_t bytes, const char* what);
  /// Device memory for the weights of a tensor.
  Result<std::byte*> take_weights(std::uint64_t bytes, const TensorView& tensor);
  /// Page-locked: the same address on both sides.
  Result<std::byte*> take_host(std::uint64_t bytes, const char* what);

  std::uint64_t bytes_device() const { return allocated_; }
  std::uint64_t bytes_host() const { return allocated_host_; }

 private:
  std::byte* pretend(std::uint64_t bytes);

  const bool is_rehearsal_;
  const std::uint64_t limit_;
  std::vector<DeviceMemory> device_;
  std::vector<PinnedMemory> pinned_;
  std::byte* slab_ = nullptr;  // rest of the last allocation that small tensors share
  std::uint64_t slab_left_ = 0;
  std::uint64_t allocated_ = 0, allocated_host_ = 0;
  std::uint64_t pretended_ = 0;  // bytes of a rehearsal, for addresses
};

}  // namespace ebb::cuda
