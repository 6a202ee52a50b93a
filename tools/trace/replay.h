#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/api/swap.h"
#include "core/host.h"
#include "core/module_loader.h"
#include "tools/trace/accesses.h"
#include "tools/trace/reader.h"

namespace ebb::trace {

/// The counters as a trace ends with them; without stall_us, which is no property of a policy.
std::vector<Counter> counters_of(const SwapCounters& counters);

/// Drives a swap module through a trace as the engine did, so that the run's module with the run's
/// keys gives the run's counters to the integer. No row is moved. With slots for every chunk
/// nothing is swapped, and every selection is a hit. `options` are the keys of [swap].
/// Errors: of the reader and of the module.
/// `with_scores` false leaves out what was forecast. `stepped`, if set, hears the counters so far,
/// over all layers, when all of a step is in them. Returns the counters by staged layer.
Result<std::vector<SwapCounters>> replay(
    Reader& reader, const ModuleLoader& modules, const ModuleChoice& choice, Options& options,
    const LogSink& log, bool with_scores = true,
    const std::function<void(const SwapCounters&)>& stepped = nullptr);

/// How much of a layer's selection was in the one before, in decode steps of one row.
struct Overlap {
  std::uint64_t n_selected = 0;  ///< chunks selected in steps that have such a step before them
  std::uint64_t n_again = 0;     ///< of those, selected in the step before
  double share() const {
    return n_selected > 0 ? static_cast<double>(n_again) / static_cast<double>(n_selected) : 0;
  }
};

/// What a trace says of its run, and the accesses of each sequence, by order of opening.
struct Contents {
  std::vector<Accesses> sequences;
  std::uint64_t n_sequences = 0;
  std::uint64_t n_copies = 0;         ///< of those, begun as a copy of another one
  std::uint64_t n_copied_tokens = 0;  ///< that they did not have to be fed
  std::uint64_t n_steps = 0;
  std::uint64_t n_tokens = 0;
  std::uint64_t n_logged_steps = 0;  ///< with selections
  std::uint64_t n_selections = 0;    ///< of every row
  std::uint64_t n_scorings = 0;
  std::uint64_t n_kept = 0;       ///< chunks that these kept
  std::vector<Overlap> overlap;   ///< by staged layer
  std::int64_t most_chunks = 0;   ///< of a layer that were complete, in the longest sequence
  std::vector<Counter> counters;  ///< of the run
};
/// `keep_accesses` false leaves `sequences` empty and takes no memory.
Result<Contents> read_contents(Reader& reader, bool keep_accesses);

}  // namespace ebb::trace
