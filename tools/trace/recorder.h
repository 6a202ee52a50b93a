#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/trace/swap_tap.h"
#include "tools/trace/writer.h"

namespace ebb::trace {

/// Writes the trace of an engine's run, from its making to finish(). Outlived by the engine.
class Recorder final : public SwapTap {
 public:
  /// Before the engine's first sequence. Errors: invalid_argument if the engine swaps nothing, or
  /// for a path that cannot be written; io.
  static Result<std::unique_ptr<Recorder>> create(const std::string& path, Engine& engine,
                                                  const Manifest& manifest);
  Recorder(Engine& engine, Writer writer) : SwapTap(engine), writer_(std::move(writer)) {}

  /// Ends the trace with the run's counters. Fails with the first error of the writing, which does
  /// not stop the run.
  Status finish();

  Status open_sequence(std::int32_t sequence) noexcept override;
  void close_sequence(std::int32_t sequence) noexcept override;
  void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                  std::int32_t n_rows) noexcept override;
  void fill(std::int32_t sequence, std::int64_t n_tokens) noexcept override;
  void scored(const Forecast& forecast) noexcept override;
  void settle() noexcept override;

 private:
  void keep(Status status) {
    if (status_ && !status) status_ = std::move(status);
  }
  void take_log();

  Writer writer_;
  Status status_ = ok_status();
  std::vector<std::int32_t> n_visible_;  // chunks, by row of the last step; empty: nothing logged
  std::vector<std::int32_t> chunks_;
};

}  // namespace ebb::trace
