#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/ebb/generation.h"

namespace ebb::cli {

/// A prompt that can be fed (check_prompt) and what to do after it.
struct Job {
  std::string id;
  std::vector<std::int32_t> prompt;
  GenerationSettings settings;
  std::uint64_t work = 0;    ///< the caller's measure of its size, for progress
  std::uint64_t digest = 0;  ///< of the request, for its result
};

}  // namespace ebb::cli
