#pragma once

#include "core/api/compute.h"
#include "kernels/cpu/phase.h"
#include "kernels/cpu/quantised_rows.h"
#include "kernels/ops/ops.h"

namespace ebb::cpu {

/// Turns each recorded op into phases of the plan that is being made.
class Recorder final : public Ops {
 public:
  /// `room`: where the ops keep rounded activations; plans that never run at once may share it.
  Recorder(Precision precision, std::shared_ptr<ActRoom> room)
      : precision_(precision), room_(std::move(room)) {}

  PhaseList take() { return std::move(phases_); }

  EBB_OPS(EBB_OVERRIDE_OP)

 private:
  const Precision precision_;
  const std::shared_ptr<ActRoom> room_;
  PhaseList phases_;
};

}  // namespace ebb::cpu
