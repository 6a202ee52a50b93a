#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace ebb {

/// Sizes that are fixed when a session opens; every buffer is sized from them.
struct SessionShape {
  std::int64_t max_context = 0;  ///< tokens per sequence
  std::int32_t max_open = 1;     ///< sequences that are open, holding state, at one time
  std::int32_t max_decode = 1;   ///< of those, sequences that decode in one step
  std::int32_t max_rows = 1;     ///< rows of one step: prefill_chunk or the decode batch
  std::int32_t max_out = 1;      ///< rows of one step whose logits are wanted
  std::int32_t max_kept = 0;     ///< rows whose hidden vectors are kept for scorers
};

/// What changes from step to step: one struct in compute memory, so that a step can be planned once
/// and replayed. A row is one token of one sequence. The rows of a sequence stand together, in
/// ascending consecutive positions (a run); several runs make a batch.
struct StepView {
  const std::int32_t* n_rows = nullptr;     ///< [1]
  const std::int32_t* n_out = nullptr;      ///< [1]
  const std::int32_t* token = nullptr;      ///< [max_rows] token id
  const std::int32_t* pos = nullptr;        ///< [max_rows] position in its sequence, from 0
  const std::int32_t* seq = nullptr;        ///< [max_rows] sequence, 0..max_open-1
  const std::int32_t* run_start = nullptr;  ///< [max_rows] first row of the row's run
  const std::int32_t* out_row = nullptr;    ///< [max_out] rows whose logits are wanted
  const std::int32_t* keep = nullptr;  ///< [max_rows] where the row's vectors are kept; -1: nowhere
  std::int32_t max_rows = 0;
  std::int32_t max_out = 0;
};

/// Carves the buffers of a session out of one allocation. The same carving code runs twice: without
/// a base it counts, with one it hands out pointers; so the figure that is asked for is the figure
/// that is used. Pointers of a counting pass must not be followed.
class Arena {
 public:
  static constexpr std::uint64_t kAlign = 256;

  explicit Arena(std::byte* base = nullptr) noexcept
      : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  /// `count` values of T, aligned to kAlign; `part` names the purpose in plans ("kv rows").
  template <class T>
  T* take(std::int64_t count, const char* part) {
    const std::uint64_t bytes =
        (static_cast<std::uint64_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    T* const place = reinterpret_cast<T*>(base_ + used_);
    used_ += bytes;
    for (auto& [name, sum] : parts_) {
      if (name == part) {
        sum += bytes;
        return place;
      }
    }
    parts_.emplace_back(part, bytes);
    return place;
  }

  std::uint64_t bytes() const noexcept { return used_; }
  /// Bytes by part, in order of first use.
  const std::vector<std::pair<std::string, std::uint64_t>>& parts() const noexcept {
    return parts_;
  }

 private:
  std::uintptr_t base_;
  std::uint64_t used_ = 0;
  std::vector<std::pair<std::string, std::uint64_t>> parts_;
};

}  // namespace ebb
