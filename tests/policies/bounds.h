#pragma once

#include "tests/policies/driver.h"
#include "tools/trace/accesses.h"

namespace ebb::test {

inline trace::Accesses accesses_of(const TestTrace& from) {
  trace::Accesses accesses(from.n_layers, from.n_chunks);
  std::int32_t n_complete = 0;
  for (const TraceStep& step : from.steps) {
    accesses.begin_step();
    accesses.born(n_complete, n_complete + step.n_born);
    n_complete += step.n_born;
    for (std::int32_t layer = 0; layer < from.n_layers; ++layer) {
      accesses.selected(layer, step.selected[static_cast<std::size_t>(layer)]);
    }
  }
  return accesses;
}

inline std::uint64_t demand_bound(const TestTrace& trace, std::int64_t slots) {
  const trace::Accesses accesses = accesses_of(trace);
  return trace::Bound(accesses).demand(slots);
}

}  // namespace ebb::test
