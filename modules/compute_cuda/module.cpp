// The CUDA backend. Weights are copied to the device when they are imported; a plan is one graph,
// recorded once and launched for every step ([compute] graph = false: its ops, one by one). A run
// only enqueues: what waits for the device is a read, so a step of decode has one wait, that for
// its token.

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/api/compute.h"
#include "core/api/host.h"
#include "kernels/cuda/planes.h"
#include "kernels/cuda/tensor_product.h"
#include "kernels/ops/ops.h"
#include "kernels/quant_grids.h"
#include "modules/compute_cuda/allocations.h"
#include "modules/compute_cuda/handles.h"
#include "modules/compute_cuda/plan.h"
#include "modules/compute_cuda/profile.h"
#include "modules/compute_cuda/read_rate.h"
#include "modules/compute_cuda/recorder.h"
#include "modules/compute_cuda/uploader.h"

namespace ebb::cuda {
namespace {

struct Settings {
  std::int32_t device = 0;
  std::uint64_t memory_limit = 0;
  Precision precision = Precision::exact;
  bool early_start = true;
  bool poison = false;
  bool profile = false;
  bool graph = true;
};

constexpr std::uint64_t kBounceBytes = std::uint64_t{1} << 20;  // of each pinned copy buffer

/// Turns what the standard library throws into an Error: nothing may leave the module.
template <class Run>
auto guarded(Run run) noexcept -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "compute_cuda: no host memory left");
  } catch (const std::system_error& error) {
    return make_error(Errc::internal, "compute_cuda: %s", error.what());
  }
}

class ComputeCuda final : public Compute {
 public:
  static Result<std::unique_ptr<ComputeCuda>> create(Host& host, Options& options) {
    Settings settings;
    settings.device = static_cast<std::int32_t>(options.get_int("device", 0, 0, 63));
    settings.memory_limit = options.get_size("memory_limit", 0, 0, std::uint64_t{1} << 60);
    settings.precision = options.get_choice("precision", 0, {"exact", "fast"}) == 0
                             ? Precision::exact
                             : Precision::fast;
    settings.early_start = options.get_bool("early_start", true);
    settings.poison = options.get_bool("poison", false);
    settings.profile = options.get_bool("profile", false);
    settings.graph = options.get_bool("graph", true);
    EBB_TRY(options.finish());
    auto compute = std::unique_ptr<ComputeCuda>(new ComputeCuda(host, settings));
    EBB_TRY(compute->open());
    return compute;
  }

  ~ComputeCuda() override {
    for (const Stream* stream : {&stream_, &beside_}) {
      if (*stream) cudaStreamSynchronize(stream->get());
    }
    if (settings_.profile) log_profile(host_, plans_);
  }

  Result<std::byte*> allocate(std::uint64_t bytes, const char* what) noexcept override {
    return guarded([&]() -> Result<std::byte*> {
      bytes = std::max<std::uint64_t>(bytes, 1);
      EBB_ASSIGN(std::byte* const place, memory_.take(bytes, what));
      if (is_rehearsal_) return place;
      EBB_TRY(check(cudaMemsetAsync(place, settings_.poison ? 0xFF : 0, bytes, stream_.get()),
                    "clearing memory"));
      return place;
    });
  }

  /// Page-locked: the same address on both sides.
  Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept override {
    return guarded([&]() -> Result<std::byte*> {
      bytes = std::max<std::uint64_t>(bytes, 1);
      EBB_ASSIGN(std::byte* const place, memory_.take_host(bytes, what));
      if (!is_rehearsal_) std::memset(place, settings_.poison ? 0xFF : 0, bytes);
      return place;
    });
  }

  Result<Weight> import_matrix(const TensorView& tensor) noexcept override {
    return guarded([&]() -> Result<Weight> {
      Weight weight{tensor.data, tensor.type, tensor.ne[0], tensor.ne[1], tensor.ne[2]};
      EBB_TRY(check_weight("import", std::string(tensor.name).c_str(), weight));
      EBB_ASSIGN(std::byte* const place, memory_.take_weights(tensor.n_bytes, tensor));
      EBB_TRY(with_uploader([&](Uploader& uploader) {
        return uploader.upload_blocks(tensor.type, tensor.data, tensor.n_bytes, place);
      }));
      weight.data = place;
      return weight;
    });
  }

