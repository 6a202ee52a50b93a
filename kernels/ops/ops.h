#pragma once

#include "core/api/result.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/scoring.h"
#include "kernels/ops/staging.h"

namespace ebb {

/// Every op: its name and its arguments.
#define EBB_OPS(OP)             \
  OP(embed, EmbedArgs)          \
  OP(matmul, MatmulArgs)        \
  OP(rms_norm, RmsNormArgs)     \
  OP(hc_pre, HcPreArgs)         \
  OP(hc_post, HcPostArgs)       \
  OP(hc_head, HcHeadArgs)       \
  OP(argmax, ArgmaxArgs)        \
  OP(route, RouteArgs)          \
  OP(experts, ExpertsArgs)      \
  OP(rope_table, RopeTableArgs) \
  OP(heads, HeadsArgs)          \
  OP(append, AppendArgs)        \
  OP(compress, CompressArgs)    \
  OP(select, SelectArgs)        \
  OP(attend, AttendArgs)        \
  OP(keep_rows, KeepRowsArgs)   \
  OP(score, ScoreArgs)          \
  OP(pick_rows, PickRowsArgs)   \
  OP(move_rows, MoveRowsArgs)   \
  OP(copy, CopyArgs)            \
  OP(host_call, HostCallArgs)

/// Records the ops of one plan, in order; each op sees what the ones before it wrote. Arguments are
/// checked here, once: a recorded plan cannot fail except by a device fault.
/// Errors: invalid_argument / incompatible for shapes or types that the backend cannot do.
/// Thread: [startup]
class Ops {
 public:
  virtual ~Ops() = default;
#define EBB_PURE_OP(name, Args) virtual Status name(const Args& args) noexcept = 0;
  EBB_OPS(EBB_PURE_OP)
#undef EBB_PURE_OP
};

/// EBB_OPS(EBB_OVERRIDE_OP) declares them all in a class that records them.
#define EBB_OVERRIDE_OP(name, Args) Status name(const Args& args) noexcept override;

}  // namespace ebb
