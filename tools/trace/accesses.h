#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ebb::trace {

/// Everything that one sequence asked of its slots from its opening to its end, kept in memory to
/// look into the future: 8 bytes for each selection.
class Accesses {
 public:
  Accesses(std::int32_t n_layers, std::int64_t n_chunks)
      : n_layers_(n_layers), n_chunks_(n_chunks) {}

  void begin_step() { ++n_steps_; }
  /// Chunks [first, end) are completed in every layer before this step's selections.
  void born(std::int32_t first, std::int32_t end);
  /// Distinct chunks that the step selects in a layer; once per step and layer.
  void selected(std::int32_t layer, std::span<const std::int32_t> chunks);

  std::int32_t n_layers() const { return n_layers_; }
  std::int64_t n_chunks() const { return n_chunks_; }
  std::uint64_t n_selected() const { return n_selected_; }

 private:
  friend class Bound;
  /// keys_[begin, the next group's begin) are accessed together.
  struct Group {
    std::uint64_t begin;
    std::uint32_t step;
    bool is_born;  ///< of all layers: chunks [first, end) stand in `first` and `end`
    std::int32_t first, end;
  };

  std::int32_t n_layers_;
  std::int64_t n_chunks_;
  std::uint32_t n_steps_ = 0;
  std::uint64_t n_selected_ = 0;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> keys_;  // layer * n_chunks + chunk
};

/// The fewest misses that any policy can have over a sequence's accesses, knowing all of them
/// beforehand.
class Bound {
 public:
  explicit Bound(const Accesses& accesses);

  /// Every selection has to be in slots when its layer is attended: what has to go is what is
  /// needed again last (Belady), which is optimal for sets as well, since all cost the same.
  std::uint64_t demand(std::int64_t slots_per_layer) const;
  /// Misses are read where they lie, and what is learned from step t has effect from step t + 2 on.
  /// The use of a chunk at step j after one at step i is a hit only if a slot holds it in the steps
  /// min(i + 2, j)..j, one completed in step b in the steps b..j: the largest set of these
  /// intervals that fits into the slots, found by giving up the one that ends last.
  std::uint64_t zero_copy(std::int64_t slots_per_layer) const;

 private:
  static constexpr std::uint32_t kNever = 0xffffffff;

  const Accesses& accesses_;
  std::vector<std::uint32_t> next_;  // by key of a group: the group that selects it next
  // Births are known by layer and chunk, for each the group that selects it first.
  std::vector<std::uint32_t> first_;
};

}  // namespace ebb::trace