  Result<const float*> import_floats(const TensorView& tensor) noexcept override {
    return guarded([&]() -> Result<const float*> {
      const std::int64_t count = tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
      if (tensor.type != DType::f32 && tensor.type != DType::f16 && tensor.type != DType::bf16) {
        return make_error(Errc::incompatible, "compute_cuda: tensor %s: want F32, F16 or BF16",
                          std::string(tensor.name).c_str());
      }
      EBB_ASSIGN(std::byte* const place,
                 memory_.take_weights(static_cast<std::uint64_t>(count) * sizeof(float), tensor));
      auto* const values = reinterpret_cast<float*>(place);
      EBB_TRY(with_uploader([&](Uploader& uploader) {
        return uploader.upload_floats(tensor.type, tensor.data, count, values);
      }));
      return static_cast<const float*>(values);
    });
  }

  Result<const std::int32_t*> import_ints(const TensorView& tensor) noexcept override {
    return guarded([&]() -> Result<const std::int32_t*> {
      if (tensor.type != DType::i32) {
        return make_error(Errc::incompatible, "compute_cuda: tensor %s: want I32",
                          std::string(tensor.name).c_str());
      }
      EBB_ASSIGN(std::byte* const place, memory_.take_weights(tensor.n_bytes, tensor));
      // Whole words travel as F32 does.
      EBB_TRY(with_uploader([&](Uploader& uploader) {
        return uploader.upload_blocks(DType::f32, tensor.data, tensor.n_bytes, place);
      }));
      return reinterpret_cast<const std::int32_t*>(place);
    });
  }

  Status write(void* target, const void* source, std::uint64_t bytes) noexcept override {
    if (is_rehearsal_) return ok_status();
    const auto* from = static_cast<const std::byte*>(source);
    auto* to = static_cast<std::byte*>(target);
    while (bytes > 0) {
      const std::uint64_t n = std::min(bytes, kBounceBytes);
      EBB_TRY(check(cudaEventSynchronize(sent_.get()), "waiting for a copy"));
      std::memcpy(outgoing_.get(), from, n);
      EBB_TRY(check(cudaMemcpyAsync(to, outgoing_.get(), n, cudaMemcpyDefault, stream_.get()),
                    "copying to the device"));
      EBB_TRY(check(cudaEventRecord(sent_.get(), stream_.get()), "cudaEventRecord"));
      from += n;
      to += n;
      bytes -= n;
    }
    return ok_status();
  }

  Status read(void* target, const void* source, std::uint64_t bytes) noexcept override {
    const auto* from = static_cast<const std::byte*>(source);
    auto* to = static_cast<std::byte*>(target);
    while (bytes > 0) {
      const std::uint64_t n = std::min(bytes, kBounceBytes);
      EBB_TRY(
          check(cudaMemcpyAsync(incoming_.get(), from, n, cudaMemcpyDeviceToHost, stream_.get()),
                "copying from the device"));
      EBB_TRY(check(cudaStreamSynchronize(stream_.get()), "waiting for the device"));
      std::memcpy(to, incoming_.get(), n);
      from += n;
      to += n;
      bytes -= n;
    }
    return ok_status();
  }

