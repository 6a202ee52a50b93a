#pragma once

#include "core/api/compute.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/ops.h"

namespace ebb::cpu {

/// Turns each recorded op into phases of the plan that is being made.
class Recorder final : public Ops {
 public:
  explicit Recorder(Precision precision) : precision_(precision) {}

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

 private:
  const Precision precision_;
  PhaseList phases_;
};

}  // namespace ebb::cpu
