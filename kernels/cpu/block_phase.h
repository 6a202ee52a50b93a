#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/phase.h"

namespace ebb::cpu {

/// A phase over independent items, `items_per_row` for each row of the step, done in blocks of
/// consecutive items. `body(args, first, last, scratch)` computes the items [first, last).
template <class Args>
class BlockPhase final : public Phase {
 public:
  using Body = void (*)(const Args& args, std::int64_t first, std::int64_t last,
                        std::byte* scratch);

  BlockPhase(const char* name, const Args& args, const std::int32_t* n_rows,
             std::int64_t items_per_row, std::int64_t items_per_task, std::size_t scratch_bytes,
             Body body)
      : name_(name),
        args_(args),
        n_rows_(n_rows),
        items_per_row_(items_per_row),
        items_per_task_(items_per_task < 1 ? 1 : items_per_task),
        scratch_bytes_(scratch_bytes),
        body_(body) {}

  std::int64_t n_tasks() const noexcept override {
    return (*n_rows_ * items_per_row_ + items_per_task_ - 1) / items_per_task_;
  }
  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    const std::int64_t first = task * items_per_task_;
    const std::int64_t last = std::min(first + items_per_task_, *n_rows_ * items_per_row_);
    body_(args_, first, last, scratch);
  }
  std::size_t scratch_bytes() const noexcept override { return scratch_bytes_; }
  const char* name() const noexcept override { return name_; }

 private:
  const char* name_;
  Args args_;
  const std::int32_t* n_rows_;
  std::int64_t items_per_row_;
  std::int64_t items_per_task_;
  std::size_t scratch_bytes_;
  Body body_;
};

/// Items of `values` floats that make a task worth handing out: about 16K values.
inline std::int64_t items_for_values(std::int64_t values) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(values, 1));
}

}  // namespace ebb::cpu
