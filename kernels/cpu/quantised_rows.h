#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/product.h"

namespace ebb::cpu {

/// Memory for rounded activations. The ops of a plan run one after another and the plans of a
/// session never at once, so all of them may use the same room: it is as large as the largest op
/// wants. Grown at plan time only.
class ActRoom {
 public:
  void reserve(std::int64_t n_tiles) {
    if (n_tiles <= n_tiles_) return;
    tiles_.reset();  // nothing in it outlives an op: the old room may go first
    n_tiles_ = 0;
    tiles_ = std::make_unique<ActTile[]>(static_cast<std::size_t>(n_tiles));
    n_tiles_ = n_tiles;
  }
  ActTile* tiles() const { return tiles_.get(); }

 private:
  std::int64_t n_tiles_ = 0;
  std::unique_ptr<ActTile[]> tiles_;
};

/// Activation rows rounded to int8, in a room from tile `first` on; shared by the phase that fills
/// them and the phases that multiply.
class QuantisedRows {
 public:
  QuantisedRows(std::shared_ptr<ActRoom> room, std::int64_t first, std::int64_t max_rows,
                std::int64_t n_in)
      : room_(std::move(room)),
        first_(first),
        tiles_per_row_(tiles_of(n_in)),
        end_(first + max_rows * tiles_per_row_) {
    room_->reserve(end_);
  }

  ActTile* row(std::int64_t row) const { return room_->tiles() + first_ + row * tiles_per_row_; }
  /// The first tile behind the rows.
  std::int64_t end() const { return end_; }

 private:
  std::shared_ptr<ActRoom> room_;
  std::int64_t first_;
  std::int64_t tiles_per_row_;
  std::int64_t end_;
};

}  // namespace ebb::cpu
