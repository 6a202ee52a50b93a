#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ebb::cpu {

/// Up to kMaxActRows entries that meet the same expert.
struct ExpertPiece {
  std::int32_t expert = 0;          ///< n_experts stands for the shared expert
  std::int32_t n = 0;               ///< entries
  std::int32_t first = 0;           ///< first entry, index into ExpertGroups::entries()
  std::int64_t gate_block = 0;      ///< weight rows per task of gate and up
  std::int64_t gate_tasks_end = 0;  ///< tasks of this piece and all before it
  std::int64_t down_block = 0;      ///< the same for down
  std::int64_t down_tasks_end = 0;
};

/// The (row, slot) pairs of a step sorted by expert, so that an expert's weights are unpacked once
/// for all its rows. Slot n_used of every row is the shared expert. Filled by one task of a step
/// and read by the phases after it; sized at plan time.
class ExpertGroups {
 public:
  ExpertGroups(std::int32_t max_rows, std::int32_t n_used, std::int32_t n_experts);

  /// Sorts by counting: entries of one expert stay in the order of rows and slots. Ids outside the
  /// experts get no entry. `d` and `f` are the widths that tasks are cut by.
  void fill(std::int32_t n_rows, const std::int32_t* ids, std::int64_t d, std::int64_t f);

  /// row * (n_used + 1) + slot, piece by piece.
  std::span<const std::int32_t> entries() const { return {entries_.data(), n_entries_}; }
  std::span<const ExpertPiece> pieces() const { return {pieces_.data(), n_pieces_}; }

 private:
  std::int32_t n_used_;
  std::int32_t n_experts_;
  std::vector<std::int32_t> begin_;    ///< [n_experts + 2] where an expert's entries begin
  std::vector<std::int32_t> entries_;  ///< [max_rows * (n_used + 1)]
  std::vector<ExpertPiece> pieces_;
  std::size_t n_entries_ = 0;
  std::size_t n_pieces_ = 0;
};

}  // namespace ebb::cpu
