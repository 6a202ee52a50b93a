#pragma once

#include "core/api/attention.h"

namespace ebb::test {

/// An attention module that keeps what every layer hands on, for tests to read.
class AttentionTap : public Attention {
 public:
  const float* outputs = nullptr;  ///< [n_layers, max_rows, width] AttentionIo::out; compute memory
  std::int64_t width = 0;          ///< n_heads * d_head
  std::int64_t max_rows = 0;
  std::int32_t n_layers = 0;
};

}  // namespace ebb::test
