// How much there is to do is read when a phase opens: the host writes lists of moves between steps,
// and a host call writes them within one. A phase of one task runs on the thread that drives the
// plan, so that is where host calls happen.

#include "kernels/cpu/staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/check.h"

namespace ebb::cpu {
namespace {

constexpr std::int64_t kBytesPerTask = 64 << 10;

class MoveRowsPhase final : public Phase {
 public:
  explicit MoveRowsPhase(const MoveRowsArgs& args) : moves_(args.moves) {}

  std::int64_t n_tasks() const noexcept override {
    return (n_moves() + kMovesPerTask - 1) / kMovesPerTask;
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    const std::int64_t end = std::min((task + 1) * kMovesPerTask, n_moves());
    for (std::int64_t i = task * kMovesPerTask; i < end; ++i) {
      const SlotMove& move = moves_.moves[i];
      if (move.from != nullptr) {
        std::memcpy(move.to, move.from, static_cast<std::size_t>(move.row_bytes));
      }
      *move.entry = move.value;
    }
  }
  const char* name() const noexcept override { return "move rows"; }

 private:
  static constexpr std::int64_t kMovesPerTask = 32;
  std::int64_t n_moves() const { return std::min(*moves_.count, moves_.max_moves); }

  SlotMoves moves_;
};

class CopyPhase final : public Phase {
 public:
  explicit CopyPhase(const CopyArgs& args) : args_(args) {}

  std::int64_t n_tasks() const noexcept override {
    return (static_cast<std::int64_t>(args_.bytes) + kBytesPerTask - 1) / kBytesPerTask;
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    const std::int64_t at = task * kBytesPerTask;
    const std::int64_t n = std::min(kBytesPerTask, static_cast<std::int64_t>(args_.bytes) - at);
    std::memcpy(static_cast<std::byte*>(args_.to) + at,
                static_cast<const std::byte*>(args_.from) + at, static_cast<std::size_t>(n));
  }
  const char* name() const noexcept override { return "copy"; }

 private:
  CopyArgs args_;
};

class HostCallPhase final : public Phase {
 public:
  explicit HostCallPhase(const HostCallArgs& args) : args_(args) {}

  std::int64_t n_tasks() const noexcept override { return 1; }
  void run(std::int64_t, std::byte*) const noexcept override {
    args_.function(args_.context, args_.index);
  }
  const char* name() const noexcept override { return "host call"; }

 private:
  HostCallArgs args_;
};

}  // namespace

Status add_move_rows(PhaseList& list, const MoveRowsArgs& args) {
  EBB_TRY(check_pointers("move_rows", {{"count", args.moves.count}, {"moves", args.moves.moves}}));
  EBB_TRY(check_range("move_rows", "max_moves", args.moves.max_moves, 1, INT32_MAX));
  list.push_back(std::make_unique<MoveRowsPhase>(args));
  return ok_status();
}

Status add_copy(PhaseList& list, const CopyArgs& args) {
  EBB_TRY(check_pointers("copy", {{"to", args.to}, {"from", args.from}}));
  list.push_back(std::make_unique<CopyPhase>(args));
  return ok_status();
}

Status add_host_call(PhaseList& list, const HostCallArgs& args) {
  EBB_TRY(
      check_pointers("host_call", {{"function", reinterpret_cast<const void*>(args.function)}}));
  list.push_back(std::make_unique<HostCallPhase>(args));
  return ok_status();
}

}  // namespace ebb::cpu
