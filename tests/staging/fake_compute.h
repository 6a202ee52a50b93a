#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/api/compute.h"

namespace ebb::test {

/// Memory and nothing else: no ops, and no plans.
class FakeCompute final : public Compute {
 public:
  Result<std::byte*> allocate(std::uint64_t bytes, const char*) noexcept override {
    memory_.emplace_back(new std::byte[bytes]);
    std::memset(memory_.back().get(), 0xff, bytes);
    allocated += bytes;
    return memory_.back().get();
  }
  Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept override {
    return allocate(bytes, what);
  }
  Result<Weight> import_matrix(const TensorView&) noexcept override { return Weight{}; }
  Result<const float*> import_floats(const TensorView&) noexcept override { return nullptr; }
  Result<const std::int32_t*> import_ints(const TensorView&) noexcept override { return nullptr; }
  Status write(void* target, const void* source, std::uint64_t bytes) noexcept override {
    std::memcpy(target, source, bytes);
    return ok_status();
  }
  Status read(void* target, const void* source, std::uint64_t bytes) noexcept override {
    return write(target, source, bytes);
  }
  Status copy(void* target, const void* source, std::uint64_t bytes) noexcept override {
    return write(target, source, bytes);
  }
  Result<Ops*> begin_plan() noexcept override { return nullptr; }
  Result<PlanId> end_plan() noexcept override { return PlanId{}; }
  Status start(PlanId) noexcept override { return ok_status(); }
  Status wait() noexcept override { return ok_status(); }
  Status start_beside(PlanId) noexcept override { return ok_status(); }
  Status wait_beside(PlanId) noexcept override { return ok_status(); }
  ComputeInfo info() const noexcept override { return {}; }
  std::int64_t launches(PlanId) const noexcept override { return 0; }
  Result<double> measure_read_rate() noexcept override { return 0.0; }

  std::uint64_t allocated = 0;

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace ebb::test
