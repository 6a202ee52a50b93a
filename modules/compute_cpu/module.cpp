// The CPU backend. Weights stay where the loader mapped them; activations, KV rows and state live
// in anonymous mappings, so that what is never touched takes no memory. A plan is a list of phases
// that the worker pool runs from front to back.

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/api/compute.h"
#include "core/api/host.h"
#include "kernels/numeric.h"
#include "kernels/ops/ops.h"
#include "modules/compute_cpu/read_rate.h"
#include "modules/compute_cpu/recorder.h"
#include "modules/compute_cpu/worker_pool.h"

namespace ebb::cpu {
namespace {

std::int32_t usable_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  return std::max(1, CPU_COUNT(&allowed));
}

struct Settings {
  std::int32_t n_threads = 1;
  Precision precision = Precision::exact;
  bool pin = true;
  std::uint64_t memory_limit = 0;
  bool poison = false;
  bool profile = false;
};

struct Plan {
  PhaseList phases;
  std::vector<double> seconds;  // by phase; empty unless profiling
};

class ComputeCpu final : public Compute {
 public:
  static Result<std::unique_ptr<ComputeCpu>> create(Host& host, Options& options) {
    Settings settings;
    const std::int64_t threads = options.get_int("threads", 0, 0, 1024);
    settings.n_threads = threads > 0 ? static_cast<std::int32_t>(threads) : usable_cpus();
    settings.precision = options.get_choice("precision", 0, {"exact", "fast"}) == 0
                             ? Precision::exact
                             : Precision::fast;
    settings.pin = options.get_bool("pin", true);
    settings.memory_limit = options.get_size("memory_limit", 0, 0, std::uint64_t{1} << 60);
    settings.poison = options.get_bool("poison", false);
    settings.profile = options.get_bool("profile", false);
    EBB_TRY(options.finish());
    try {
      return std::make_unique<ComputeCpu>(host, settings);
    } catch (const std::system_error& thrown) {
      return make_error(Errc::out_of_memory, "%s: no %d worker threads: %s",
                        options.where("threads").c_str(), settings.n_threads, thrown.what());
    }
  }

  ComputeCpu(Host& host, const Settings& settings)
      : host_(host),
        settings_(settings),
        is_rehearsal_(host.is_rehearsal()),
        pool_(settings.n_threads, settings.pin) {}

  ~ComputeCpu() override {
    if (settings_.profile) log_profile();
    for (const auto& [data, bytes] : mappings_) munmap(data, bytes);
  }

  Result<std::byte*> allocate(std::uint64_t bytes, const char* what) noexcept override {
    bytes = std::max<std::uint64_t>(bytes, 1);
    EBB_TRY(check_room(bytes, what));
    EBB_ASSIGN(std::byte* const data, map(bytes, what));
    allocated_ += bytes;
    return data;
  }

  Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept override {
    bytes = std::max<std::uint64_t>(bytes, 1);
    EBB_ASSIGN(std::byte* const data, map(bytes, what));
    allocated_host_ += bytes;
    return data;
  }

  Result<Weight> import_matrix(const TensorView& tensor) noexcept override {
    borrowed_ += tensor.n_bytes;
    return Weight{tensor.data, tensor.type, tensor.ne[0], tensor.ne[1], tensor.ne[2]};
  }

  Result<const float*> import_floats(const TensorView& tensor) noexcept override {
    const std::int64_t count = tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
    try {
      EBB_TRY(check_room(static_cast<std::uint64_t>(count) * sizeof(float),
                         std::string(tensor.name).c_str()));
      std::vector<float>& values = floats_.emplace_back(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (tensor.type == DType::f32) {
          std::memcpy(&values[i], tensor.data + 4 * i, 4);
          continue;
        }
        std::uint16_t half = 0;
        std::memcpy(&half, tensor.data + 2 * i, 2);
        if (tensor.type == DType::f16) {
          values[i] = f16_to_float(half);
        } else if (tensor.type == DType::bf16) {
          values[i] = bf16_to_float(half);
        } else {
          return make_error(Errc::incompatible, "compute_cpu: tensor %s: want F32, F16 or BF16",
                            std::string(tensor.name).c_str());
        }
      }
      copied_ += values.size() * sizeof(float);
      return values.data();
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "compute_cpu: no memory for tensor %s",
                        std::string(tensor.name).c_str());
    }
  }

