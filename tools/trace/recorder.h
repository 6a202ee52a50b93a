#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "core/manifest.h"
#include "tools/trace/writer.h"

namespace ebb::trace {

/// Writes the trace of an engine's run, from its making to finish(). Outlived by the engine.
class Recorder final : public SwapObserver {
 public:
  /// Before the engine's first sequence. Errors: invalid_argument if the engine swaps nothing, or
  /// for a path that cannot be written; io.
  static Result<std::unique_ptr<Recorder>> create(const std::string& path, Engine& engine,
                                                  const Manifest& manifest);
  Recorder(Engine& engine, Writer writer) : engine_(engine), writer_(std::move(writer)) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() override { engine_.observe_swap(nullptr); }

  /// Ends the trace with the run's counters. Fails with the first error of the writing, which does
  /// not stop the run.
  Status finish();

  void sequence_opens(std::int32_t sequence) noexcept override;
  void sequence_closes(std::int32_t sequence) noexcept override;
  void step_begins(std::span<const std::int32_t> pos,
                   std::span<const std::int32_t> seq) noexcept override;
  void scored(const Forecast& forecast) noexcept override {
    take_log();
    keep(writer_.scored(forecast.sequence, forecast.scores, forecast.kept));
  }
  void settles() noexcept override;

 private:
  void keep(Status status) {
    if (status_ && !status) status_ = std::move(status);
  }
  void take_log();

  Engine& engine_;
  Writer writer_;
  Status status_ = ok_status();
  std::vector<std::int32_t> n_visible_;  // chunks, by row of the last step; empty: nothing logged
  std::vector<std::int32_t> chunks_;
};

}  // namespace ebb::trace
