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

  Status embed(const EmbedArgs& args) noexcept override;
  Status matmul(const MatmulArgs& args) noexcept override;
  Status rms_norm(const RmsNormArgs& args) noexcept override;
  Status hc_pre(const HcPreArgs& args) noexcept override;
  Status hc_post(const HcPostArgs& args) noexcept override;
  Status hc_head(const HcHeadArgs& args) noexcept override;
  Status argmax(const ArgmaxArgs& args) noexcept override;
  Status route(const RouteArgs& args) noexcept override;
  Status experts(const ExpertsArgs& args) noexcept override;
  Status rope_table(const RopeTableArgs& args) noexcept override;
  Status heads(const HeadsArgs& args) noexcept override;
  Status append(const AppendArgs& args) noexcept override;
  Status compress(const CompressArgs& args) noexcept override;
  Status select(const SelectArgs& args) noexcept override;
  Status attend(const AttendArgs& args) noexcept override;
  Status keep_rows(const KeepRowsArgs& args) noexcept override;
  Status pick_rows(const PickRowsArgs& args) noexcept override;
  Status score(const ScoreArgs& args) noexcept override;
  Status move_rows(const MoveRowsArgs& args) noexcept override;
  Status copy(const CopyArgs& args) noexcept override;
  Status host_call(const HostCallArgs& args) noexcept override;

 private:
  const Precision precision_;
  const std::shared_ptr<ActRoom> room_;
  PhaseList phases_;
};

}  // namespace ebb::cpu
