#pragma once

#include <cstdint>

#include "kernels/hd.h"

// Which rows a token may read.   Source: model reference 3.5.

namespace ebb {

/// Chunks that the token at `pos` sees: those that have ended at or before it.
EBB_HD inline std::int32_t visible_chunks(std::int32_t pos, std::int32_t ratio) {
  return (pos + 1) / ratio;
}

/// True if the token at `pos` is the last of its chunk.
EBB_HD inline bool ends_chunk(std::int32_t pos, std::int32_t ratio) {
  return (pos + 1) % ratio == 0;
}

/// First position in the window of the token at `pos`, the token itself included in `window`.
EBB_HD inline std::int32_t window_begin(std::int32_t pos, std::int32_t window) {
  return pos + 1 > window ? pos + 1 - window : 0;
}

/// Row of a ring that holds position `pos`.
EBB_HD inline std::int64_t ring_index(std::int32_t pos, std::int64_t n_rows) {
  return pos % n_rows;
}

}  // namespace ebb
