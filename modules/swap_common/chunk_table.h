#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "modules/swap_common/policy.h"

namespace ebb {

/// Gives entries 0..n_entries-1 to the chunks of one sequence that a policy knows something about,
/// so that its memory follows the slots and not the context: a chunk costs four bytes here.
/// Only resize() allocates; all the rest but clear() is O(1).
class ChunkTable {
 public:
  static constexpr std::int32_t kNone = -1;

  void resize(std::int32_t n_layers, std::int64_t n_chunks, std::int32_t n_entries) {
    n_chunks_ = n_chunks;
    entry_.assign(static_cast<std::size_t>(n_layers) * static_cast<std::size_t>(n_chunks), kNone);
    chunk_.assign(static_cast<std::size_t>(n_entries), ChunkId{kNone, kNone});
    free_.reserve(static_cast<std::size_t>(n_entries));
    clear();
  }
  void clear() {
    for (ChunkId& chunk : chunk_) {
      if (chunk.layer != kNone) entry_[index(chunk)] = kNone;
      chunk = {kNone, kNone};
    }
    free_.clear();
    for (auto entry = static_cast<std::int32_t>(chunk_.size()); entry-- > 0;) {
      free_.push_back(entry);
    }
  }

  std::int32_t find(ChunkId chunk) const { return entry_[index(chunk)]; }
  /// An entry for a chunk that has none; kNone if all are taken.
  std::int32_t take(ChunkId chunk) {
    if (free_.empty()) return kNone;
    const std::int32_t entry = free_.back();
    free_.pop_back();
    entry_[index(chunk)] = entry;
    chunk_[static_cast<std::size_t>(entry)] = chunk;
    return entry;
  }
  void give_back(std::int32_t entry) {
    ChunkId& chunk = chunk_[static_cast<std::size_t>(entry)];
    entry_[index(chunk)] = kNone;
    chunk = {kNone, kNone};
    free_.push_back(entry);
  }
  ChunkId chunk(std::int32_t entry) const { return chunk_[static_cast<std::size_t>(entry)]; }
  std::int32_t n_entries() const { return static_cast<std::int32_t>(chunk_.size()); }
  bool full() const { return free_.empty(); }

 private:
  std::size_t index(ChunkId chunk) const {
    return static_cast<std::size_t>(chunk.layer) * static_cast<std::size_t>(n_chunks_) +
           static_cast<std::size_t>(chunk.chunk);
  }

  std::int64_t n_chunks_ = 0;
  std::vector<std::int32_t> entry_;  // [n_layers, n_chunks]
  std::vector<ChunkId> chunk_;       // by entry
  std::vector<std::int32_t> free_;
};

}  // namespace ebb
