#pragma once

#include <cstdint>

#include "core/api/compute.h"
#include "core/api/loader.h"
#include "core/api/session.h"
#include "core/api/staging.h"
#include "kernels/ops/attention.h"
#include "modules/attention_csa/compressor.h"
#include "modules/attention_csa/random_state.h"
#include "modules/deepseek4/config.h"

namespace ebb {

/// How rows are stored: those of the window and of chunks, and index keys.
struct RowFormats {
  RowFormat kv = RowFormat::f32;
  RowFormat index = RowFormat::f32;
};

/// A layer's vectors that are kept for scorers, in compute memory; nullptr where none are.
struct KeptVectors {
  float* hidden = nullptr;        ///< [max_kept, d_model]
  float* index_q = nullptr;       ///< [max_kept, n_index_heads, d_index]
  float* index_weight = nullptr;  ///< [max_kept, n_index_heads]
};

/// What a layer has of its own: weights and, in a session, the rows of every sequence. All of it is
/// in compute memory, the chunk rows of staged layers where staging says; none is owned.
struct Layer {
  std::int32_t ratio = 0;
  const float* kv_norm = nullptr;  ///< [d_head]
  const float* sink = nullptr;     ///< [n_heads]
  RowStore ring;
  Compressor chunks;
  // Ratio 4 only.
  std::int32_t ordinal = -1;  ///< among the layers of ratio 4
  std::int32_t staged = -1;   ///< number among the staged layers
  SlotStore slots;            ///< of chunks.rows
  Compressor index;
  Weight index_query;    ///< [n_index_heads * d_index, q_rank]
  Weight index_weight;   ///< [n_index_heads, d_model]
  bool is_kept = false;  ///< for scorers
  KeptVectors kept;

  /// Imports the tensors of layer `number` of the model.   Thread: [startup]
  Status load(Compute& compute, const Loader& loader, std::int32_t number);
  /// Takes the rows; those of chunks from `staging` if the layer is staged. With `keeps_queries`, a
  /// kept layer's index queries are kept too.   Thread: [startup]
  void carve(Arena& arena, const SessionShape& shape, const deepseek4::Config& config,
             RowFormats formats, Staging* staging, bool keeps_queries);
  /// Random rows as n_tokens tokens leave them. May throw std::bad_alloc.
  Status fill(RandomState& random, const deepseek4::Config& config, std::int32_t sequence,
              std::int64_t n_tokens) const;
  /// Copies the rows that n_tokens tokens leave. They stand where their positions say, in every
  /// sequence alike; slots are staging's own.
  Status copy(Compute& compute, std::int32_t from, std::int32_t to, std::int64_t n_tokens) const;
  /// Bytes of rows that attention reads for the token at `pos`.
  std::int64_t bytes_read(std::int64_t pos, std::int64_t window, std::int64_t top_k) const;

 private:
  void carve_staged(Arena& arena, RowFormat format, Staging& staging);
  void carve_kept(Arena& arena, std::int64_t n, const deepseek4::Config& config,
                  bool keeps_queries);
};

}  // namespace ebb
