#pragma once

#include <cstdint>
#include <span>

#include "core/api/compute.h"
#include "core/api/session.h"

namespace ebb {

struct ScoredLayer;  // kernels/ops/scoring.h

/// What a decoder layer hands to its attention and gets back; compute memory, f32.
struct AttentionIo {
  const float* x = nullptr;         ///< [rows, d_model] the layer's normed input
  const float* q_latent = nullptr;  ///< [rows, q_rank] normed query latent, shared with the indexer
  float* q = nullptr;         ///< [rows, n_heads, d_head] queries before norm and rope; overwritten
  const float* kv = nullptr;  ///< [rows, d_head] key-value vector before its norm
  float* out = nullptr;       ///< [rows, n_heads, d_head] out, rotated back
};

/// The chunk rows that may be staged: those of `n_layers` layers that are alike.
struct StagedShape {
  std::int32_t n_layers = 0;
  std::int32_t ratio = 1;  ///< tokens of a chunk
  std::int32_t top_k = 0;  ///< chunks that one row of a step selects, at most
  std::int64_t row_bytes = 0;
};

/// Everything between the query/key-value projections and the output projection of every layer:
/// window, chunks, index, selection, softmax. Holds the sequences' state.
/// A sequence needs no reset: what a row may read is decided by its position alone.
class Attention : public Module {
 public:
  static constexpr const char* kKind = "attention";

  /// What Host::staging() is for, if it is there when carve is called.   Thread: [startup]
  virtual StagedShape staged(const SessionShape& shape) const noexcept = 0;
  /// Before carve: keeps vectors of these layers (-1: all with index keys) for scorers, as
  /// StepView::keep says; `queries`: the indexer's too. Errors: a layer without.  Thread: [startup]
  virtual Status keep(std::span<const std::int32_t> layers, bool queries) noexcept = 0;
  /// Errors: a layer without index keys.
  virtual Status scored_layer(std::int32_t layer, ScoredLayer& out) const noexcept = 0;
  /// Imports this module's weights; everything was checked in create. With `qat_simulation`, rounds
  /// rows, index keys and index queries as in training.   Source: 3.9   Thread: [startup]
  virtual Status load(bool qat_simulation) noexcept = 0;
  /// Takes state and scratch for `shape` from the arena (see Arena).   Thread: [startup]
  virtual void carve(Arena& arena, const SessionShape& shape) noexcept = 0;
  /// Records what is done once per step, before the first layer.   Thread: [startup]
  virtual Status plan_step(Ops& ops, const StepView& step) noexcept = 0;
  /// Records one layer.   Thread: [startup]
  virtual Status plan_layer(Ops& ops, const StepView& step, std::int32_t layer,
                            const AttentionIo& io) noexcept = 0;

  /// Bytes of stored rows and index keys that one row at position `pos` reads, over all layers.
  virtual std::int64_t bytes_read(std::int64_t pos) const noexcept = 0;
  /// Fills a sequence's state as if n_tokens had been fed, with random rows and keys of the size
  /// that a model's have: to measure long contexts without the hours it takes to feed them.
  /// Thread: [decode]   Errors: device.
  virtual Status fill(std::int32_t sequence, std::int64_t n_tokens,
                      std::uint64_t seed) noexcept = 0;
  /// Gives sequence `to` the state of `from`, which holds n_tokens: bit for bit what feeding them
  /// would have left.   Thread: [decode]   Errors: device.
  virtual Status copy(std::int32_t from, std::int32_t to, std::int64_t n_tokens) noexcept = 0;
};

}  // namespace ebb
