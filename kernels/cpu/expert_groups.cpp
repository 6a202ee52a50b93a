#include "kernels/cpu/expert_groups.h"

#include <algorithm>

#include "kernels/cpu/product.h"

namespace ebb::cpu {

ExpertGroups::ExpertGroups(std::int32_t max_rows, std::int32_t n_used, std::int32_t n_experts)
    : n_used_(n_used),
      n_experts_(n_experts),
      begin_(static_cast<std::size_t>(n_experts) + 2),
      entries_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(n_used + 1)) {
  // A piece per expert that occurs, and one more for each time that an expert's entries overflow.
  const std::size_t most = std::min(entries_.size(), static_cast<std::size_t>(n_experts) + 1);
  pieces_.resize(most + entries_.size() / kMaxActRows);
}

void ExpertGroups::fill(std::int32_t n_rows, const std::int32_t* ids, std::int64_t d,
                        std::int64_t f) {
  const std::int32_t n_slots = n_used_ + 1;
  const auto expert_of = [&](std::int32_t entry) {
    const std::int32_t slot = entry % n_slots;
    if (slot == n_used_) return n_experts_;
    const std::int32_t id = ids[entry / n_slots * n_used_ + slot];
    return id >= 0 && id < n_experts_ ? id : -1;
  };

  std::fill(begin_.begin(), begin_.end(), 0);
  for (std::int32_t entry = 0; entry < n_rows * n_slots; ++entry) {
    const std::int32_t expert = expert_of(entry);
    if (expert >= 0) ++begin_[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
  n_entries_ = static_cast<std::size_t>(begin_.back());

  n_pieces_ = 0;
  std::int64_t gate_tasks = 0;
  std::int64_t down_tasks = 0;
  for (std::int32_t expert = 0; expert <= n_experts_; ++expert) {
    const std::int32_t end = begin_[static_cast<std::size_t>(expert) + 1];
    for (std::int32_t first = begin_[static_cast<std::size_t>(expert)]; first < end;
         first += kMaxActRows) {
      ExpertPiece& piece = pieces_[n_pieces_++];
      piece.expert = expert;
      piece.first = first;
      piece.n = std::min(kMaxActRows, end - first);
      piece.gate_block = rows_per_task(d, piece.n);
      piece.down_block = rows_per_task(f, piece.n);
      piece.gate_tasks_end = gate_tasks += (f + piece.gate_block - 1) / piece.gate_block;
      piece.down_tasks_end = down_tasks += (d + piece.down_block - 1) / piece.down_block;
    }
  }

  // Placing the entries moves each beginning to its end, which is the next one's beginning.
  for (std::int32_t entry = 0; entry < n_rows * n_slots; ++entry) {
    const std::int32_t expert = expert_of(entry);
    if (expert < 0) continue;
    entries_[static_cast<std::size_t>(begin_[static_cast<std::size_t>(expert)]++)] = entry;
  }
}

}  // namespace ebb::cpu
