#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/api/module.h"
#include "core/api/types.h"

namespace ebb {

class Ops;

struct PlanId {
  std::int32_t v = -1;
};

struct ComputeInfo {
  std::string device;                 ///< e.g. "CPU, 2 threads"
  std::uint64_t bytes_allocated = 0;  ///< by allocate() and imports that had to copy
  std::uint64_t bytes_limit = 0;      ///< [compute] memory_limit; 0 = none
  std::uint64_t bytes_taken = 0;      ///< as the driver counts since create; 0 = it does not count
  std::uint64_t bytes_host = 0;       ///< by allocate_host()
  std::uint64_t bytes_borrowed = 0;   ///< of imported tensors that stay where the loader has them
  std::uint64_t bytes_present = 0;    ///< free at create; 0 = the device's memory is the host's
  std::string precision;              ///< how products are computed, e.g. "fast"
};

/// Memory and execution of one device. A plan is recorded once and run many times; running
/// allocates nothing, logs nothing and decides nothing on the host: what changes per step is read
/// from the step struct in compute memory.
class Compute : public Module {
 public:
  static constexpr const char* kKind = "compute";

  /// Zeroed memory of this device, aligned to Arena::kAlign; owned by the module.
  /// Errors: out_of_memory with the figure asked for and the one allowed.   Thread: [startup]
  virtual Result<std::byte*> allocate(std::uint64_t bytes, const char* what) noexcept = 0;

  /// Zeroed host memory that plans read and write where it lies; the caller may too, while none of
  /// them runs. Otherwise as allocate().   Thread: [startup]
  virtual Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept = 0;

  /// Makes a stored tensor usable by ops: ne {in, out} or {in, out, experts}. On the CPU the bytes
  /// stay where the loader has them, which must outlive this module's plans.   Thread: [startup]
  virtual Result<Weight> import_matrix(const TensorView& tensor) noexcept = 0;
  /// All values of a F32, F16 or BF16 tensor as f32, in order.
  virtual Result<const float*> import_floats(const TensorView& tensor) noexcept = 0;
  virtual Result<const std::int32_t*> import_ints(const TensorView& tensor) noexcept = 0;

  /// Host to compute memory, ordered before the next run. Source may be reused after the call.
  virtual Status write(void* target, const void* source, std::uint64_t bytes) noexcept = 0;
  /// Compute to host memory, after every run so far.
  virtual Status read(void* target, const void* source, std::uint64_t bytes) noexcept = 0;

  /// From allocate()d or allocate_host()ed memory to the same kind, after every run so far and
  /// before the next. The places do not overlap.
  virtual Status copy(void* target, const void* source, std::uint64_t bytes) noexcept = 0;

  /// Starts a plan; the recorder is valid until end_plan.   Thread: [startup]
  virtual Result<Ops*> begin_plan() noexcept = 0;
  virtual Result<PlanId> end_plan() noexcept = 0;
  /// Starts a plan, to run after those before it; read() and wait() wait for it.  Thread: [decode]
  /// Errors: device; the session is over then.
  virtual Status start(PlanId plan) noexcept = 0;
  /// Returns when all that was started is done.
  virtual Status wait() noexcept = 0;
  /// Starts a plan that runs after those before it and beside those that follow: neither it nor
  /// they may write what the other uses. Nothing but wait_beside() waits for it; once at a time per
  /// plan.
  virtual Status start_beside(PlanId plan) noexcept = 0;
  /// Returns when that plan's last run beside is over.
  virtual Status wait_beside(PlanId plan) noexcept = 0;

  virtual ComputeInfo info() const noexcept = 0;
  /// What one run of a plan is made of: nodes of a graph, phases of a pool.
  virtual std::int64_t launches(PlanId plan) const noexcept = 0;
  /// Bytes per second at which this device reads memory that no cache holds, measured by the call
  /// on a buffer of its own, which it gives back.   Thread: [decode]
  /// Errors: out_of_memory if there is no room for the buffer; device.
  virtual Result<double> measure_read_rate() noexcept = 0;
};

}  // namespace ebb
