#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/result.h"

namespace ebb::cli {

/// A question about something that stands in its own prompt.
struct Needle {
  std::string id, prompt, task;
  std::string answer;                ///< "" if there are `answers`
  std::vector<std::string> answers;  ///< all wanted, in any order
};

/// One JSON object a line, the first `limit` of them, or all for 0. `name`: of the file, for
/// messages. Other keys of a line (depth, length, what another engine said) are the file's own
/// business.   Errors: invalid_argument that names the line
Result<std::vector<Needle>> parse_needles(std::string_view text, const std::string& name,
                                          std::int64_t limit);

/// Rows of a table: task, and most tokens of the prompt, which has more than half of that.
struct NeedleBucket {
  std::string task;
  std::int64_t limit = 1;

  NeedleBucket(std::string of_task, std::int64_t n_prompt) : task(std::move(of_task)) {
    while (limit < n_prompt) limit *= 2;
  }
  auto operator<=>(const NeedleBucket&) const = default;
  std::string name() const;  ///< "<=1024", "multi_key <=4096"
};

}  // namespace ebb::cli
