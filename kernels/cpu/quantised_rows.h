#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/product.h"

namespace ebb::cpu {

/// Room for activation rows rounded to int8, made at plan time and shared by the phase that fills
/// it and the phases that multiply.
class QuantisedRows {
 public:
  QuantisedRows(std::int64_t max_rows, std::int64_t n_in)
      : tiles_per_row_(tiles_of(n_in)),
        tiles_(std::make_unique<ActTile[]>(static_cast<std::size_t>(max_rows * tiles_per_row_))) {}

  ActTile* row(std::int64_t row) const { return tiles_.get() + row * tiles_per_row_; }

 private:
  std::int64_t tiles_per_row_;
  std::unique_ptr<ActTile[]> tiles_;
};

}  // namespace ebb::cpu
