#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/host.h"
#include "tools/ebb/ab_sides.h"
#include "tools/ebb/replay_rows.h"

namespace ebb::cli {

/// What the recording of a side's first round says about its swapping.
struct AbTrace {
  std::string file;  ///< its name in the report's folder
  StagingMode staging = StagingMode::demand;
  std::int64_t slots = 0;  ///< of the side itself
  /// By decode step, all prompts in a row: chunks selected, and those of them that had a slot.
  std::vector<std::uint32_t> distinct, hits;
  std::vector<ReplayRow> curve;  ///< the side's policy with other numbers of slots
};

/// Replays a side's recording with its own policy: as it ran, for the steps, and with each of
/// `slots` per layer, for the curve. Without `slots`: up to eight numbers, evenly spread by ratio
/// from the fewest that the policy accepts to what the longest sequence would fill, and the side's
/// own. Those that the policy refuses are left out. Errors: of the trace and of the module.
Result<AbTrace> study_trace(const AbSide& side, const std::string& path,
                            const std::vector<std::int64_t>& slots, const LogSink& log);

}  // namespace ebb::cli
