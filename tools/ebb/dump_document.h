#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "kernels/ops/scoring.h"

namespace ebb::cli {

/// Which tokens of a document are written down, and how.
struct DumpSettings {
  std::int64_t every = 1;   ///< tokens at positions divisible by this,
  std::int64_t last = 128;  ///< and so many at the end
  bool bf16 = false;        ///< hidden vectors and index queries rounded to bf16

  bool takes(std::int64_t pos, std::int64_t n_tokens) const {
    return pos % every == 0 || pos >= n_tokens - last;
  }
};

/// A decoder layer with index keys, and what the engine keeps of it.
struct DumpLayer {
  std::int32_t layer = 0;
  std::int32_t ordinal = 0;  ///< among the model's layers with index keys
  ScoredLayer view;
};

struct DumpedDocument {
  std::int64_t n_tokens = 0, n_rows = 0, n_chunks = 0;
  bool is_whole = false;  ///< false: stopped, and nothing was written
};

/// Feeds the document and writes `path`: positions [rows] i64, tokens [n] i32; per layer L of the
/// rows hidden_layer_L [rows, d_model], index_q_layer_L [rows, n_heads, d], index_weight_layer_L
/// [rows, n_heads] f32; of all whole chunks keys_layer_L [n_chunks, d] f32, decoded. Memory does
/// not grow with the document. `progress` hears the tokens fed, and stops by false.
Result<DumpedDocument> dump_document(Engine& engine, std::span<const DumpLayer> layers,
                                     const DumpSettings& settings, const std::string& id,
                                     std::span<const std::int32_t> tokens, const std::string& path,
                                     const std::function<bool(std::int64_t)>& progress);

}  // namespace ebb::cli