  // Page-locked memory has one address for the host and the device.
  Status copy(void* target, const void* source, std::uint64_t bytes) noexcept override {
    if (is_rehearsal_ || bytes == 0) return ok_status();
    return check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream_.get()),
                 "copying on the device");
  }

  Result<Ops*> begin_plan() noexcept override {
    if (recorder_)
      return make_error(Errc::internal, "compute_cuda: a plan is being recorded already");
    recorder_.emplace(largest_shared_, clusters_, settings_.precision);
    return static_cast<Ops*>(&*recorder_);
  }

  Result<PlanId> end_plan() noexcept override {
    return guarded([&]() -> Result<PlanId> {
      if (!recorder_) return make_error(Errc::internal, "compute_cuda: no plan is being recorded");
      EBB_ASSIGN(RecordedPlan recorded, recorder_->take());
      recorder_.reset();
      uploader_.reset();  // the weights are here
      Launch launch;
      launch.n_sms = n_sms_;
      launch.largest_shared = largest_shared_;
      launch.tensor_units = tensor_units_;
      launch.early_start = early_start_ && !settings_.profile;
      launch.grid_iq2 = reinterpret_cast<const std::uint64_t*>(grid_);
      if (recorded.all_workspace() > 0) {
        EBB_ASSIGN(launch.workspace, allocate(recorded.all_workspace(), "a plan's workspace"));
        launch.landing = launch.workspace + recorded.landing();
      }
      if (is_rehearsal_) return PlanId{};
      EBB_TRY(check(cudaStreamSynchronize(stream_.get()), "loading the model"));
      launch.stream = stream_.get();
      EBB_ASSIGN(Plan plan,
                 Plan::capture(std::move(recorded), launch, settings_.profile, settings_.graph));
      EBB_TRY(check(cudaStreamSynchronize(stream_.get()), "uploading a graph"));
      plans_.push_back(std::move(plan));
      return PlanId{static_cast<std::int32_t>(plans_.size() - 1)};
    });
  }

  Status start(PlanId id) noexcept override {
    EBB_ASSERT(id.v >= 0 && static_cast<std::size_t>(id.v) < plans_.size());
    Plan& plan = plans_[static_cast<std::size_t>(id.v)];
    EBB_TRY(plan.launch(stream_.get()));
    if (!settings_.profile) return ok_status();
    EBB_TRY(check(cudaStreamSynchronize(stream_.get()), "waiting for the device"));
    return plan.collect_times();
  }

  Status wait() noexcept override {
    return check(cudaStreamSynchronize(stream_.get()), "waiting for the device");
  }

  Status start_beside(PlanId id) noexcept override {
    EBB_ASSERT(id.v >= 0 && static_cast<std::size_t>(id.v) < plans_.size());
    Plan& plan = plans_[static_cast<std::size_t>(id.v)];
    EBB_TRY(check(cudaEventRecord(so_far_.get(), stream_.get()), "cudaEventRecord"));
    EBB_TRY(check(cudaStreamWaitEvent(beside_.get(), so_far_.get()), "cudaStreamWaitEvent"));
    EBB_TRY(plan.launch(beside_.get()));
    EBB_TRY(check(cudaEventRecord(plan.over(), beside_.get()), "cudaEventRecord"));
    if (!settings_.profile) return ok_status();
    EBB_TRY(wait_beside(id));
    return plan.collect_times();
  }

  Status wait_beside(PlanId id) noexcept override {
    EBB_ASSERT(id.v >= 0 && static_cast<std::size_t>(id.v) < plans_.size());
    return check(cudaEventSynchronize(plans_[static_cast<std::size_t>(id.v)].over()),
                 "waiting for a plan beside the steps");
  }

  ComputeInfo info() const noexcept override {
    std::size_t free = 0, total = 0;
    ComputeInfo info;
    info.device = name_;
    info.bytes_allocated = memory_.bytes_device();
    info.bytes_limit = settings_.memory_limit;
    info.bytes_host = memory_.bytes_host();
    info.bytes_present = free_at_start_;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess && free < free_at_start_) {
      info.bytes_taken = free_at_start_ - free;
    }
    info.precision = settings_.precision == Precision::exact ? "exact" : "fast";
    return info;
  }

  std::int64_t launches(PlanId id) const noexcept override {
    return static_cast<std::int64_t>(plans_[static_cast<std::size_t>(id.v)].n_nodes());
  }

  Result<double> measure_read_rate() noexcept override {
    return guarded([&]() -> Result<double> {
      const std::uint64_t limit = settings_.memory_limit;
      const std::uint64_t room =
          limit == 0 ? UINT64_MAX : limit - std::min(limit, memory_.bytes_device());
      Launch launch;
      launch.stream = stream_.get();
      launch.n_sms = n_sms_;
      return cuda::measure_read_rate(launch, room);
    });
  }

 private:
  ComputeCuda(Host& host, const Settings& settings)
      : host_(host),
        settings_(settings),
        is_rehearsal_(host.is_rehearsal()),
        memory_(is_rehearsal_, settings.memory_limit) {}

  Status open() {
    int n_devices = 0;
    const cudaError_t counted = cudaGetDeviceCount(&n_devices);
    if (counted != cudaSuccess || settings_.device >= n_devices) {
      cudaGetLastError();
      return make_error(
          Errc::device, "compute_cuda: [compute] device = %d: %d CUDA devices can be used (%s)",
          settings_.device, counted == cudaSuccess ? n_devices : 0, cudaGetErrorString(counted));
    }
    EBB_TRY(check(cudaSetDevice(settings_.device), "cudaSetDevice"));
    cudaDeviceProp properties{};
    EBB_TRY(
        check(cudaGetDeviceProperties(&properties, settings_.device), "cudaGetDeviceProperties"));
    name_ = std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
            " multiprocessors, compute capability " + std::to_string(properties.major) + "." +
            std::to_string(properties.minor);
    n_sms_ = properties.multiProcessorCount;
    largest_shared_ = properties.sharedMemPerBlockOptin;
    clusters_ = properties.major >= 9;
    tensor_units_ = has_tensor_units(properties);
    early_start_ = settings_.early_start && properties.major >= 9;
    // Blocks of a step go before those of a plan beside it.
    int least = 0, greatest = 0;
    EBB_TRY(check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities"));
    EBB_ASSIGN(stream_, new_stream(greatest));
    EBB_ASSIGN(beside_, new_stream(least));
    EBB_ASSIGN(so_far_, new_event());
    EBB_ASSIGN(sent_, new_event());
    EBB_ASSIGN(outgoing_, new_pinned_memory(kBounceBytes));
    EBB_ASSIGN(incoming_, new_pinned_memory(kBounceBytes));
    std::size_t total = 0;
    EBB_TRY(check(cudaMemGetInfo(&free_at_start_, &total), "cudaMemGetInfo"));
    EBB_ASSIGN(grid_, memory_.take(sizeof(kernels::kGridIq2Xxs), "the codebook of IQ2_XXS"));
    return write(grid_, kernels::kGridIq2Xxs, sizeof(kernels::kGridIq2Xxs));
  }

  template <class Upload>
  Status with_uploader(Upload upload) {
    if (is_rehearsal_) return ok_status();
    if (!uploader_) {
      EBB_ASSIGN(Uploader uploader, Uploader::create(stream_.get(), n_sms_));
      uploader_.emplace(std::move(uploader));
    }
    return upload(*uploader_);
  }

  Host& host_;
  const Settings settings_;
  const bool is_rehearsal_;
  std::string name_;
  std::int32_t n_sms_ = 1;
  std::uint64_t largest_shared_ = 0;
  bool tensor_units_ = false;
  bool early_start_ = false;
  bool clusters_ = false;  // of blocks

  // The streams are destroyed last: what follows may be in use on them.
  Stream stream_;
  Stream beside_;
  Event so_far_;  // what a plan beside waits for
  Event sent_;    // outgoing_ may be filled again
  PinnedMemory outgoing_;
  PinnedMemory incoming_;
  Allocations memory_;
  std::byte* grid_ = nullptr;      // codebook of IQ2_XXS
  std::size_t free_at_start_ = 0;  // bytes of the device, before anything was taken
  std::optional<Uploader> uploader_;
  std::optional<Recorder> recorder_;
  std::vector<Plan> plans_;
};

}  // namespace
}  // namespace ebb::cuda

EBB_MODULE(ebb::Compute, ebb::cuda::ComputeCuda, "compute_cuda", EBB_VERSION);
