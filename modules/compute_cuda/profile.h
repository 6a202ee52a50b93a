#pragma once

#include <vector>

#include "core/api/host.h"
#include "modules/compute_cuda/plan.h"

namespace ebb::cuda {

/// Logs where the time of all runs went, by kind of op, for plans that take times.
void log_profile(Host& host, const std::vector<Plan>& plans);

}  // namespace ebb::cuda
