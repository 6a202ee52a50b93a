#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/api/host.h"
#include "core/api/options.h"
#include "core/api/swap.h"
#include "modules/swap_common/policy.h"
#include "modules/swap_common/slot_map.h"

namespace ebb {

/// The keys of [swap] that all policies share (options.toml in this folder).
struct SwapSettings {
  std::int64_t slots = 0;  ///< per layer; 0: twice what one row selects, and the pins
  StagingMode staging = StagingMode::zero_copy;
  std::uint64_t host_limit = 0;                     ///< bytes of the pool
  std::int64_t sink_tokens = 0, recent_tokens = 0;  ///< whose chunks keep their slots
  std::int64_t max_promotions = 0;                  ///< per step, sequence and layer
  std::int64_t max_prefetch = 0;                    ///< the same; 0: forecasts move nothing

  /// Does not finish the options: the policy has keys of its own.
  static SwapSettings read(Options& options);
};

/// Slots over a host pool, with any policy: slot maps, questions to the policy and checks of its
/// answers, lists of moves, counters.
class SlotStaging : public Swap {
 public:
  SlotStaging(Host& host, const SwapSettings& settings, std::unique_ptr<SwapPolicy> policy)
      : settings_(settings), policy_(std::move(policy)), host_(host) {}

  /// For whoever wants to ask it himself.
  SwapPolicy& policy() { return *policy_; }

  Result<bool> plan(const SessionShape& session, const StagedShape& staged) noexcept override;
  Status open() noexcept override;
  SwapLayout layout() const noexcept override;
  Status open_sequence(std::int32_t sequence) noexcept override;
  void fill(std::int32_t sequence, std::int64_t n_tokens) noexcept override;
  void close_sequence(std::int32_t sequence) noexcept override;
  void scored(const Forecast& forecast) noexcept override;
  void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                  std::int32_t n_rows) noexcept override;
  void digest() noexcept override;
  void settle() noexcept override;
  std::span<const SwapCounters> counters() const noexcept override { return counters_; }

  StagingMode mode() const noexcept override { return settings_.staging; }
  StagedRows carve_layer(Arena& arena, std::int32_t layer) noexcept override;
  std::int32_t max_log_rows() const noexcept override { return max_decode_; }
  SlotMoves step_moves() const noexcept override { return step_moves_; }
  SelectionLog log(std::int32_t layer) const noexcept override { return log_at(log_, layer); }
  SlotMoves layer_moves(std::int32_t) const noexcept override { return layer_moves_; }
  void resolve(std::int32_t layer) noexcept override;

 protected:
  /// Free slots of a sequence, the next one last: in whatever order. Between steps.
  std::span<std::int32_t> free_list(std::int32_t sequence) { return map(sequence).free_list(); }

 private:
  struct Run {  // rows [first, end) of a step, all of one sequence
    std::int32_t sequence, first, end;
  };
  struct Move {
    std::int32_t sequence;
    SlotMove move;
  };

  std::int64_t slots_per_layer() const { return shape_.n_slots / shape_.n_layers; }
  std::int64_t layer_bytes() const { return shape_.max_open * shape_.n_chunks * row_bytes_; }
  SelectionLog log_at(std::int32_t* block, std::int32_t layer) const {
    std::int32_t* const ids = block + std::int64_t{layer} * max_log_rows() * (shape_.top_k + 1);
    return {ids, ids + std::int64_t{max_log_rows()} * shape_.top_k};
  }
  Status allocate();
  void take_log();
  std::span<std::int32_t> gather(const SelectionLog& log, const Run& run, std::uint64_t& n_all);
  std::span<std::int32_t> look_up(const SelectionLog& log, const Run& run, std::int32_t layer,
                                  std::uint32_t step);
  bool use(ChunkId id, SlotMap::Entry& entry, std::uint32_t step);
  void promote(CacheId cache, std::span<std::int32_t> chunks);
  void prefetch(std::int32_t sequence);
  void drop_prefetched(std::int32_t sequence, std::size_t n_wanted);
  std::size_t make_room(CacheId cache, std::size_t n_wanted);
  void insert(CacheId cache, std::int32_t chunk, SlotReason reason);
  void evict(CacheId cache, std::int32_t chunk);
  void note_move(CacheId cache, std::int32_t chunk, std::int32_t slot, bool copies);
  void refuse(CacheId cache, const char* what, ChunkId answer);
  void publish(const SlotMoves& list);
  SwapCounters& count(std::int32_t layer) { return counters_[static_cast<std::size_t>(layer)]; }
  SlotMap& map(std::int32_t sequence) { return maps_[static_cast<std::size_t>(sequence)]; }

  const SwapSettings settings_;
  const std::unique_ptr<SwapPolicy> policy_;
  Host& host_;

  SwapShape shape_;
  std::int32_t ratio_ = 1, max_rows_ = 1, max_decode_ = 1;
  std::int64_t row_bytes_ = 0;

  // What the device sees.
  std::vector<StagedRows> layers_;
  SlotMoves step_moves_, layer_moves_;
  std::int32_t* log_ = nullptr;

  SlotRules rules_;
  std::vector<SlotMap> maps_;           // by sequence
  std::vector<PrefetchPlan> plans_;     // by sequence; empty if forecasts move nothing
  std::vector<SwapCounters> counters_;  // by layer
  std::vector<Move> moves_;             // decided, not published
  // The last step that began, and the step whose log was copied: rows and number.
  std::vector<Run> runs_, log_runs_;
  std::uint32_t step_ = 0, log_step_ = 0;
  std::vector<std::int32_t> log_copy_;
  // Scratch.
  std::vector<std::int32_t> chunks_, chosen_;
  std::vector<ChunkId> victims_;
};

/// The module of a policy: EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::SwapMine>, "swap_mine",
/// ...).
template <class Policy>
class PolicyModule final : public SlotStaging {
 public:
  using SlotStaging::SlotStaging;

  static Result<std::unique_ptr<PolicyModule>> create(Host& host, Options& options) {
    const SwapSettings settings = SwapSettings::read(options);
    EBB_ASSIGN(std::unique_ptr<SwapPolicy> policy, Policy::create(host, options));
    return std::make_unique<PolicyModule>(host, settings, std::move(policy));
  }
};

}  // namespace ebb
