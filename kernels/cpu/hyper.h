#pragma once

#include "core/api/result.h"
#include "kernels/cpu/phase.h"
#include "kernels/ops/dense.h"

namespace ebb::cpu {

/// Appends the phases of hyper-connection ops to a plan. Errors: invalid_argument for null pointers
/// and more than kMaxStreams streams; those of add_matmul for a type of `fn` that it cannot do.
Status add_hc_pre(PhaseList& list, const HcPreArgs& args);
Status add_hc_post(PhaseList& list, const HcPostArgs& args);
Status add_hc_head(PhaseList& list, const HcHeadArgs& args);

}  // namespace ebb::cpu
