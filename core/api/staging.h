#pragma once

#include <cstddef>
#include <cstdint>

#include "core/api/session.h"

namespace ebb {

/// How attention reaches a chunk's row that has no slot.
///   resident   every row is in compute memory; there is no staging
///   demand     before attention, every selected row is brought into a slot
///   zero_copy  attention reads it from the host pool; slots follow between steps
enum class StagingMode : std::int32_t { resident, demand, zero_copy };

/// Where the chunk rows of one layer are. Chunk c of sequence s has row c in the sequence's part of
/// the pool, once it is complete and for as long as the sequence lives; it is in slot
/// slot_of[s * n_chunks + c] of the sequence's slots too, if that is not negative.
struct StagedRows {
  std::byte* pool = nullptr;              ///< host memory that the device reads and writes
  std::byte* slots = nullptr;             ///< compute memory, shared by all staged layers
  const std::int32_t* slot_of = nullptr;  ///< compute memory [max_open, n_chunks]
  std::int64_t row_bytes = 0;
  std::int64_t n_chunks = 0;  ///< rows per sequence in the pool
  std::int64_t n_slots = 0;   ///< rows per sequence in the slots
};

/// One change of a slot table, and the row that has to be in place before it.
struct SlotMove {
  std::int32_t* entry = nullptr;    ///< of a slot_of table
  const std::byte* from = nullptr;  ///< row in the pool to copy; nullptr: the row comes later
  std::byte* to = nullptr;
  std::int32_t value = -1;  ///< the new entry
  std::int32_t row_bytes = 0;
};

/// Moves in host memory that the device reads; no two have the same entry or the same `to`.
struct SlotMoves {
  const std::int32_t* count = nullptr;  ///< [1]
  const SlotMove* moves = nullptr;
  std::int32_t max_moves = 0;
};

/// Host memory that takes one step's selections of one layer.
struct SelectionLog {
  std::int32_t* ids = nullptr;    ///< [max_log_rows, top_k]
  std::int32_t* count = nullptr;  ///< [max_log_rows]
};

/// Keeps chunk rows in the host pool and the ones in use in slots. The attention module asks for it
/// by Host::staging() and records what it says; the core drives it between steps (swap.h).
/// Layers are counted among the staged ones (StagedShape).
class Staging {
 public:
  virtual ~Staging() = default;

  virtual StagingMode mode() const noexcept = 0;
  /// Takes a layer's tables and slots from the arena, the layers in order.   Thread: [startup]
  virtual StagedRows carve_layer(Arena& arena, std::int32_t layer) noexcept = 0;
  /// Rows of a step beyond this are not logged: such a step is prefill.
  virtual std::int32_t max_log_rows() const noexcept = 0;

  /// Moves that every step begins with.
  virtual SlotMoves step_moves() const noexcept = 0;
  /// Where the step's selections of a layer have to be when resolve() is called (demand) or when
  /// the step ends (zero_copy). The logs of all layers are one block, layer after layer.
  virtual SelectionLog log(std::int32_t layer) const noexcept = 0;
  /// demand: the moves that resolve(layer) writes.
  virtual SlotMoves layer_moves(std::int32_t layer) const noexcept = 0;
  /// demand: reads the layer's log and decides its moves, within the step. Thread: [decode], or the
  /// one that the device calls back on; never two at a time.
  virtual void resolve(std::int32_t layer) noexcept = 0;
};

}  // namespace ebb
