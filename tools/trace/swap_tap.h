#pragma once

#include <cstdint>
#include <span>

#include "core/engine.h"

namespace ebb::trace {

/// Stands before the swap module of an engine for as long as it lives and hands everything on. Who
/// derives from it hears what the module is told: told the same again, with the same selections,
/// the same module decides the same. In each call, the log of the step before can be read
/// (Staging::log).
class SwapTap : public Swap {
 public:
  /// The engine swaps (Engine::swap) and outlives this.
  explicit SwapTap(Engine& engine) : engine_(engine), swap_(*engine.put_before_swap(this)) {}
  SwapTap(const SwapTap&) = delete;
  SwapTap& operator=(const SwapTap&) = delete;
  ~SwapTap() override { (void)engine_.put_before_swap(&swap_); }

  Result<bool> plan(const SessionShape& session, const StagedShape& staged) noexcept override {
    return swap_.plan(session, staged);
  }
  Status open() noexcept override { return swap_.open(); }
  SwapLayout layout() const noexcept override { return swap_.layout(); }
  Status open_sequence(std::int32_t sequence) noexcept override {
    return swap_.open_sequence(sequence);
  }
  void scored(const Forecast& forecast) noexcept override { swap_.scored(forecast); }
  void fill(std::int32_t sequence, std::int64_t n_tokens) noexcept override {
    swap_.fill(sequence, n_tokens);
  }
  void close_sequence(std::int32_t sequence) noexcept override { swap_.close_sequence(sequence); }
  void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                  std::int32_t n_rows) noexcept override {
    swap_.begin_step(pos, seq, n_rows);
  }
  void digest() noexcept override { swap_.digest(); }
  void settle() noexcept override { swap_.settle(); }
  std::span<const SwapCounters> counters() const noexcept override { return swap_.counters(); }

  StagingMode mode() const noexcept override { return swap_.mode(); }
  StagedRows carve_layer(Arena& arena, std::int32_t layer) noexcept override {
    return swap_.carve_layer(arena, layer);
  }
  std::int32_t max_log_rows() const noexcept override { return swap_.max_log_rows(); }
  SlotMoves step_moves() const noexcept override { return swap_.step_moves(); }
  SelectionLog log(std::int32_t layer) const noexcept override { return swap_.log(layer); }
  SlotMoves layer_moves(std::int32_t layer) const noexcept override {
    return swap_.layer_moves(layer);
  }
  void resolve(std::int32_t layer) noexcept override { swap_.resolve(layer); }

 protected:
  Engine& engine_;
  Swap& swap_;  // the module, or who else stands before it
};

}  // namespace ebb::trace
