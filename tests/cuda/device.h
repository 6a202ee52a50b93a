#pragma once

#include <cuda_runtime_api.h>

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/planes.h"
#include "kernels/cuda/tensor_product.h"
#include "kernels/ops/dense.h"
#include "kernels/quant_grids.h"

// What tests of CUDA kernels share: memory of the device, weights in it, and how to skip where
// there is none.

namespace ebb::test {

inline void require_ok(cudaError_t code) {
  BOOST_REQUIRE_MESSAGE(code == cudaSuccess, cudaGetErrorString(code));
}

/// Device memory of n values, filled with 0xff bytes: NaN, or -1.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) {
    void* memory = nullptr;
    require_ok(cudaMalloc(&memory, n * sizeof(T) + 256));
    memory_ = static_cast<T*>(memory);
    fill();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return memory_; }
  void fill() { require_ok(cudaMemset(memory_, 0xff, n_ * sizeof(T))); }
  void set(const std::vector<T>& values) {
    BOOST_REQUIRE(values.size() <= n_);
    require_ok(
        cudaMemcpy(memory_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> values(std::size_t n) const {
    std::vector<T> host(n);
    require_ok(cudaMemcpy(host.data(), memory_, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  std::vector<T> values() const { return values(n_); }

 private:
  std::size_t n_;
  T* memory_ = nullptr;
};

/// The launch of a device's plans, with a workspace that grows.
class TestDevice {
 public:
  TestDevice()
      : grid_(std::vector<std::uint64_t>(kernels::kGridIq2Xxs, kernels::kGridIq2Xxs + 256)) {
    cudaDeviceProp properties{};
    require_ok(cudaGetDeviceProperties(&properties, 0));
    launch_.n_sms = properties.multiProcessorCount;
    launch_.largest_shared = properties.sharedMemPerBlockOptin;
    launch_.tensor_units = cuda::has_tensor_units(properties);
    launch_.early_start = properties.major >= 9;
    launch_.grid_iq2 = grid_.get();
    require_ok(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking));
  }
  ~TestDevice() {
    cudaFree(launch_.workspace);
    cudaStreamDestroy(launch_.stream);
  }
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  /// The launch, with at least `bytes` of workspace, all bytes 0xff.
  const cuda::Launch& launch(std::size_t bytes) {
    if (bytes > workspace_bytes_) {
      cudaFree(launch_.workspace);
      void* memory = nullptr;
      require_ok(cudaMalloc(&memory, bytes));
      launch_.workspace = static_cast<std::byte*>(memory);
      workspace_bytes_ = bytes;
    }
    if (bytes > 0) require_ok(cudaMemset(launch_.workspace, 0xff, bytes));
    require_ok(cudaDeviceSynchronize());
    return launch_;
  }
  void finish() { require_ok(cudaStreamSynchronize(launch_.stream)); }
  bool has_tensor_units() const { return launch_.tensor_units; }

 private:
  DeviceArray<std::uint64_t> grid_;
  cuda::Launch launch_;
  std::size_t workspace_bytes_ = 0;
};

/// Stored weights on the device.
class DeviceWeight {
 public:
  DeviceWeight(TestDevice& device, const Weight& stored)
      : bytes_(static_cast<std::size_t>(row_bytes(stored.type, stored.n_in) * stored.n_out *
                                        stored.n_mats)) {
    const auto n = static_cast<std::size_t>(row_bytes(stored.type, stored.n_in) * stored.n_out *
                                            stored.n_mats);
    const DeviceArray<std::byte> arrived(std::vector<std::byte>(stored.data, stored.data + n));
    const std::int64_t blocks =
        static_cast<std::int64_t>(n) / dtype_traits(stored.type)->block_bytes;
    require_ok(cuda::spread_blocks(device.launch(0), stored.type, arrived.get(), blocks,
                                   bytes_.get(), 0, blocks));
    device.finish();
    weight = stored;
    weight.data = bytes_.get();
  }

  Weight weight;

 private:
  DeviceArray<std::byte> bytes_;
};

/// main() of a test program: runs the tests, or says loudly that there is nothing to run them on.
inline int run_on_device(int argc, char** argv) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    std::fprintf(stderr, "SKIPPED: no CUDA device here; nothing was tested\n");
    return 77;
  }
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}

}  // namespace ebb::test
