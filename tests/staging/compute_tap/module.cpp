// compute_cpu, loaded from beside this module, which counts what the host asks of it: runs, copies,
// and calls that wait for the device. The counts are the name of the device: "compute_tap" and then
// starts, starts beside, writes, reads, waits, waits beside.

#include <array>
#include <cstdio>
#include <memory>

#include "core/api/compute.h"
#include "core/api/host.h"
#include "tests/staging/tapped.h"

namespace ebb::test {
namespace {

class Tap final : public Compute {
 public:
  static Result<std::unique_ptr<Tap>> create(Host& host, Options& options) {
    EBB_ASSIGN(Tapped<Compute> inner, make_tapped<Compute>(EBB_TAPPED, host, options));
    return std::make_unique<Tap>(std::move(inner));
  }
  explicit Tap(Tapped<Compute> inner) : inner_(std::move(inner)) {}

  Result<std::byte*> allocate(std::uint64_t bytes, const char* what) noexcept override {
    return inner_->allocate(bytes, what);
  }
  Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept override {
    return inner_->allocate_host(bytes, what);
  }
  Result<Weight> import_matrix(const TensorView& tensor) noexcept override {
    return inner_->import_matrix(tensor);
  }
  Result<const float*> import_floats(const TensorView& tensor) noexcept override {
    return inner_->import_floats(tensor);
  }
  Result<const std::int32_t*> import_ints(const TensorView& tensor) noexcept override {
    return inner_->import_ints(tensor);
  }
  Status write(void* target, const void* source, std::uint64_t bytes) noexcept override {
    ++counts_[2];
    return inner_->write(target, source, bytes);
  }
  Status read(void* target, const void* source, std::uint64_t bytes) noexcept override {
    ++counts_[3];
    return inner_->read(target, source, bytes);
  }
  Status copy(void* target, const void* source, std::uint64_t bytes) noexcept override {
    return inner_->copy(target, source, bytes);
  }
  Result<Ops*> begin_plan() noexcept override { return inner_->begin_plan(); }
  Result<PlanId> end_plan() noexcept override { return inner_->end_plan(); }
  Status start(PlanId plan) noexcept override {
    ++counts_[0];
    return inner_->start(plan);
  }
  Status wait() noexcept override {
    ++counts_[4];
    return inner_->wait();
  }
  Status start_beside(PlanId plan) noexcept override {
    ++counts_[1];
    return inner_->start_beside(plan);
  }
  Status wait_beside(PlanId plan) noexcept override {
    ++counts_[5];
    return inner_->wait_beside(plan);
  }
  ComputeInfo info() const noexcept override {
    ComputeInfo info = inner_->info();
    char text[200];
    std::snprintf(text, sizeof(text), "compute_tap %ld %ld %ld %ld %ld %ld", counts_[0], counts_[1],
                  counts_[2], counts_[3], counts_[4], counts_[5]);
    info.device = text;
    return info;
  }
  std::int64_t launches(PlanId plan) const noexcept override { return inner_->launches(plan); }
  Result<double> measure_read_rate() noexcept override { return inner_->measure_read_rate(); }

 private:
  const Tapped<Compute> inner_;
  std::array<long, 6> counts_{};
};

}  // namespace
}  // namespace ebb::test

EBB_MODULE(ebb::Compute, ebb::test::Tap, "compute_tap", EBB_VERSION);
