#pragma once

#include "core/api/result.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/scoring.h"
#include "kernels/ops/staging.h"

namespace ebb {

/// Records the ops of one plan, in order; each op sees what the ones before it wrote. Arguments are
/// checked here, once: a recorded plan cannot fail except by a device fault.
/// Errors: invalid_argument / incompatible for shapes or types that the backend cannot do.
/// Thread: [startup]
class Ops {
 public:
  virtual ~Ops() = default;
  virtual Status embed(const EmbedArgs& args) noexcept = 0;
  virtual Status matmul(const MatmulArgs& args) noexcept = 0;
  virtual Status rms_norm(const RmsNormArgs& args) noexcept = 0;
  virtual Status hc_pre(const HcPreArgs& args) noexcept = 0;
  virtual Status hc_post(const HcPostArgs& args) noexcept = 0;
  virtual Status hc_head(const HcHeadArgs& args) noexcept = 0;
  virtual Status argmax(const ArgmaxArgs& args) noexcept = 0;
  virtual Status route(const RouteArgs& args) noexcept = 0;
  virtual Status experts(const ExpertsArgs& args) noexcept = 0;
  virtual Status rope_table(const RopeTableArgs& args) noexcept = 0;
  virtual Status heads(const HeadsArgs& args) noexcept = 0;
  virtual Status append(const AppendArgs& args) noexcept = 0;
  virtual Status compress(const CompressArgs& args) noexcept = 0;
  virtual Status select(const SelectArgs& args) noexcept = 0;
  virtual Status attend(const AttendArgs& args) noexcept = 0;
  virtual Status keep_rows(const KeepRowsArgs& args) noexcept = 0;
  virtual Status score(const ScoreArgs& args) noexcept = 0;
  virtual Status pick_rows(const PickRowsArgs& args) noexcept = 0;
  virtual Status move_rows(const MoveRowsArgs& args) noexcept = 0;
  virtual Status copy(const CopyArgs& args) noexcept = 0;
  virtual Status host_call(const HostCallArgs& args) noexcept = 0;
};

}  // namespace ebb
