#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/step.h"

namespace ebb::test {

inline void require_cuda(cudaError_t code) {
  BOOST_REQUIRE_MESSAGE(code == cudaSuccess, cudaGetErrorString(code));
}

/// Device copies of host memory. What is shared is copied back by fetch(). Behind every copy stand
/// bytes 0xff, and fetch() checks that they still do.
class Mirror {
 public:
  Mirror() {
    require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cudaDeviceProp properties{};
    require_cuda(cudaGetDeviceProperties(&properties, 0));
    launch_.stream = stream_;
    launch_.n_sms = properties.multiProcessorCount;
    launch_.early_start = properties.major >= 9;
    clusters_ = properties.major >= 9;
  }
  ~Mirror() {
    for (const Copy& copy : copies_) cudaFree(copy.device);
    cudaStreamDestroy(stream_);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// A copy of n values; nullptr stays nullptr.
  template <class T>
  const T* put(const T* host, std::size_t n) {
    if (host == nullptr) return nullptr;
    return reinterpret_cast<const T*>(take(host, n * sizeof(T), nullptr));
  }
  template <class T>
  const T* put(const std::vector<T>& host) {
    return put(host.data(), host.size());
  }
  /// A copy that fetch() brings back.
  template <class T>
  T* share(T* host, std::size_t n) {
    return reinterpret_cast<T*>(take(host, n * sizeof(T), host));
  }
  template <class T>
  T* share(std::vector<T>& host) {
    return share(host.data(), host.size());
  }

  /// The step as kernels see it; max_rows may exceed the rows there are.
  StepView step(const Step& step, std::int32_t max_rows = 0) {
    StepView v;
    v.n_rows = put(&step.n_rows, 1);
    v.n_out = put(&step.n_out, 1);
    v.token = put(step.token);
    v.pos = put(step.pos);
    v.seq = put(step.seq);
    v.run_start = put(step.run_start);
    if (!step.out_row.empty()) v.out_row = put(step.out_row);
    if (!step.keep.empty()) v.keep = put(step.keep);
    v.max_rows = max_rows > 0 ? max_rows : step.n_rows;
    v.max_out = step.n_out;
    return v;
  }
  RowStore store(const OwnedStore& host) {
    RowStore store = host.store;
    store.data = const_cast<std::byte*>(put(host.memory));
    return store;
  }
  RowStore share(OwnedStore& host) {
    RowStore store = host.store;
    store.data = share(host.memory);
    return store;
  }

  /// For the next launch; the workspace is full of NaNs.
  cuda::Launch launch(std::size_t workspace_bytes) {
    const std::vector<std::byte> poison(workspace_bytes, std::byte{0xff});
    cuda::Launch launch = launch_;
    if (workspace_bytes > 0) launch.workspace = const_cast<std::byte*>(put(poison));
    return launch;
  }
  bool clusters() const { return clusters_; }

  /// Waits, checks and copies back.
  void fetch() {
    require_cuda(cudaStreamSynchronize(stream_));
    for (const Copy& copy : copies_) {
      std::byte behind[kMargin];
      require_cuda(cudaMemcpy(behind, copy.device + copy.bytes, kMargin, cudaMemcpyDeviceToHost));
      BOOST_REQUIRE(std::all_of(std::begin(behind), std::end(behind),
                                [](std::byte b) { return b == std::byte{0xff}; }));
      if (copy.host == nullptr || copy.bytes == 0) continue;
      require_cuda(cudaMemcpy(copy.host, copy.device, copy.bytes, cudaMemcpyDeviceToHost));
    }
  }

 private:
  static constexpr std::size_t kMargin = 512;
  struct Copy {
    std::byte* device;
    std::size_t bytes;
    void* host;
  };

  std::byte* take(const void* host, std::size_t bytes, void* back) {
    void* device = nullptr;
    require_cuda(cudaMalloc(&device, bytes + kMargin));
    auto* const place = static_cast<std::byte*>(device);
    copies_.push_back({place, bytes, back});
    require_cuda(cudaMemset(place + bytes, 0xff, kMargin));
    require_cuda(cudaMemcpy(place, host, bytes, cudaMemcpyHostToDevice));
    require_cuda(cudaDeviceSynchronize());
    return place;
  }

  cudaStream_t stream_ = nullptr;
  cuda::Launch launch_;
  bool clusters_ = false;
  std::vector<Copy> copies_;
};

}  // namespace ebb::test
