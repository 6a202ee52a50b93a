#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/api/result.h"

// Owners of CUDA objects, and the one place where return codes become Errors.

namespace ebb::cuda {

/// ok, or Errc::device (out_of_memory if that is what it was) with what was tried.
inline Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return ok_status();
  cudaGetLastError();  // a code that is not sticky must not meet the next call
  return make_error(code == cudaErrorMemoryAllocation ? Errc::out_of_memory : Errc::device,
                    "compute_cuda: %s: %s (%s)", what, cudaGetErrorString(code),
                    cudaGetErrorName(code));
}

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept { cudaFree(memory); }
};
struct FreePinned {
  void operator()(std::byte* memory) const noexcept { cudaFreeHost(memory); }
};
struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
struct DestroyGraph {
  void operator()(cudaGraph_t graph) const noexcept { cudaGraphDestroy(graph); }
};
struct DestroyGraphExec {
  void operator()(cudaGraphExec_t exec) const noexcept { cudaGraphExecDestroy(exec); }
};

using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraphExec>;

inline Result<DeviceMemory> new_device_memory(std::uint64_t bytes, const char* what) {
  void* memory = nullptr;
  EBB_TRY(check(cudaMalloc(&memory, bytes), what));
  return DeviceMemory(static_cast<std::byte*>(memory));
}

inline Result<PinnedMemory> new_pinned_memory(std::uint64_t bytes) {
  void* memory = nullptr;
  EBB_TRY(check(cudaMallocHost(&memory, bytes), "cudaMallocHost"));
  return PinnedMemory(static_cast<std::byte*>(memory));
}

inline Result<Stream> new_stream(int priority) {
  cudaStream_t stream = nullptr;
  EBB_TRY(check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                "cudaStreamCreateWithPriority"));
  return Stream(stream);
}

inline Result<Event> new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EBB_TRY(check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"));
  return Event(event);
}

}  // namespace ebb::cuda
