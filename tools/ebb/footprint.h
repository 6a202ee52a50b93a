#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/ebb/session.h"

namespace ebb::cli {

using NamedBytes = std::vector<std::pair<std::string, std::uint64_t>>;

/// What a manifest's engine takes, in bytes; counted by the engine itself in a rehearsal.
struct Footprint {
  SessionShape session;
  ModelShape model;
  std::string source;  ///< of the model
  std::uint64_t n_tensors = 0, data_bytes = 0;
  ComputeInfo compute;
  std::string compute_module, swap_module;  ///< swap_module: "" without [swap]
  NamedBytes device;                        ///< compute memory by part; their sum is allocated
  NamedBytes host;                          ///< beside it; without weights that are borrowed
  std::optional<SwapLayout> swap;           ///< nothing if every row stays in compute memory
  StagedShape staged;                       ///< the chunk rows that can be swapped

  std::uint64_t device_bytes() const { return compute.bytes_allocated; }
  std::uint64_t host_bytes() const;
  /// Of the rows that swapping keeps out of compute memory, for one sequence: chunks less slots.
  std::uint64_t rows_kept_out() const;
};

/// What has to hold the footprint.
struct Room {
  /// Given by the user: holds compute memory and all weights, wherever the loader has them, and
  /// nothing is asked of the machine that plans. 0: this machine, by the rules of its modules.
  std::uint64_t device_memory = 0;

  /// Bytes that count: of memory_limit, what is allocated; else all weights too.
  std::uint64_t taken(const Footprint& footprint) const;
  /// "" if it fits, or what does not: "the device: 81.20 GiB of 80.00 GiB".
  std::string complaint(const Footprint& footprint) const;
};

/// A manifest that is counted in variations.
class Rehearsal {
 public:
  Rehearsal(SessionArgs args, Room room) : args_(std::move(args)), room_(room) {}

  /// `more` goes on top of the command line's --set. Errors: as of Engine::open; out_of_memory
  /// where a module refuses.
  Result<Footprint> count(const std::vector<std::string>& more = {}) const;
  /// Whether it can be opened and has room.
  bool fits(const std::vector<std::string>& more) const;
  const Room& room() const { return room_; }

 private:
  SessionArgs args_;
  Room room_;
};

/// "engine.max_context=4096".
std::string setting(std::string_view key, std::int64_t value);

/// The largest multiple of `unit` in low..high for which `fits` holds, if it holds for all smaller
/// ones; high itself if that fits; below one unit, the largest number; low - 1 if there is none.
std::int64_t largest_that_fits(std::int64_t low, std::int64_t high, std::int64_t unit,
                               const std::function<bool(std::int64_t)>& fits);

/// Changes that make a manifest fit which does not, each found by counting.
struct Suggestion {
  std::vector<std::string> set;  ///< to give to --set, together
  std::uint64_t bytes = 0;       ///< that are taken then (Room::taken)
};
std::vector<Suggestion> suggest(const Rehearsal& rehearsal, const Manifest& manifest);

}  // namespace ebb::cli
