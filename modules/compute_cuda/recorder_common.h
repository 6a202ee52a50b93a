#pragma once

#include <new>
#include <optional>

#include "kernels/cpu/check.h"
#include "modules/compute_cuda/recorder.h"

// What the files of the recorder share.

namespace ebb::cuda {

inline constexpr std::int64_t kMaxGridRows = 65535;  // blocks along y and z

inline Status check_rows(const char* op, std::int64_t max_rows) {
  return cpu::check_range(op, "max_rows", max_rows, 1, kMaxGridRows);
}

template <class T>
const T* address(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

template <class Record>
Status guarded(Record record) noexcept {
  try {
    return record();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "compute_cuda: no host memory for a plan");
  }
}

template <class Record>
Status Recorder::record(Record op) noexcept {
  return guarded([&]() -> Status {
    flush_norm();
    return op();
  });
}

}  // namespace ebb::cuda