  Result<const std::int32_t*> import_ints(const TensorView& tensor) noexcept override {
    if (tensor.type != DType::i32) {
      return make_error(Errc::incompatible, "compute_cpu: tensor %s: want I32",
                        std::string(tensor.name).c_str());
    }
    try {
      EBB_TRY(check_room(tensor.n_bytes, std::string(tensor.name).c_str()));
      std::vector<std::int32_t>& values = ints_.emplace_back(tensor.n_bytes / 4);
      std::memcpy(values.data(), tensor.data, values.size() * 4);
      copied_ += values.size() * 4;
      return values.data();
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "compute_cpu: no memory for tensor %s",
                        std::string(tensor.name).c_str());
    }
  }

  Status write(void* target, const void* source, std::uint64_t bytes) noexcept override {
    if (!is_rehearsal_ && bytes > 0) std::memcpy(target, source, bytes);  // no bytes: no pointers
    return ok_status();
  }

  Status read(void* target, const void* source, std::uint64_t bytes) noexcept override {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return ok_status();
  }

  Status copy(void* target, const void* source, std::uint64_t bytes) noexcept override {
    return write(target, source, bytes);
  }

  Result<Ops*> begin_plan() noexcept override {
    if (recorder_)
      return make_error(Errc::internal, "compute_cpu: a plan is being recorded already");
    recorder_.emplace(settings_.precision, room_);
    return static_cast<Ops*>(&*recorder_);
  }

  Result<PlanId> end_plan() noexcept override {
    if (!recorder_) return make_error(Errc::internal, "compute_cpu: no plan is being recorded");
    try {
      Plan plan{recorder_->take(), {}};
      recorder_.reset();
      std::size_t scratch = 64;
      for (const auto& phase : plan.phases) scratch = std::max(scratch, phase->scratch_bytes());
      pool_.reserve_scratch(scratch);
      if (settings_.profile) plan.seconds.resize(plan.phases.size());
      plans_.push_back(std::move(plan));
      return PlanId{static_cast<std::int32_t>(plans_.size() - 1)};
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "compute_cpu: no memory for a plan's scratch");
    }
  }

  Status start(PlanId id) noexcept override {
    EBB_ASSERT(id.v >= 0 && static_cast<std::size_t>(id.v) < plans_.size());
    Plan& plan = plans_[static_cast<std::size_t>(id.v)];
    pool_.run(plan.phases, plan.seconds);
    return ok_status();
  }
  Status wait() noexcept override { return ok_status(); }
  // The workers are as many as the CPUs: beside the steps there is no room.
  Status start_beside(PlanId id) noexcept override { return start(id); }
  Status wait_beside(PlanId) noexcept override { return ok_status(); }

  ComputeInfo info() const noexcept override {
    ComputeInfo info;
    info.device = "CPU, " + std::to_string(pool_.n_workers()) + " threads";
    info.bytes_allocated = allocated_ + copied_;
    info.bytes_limit = settings_.memory_limit;
    info.bytes_host = allocated_host_;
    info.bytes_borrowed = borrowed_;
    info.precision = settings_.precision == Precision::exact ? "exact" : "fast";
    return info;
  }

  std::int64_t launches(PlanId id) const noexcept override {
    return static_cast<std::int64_t>(plans_[static_cast<std::size_t>(id.v)].phases.size());
  }

  Result<double> measure_read_rate() noexcept override {
    const std::uint64_t used = allocated_ + copied_;
    const std::uint64_t limit = settings_.memory_limit;
    if (limit > 0 && (used > limit || kReadRateBytes > limit - used)) {
      return make_error(Errc::out_of_memory,
                        "compute_cpu: memory_limit leaves no %llu bytes to measure reading with",
                        static_cast<unsigned long long>(kReadRateBytes));
    }
    try {
      return cpu::measure_read_rate(pool_);
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "compute_cpu: no memory to measure reading with");
    }
  }

 private:
  Status check_room(std::uint64_t bytes, const char* what) const {
    const std::uint64_t used = allocated_ + copied_;
    // Pages are taken as they are touched, so the system would promise any figure.
    const std::uint64_t limit = settings_.memory_limit > 0
                                    ? settings_.memory_limit
                                    : static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                          static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    if (is_rehearsal_ || (bytes <= limit && used <= limit - bytes)) return ok_status();
    return make_error(Errc::out_of_memory,
                      "compute_cpu: %s needs %llu bytes, %llu are in use and %s %llu", what,
                      static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(used),
                      settings_.memory_limit > 0 ? "memory_limit is" : "the machine has",
                      static_cast<unsigned long long>(limit));
  }

  Result<std::byte*> map(std::uint64_t bytes, const char* what) {
    // Of a rehearsal only the addresses are used.
    void* const data = mmap(nullptr, bytes, is_rehearsal_ ? PROT_NONE : PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return make_error(Errc::out_of_memory, "compute_cpu: no %llu bytes for %s",
                        static_cast<unsigned long long>(bytes), what);
    }
    try {
      mappings_.emplace_back(static_cast<std::byte*>(data), bytes);
    } catch (const std::bad_alloc&) {
      munmap(data, bytes);
      return make_error(Errc::out_of_memory, "compute_cpu: no memory left");
    }
    if (settings_.poison && !is_rehearsal_) std::memset(data, 0xFF, bytes);
    return static_cast<std::byte*>(data);
  }

  void log_profile() {
    std::map<std::string, double> by_name;
    double total = 0;
    for (const Plan& plan : plans_) {
      for (std::size_t i = 0; i < plan.seconds.size(); ++i) {
        by_name[plan.phases[i]->name()] += plan.seconds[i];
        total += plan.seconds[i];
      }
    }
    std::vector<std::pair<std::string, double>> rows(by_name.begin(), by_name.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
    for (const auto& [name, seconds] : rows) {
      char line[128];
      std::snprintf(line, sizeof(line), "%-24s %9.3f ms  %5.1f %%", name.c_str(), seconds * 1e3,
                    total > 0 ? seconds / total * 100 : 0);
      host_.log(LogLevel::info, line);
    }
  }

  Host& host_;
  const Settings settings_;
  const bool is_rehearsal_;
  WorkerPool pool_;
  std::vector<std::pair<std::byte*, std::uint64_t>> mappings_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<std::int32_t>> ints_;
  std::uint64_t allocated_ = 0;
  std::uint64_t copied_ = 0;
  std::uint64_t allocated_host_ = 0;
  std::uint64_t borrowed_ = 0;  // weights in the loader's memory
  const std::shared_ptr<ActRoom> room_ = std::make_shared<ActRoom>();
  std::optional<Recorder> recorder_;
  std::vector<Plan> plans_;
};

}  // namespace
}  // namespace ebb::cpu

EBB_MODULE(ebb::Compute, ebb::cpu::ComputeCpu, "compute_cpu", EBB_VERSION);
