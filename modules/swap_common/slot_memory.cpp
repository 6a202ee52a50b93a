// What SlotStaging takes: the keys of [swap], the sizes that follow from them in a session, and
// memory. Slots and slot tables are carved from the session's buffers; the pool, the lists of moves
// and the log are host memory of the compute module, which the device reads and writes.

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "core/api/compute.h"
#include "modules/swap_common/slot_staging.h"

namespace ebb {

SwapSettings SwapSettings::read(Options& options) {
  constexpr std::int64_t kMaxTokens = 1 << 24;
  SwapSettings settings;
  settings.slots = options.get_int_or_auto("slots", 0, 1, 1 << 24);
  constexpr StagingMode kModes[] = {StagingMode::resident, StagingMode::demand,
                                    StagingMode::zero_copy};
  settings.staging = kModes[options.get_choice("staging", 2, {"resident", "demand", "zero_copy"})];
  settings.host_limit =
      options.get_size("host_limit", std::uint64_t{16} << 30, 0, std::uint64_t{1} << 50);
  settings.sink_tokens = options.get_int("sink_tokens", 0, 0, kMaxTokens);
  settings.recent_tokens = options.get_int("recent_tokens", 0, 0, kMaxTokens);
  settings.max_promotions = options.get_int("max_promotions", 64, 0, 1 << 20);
  settings.max_prefetch = options.get_int("max_prefetch", 0, 0, 1 << 20);
  return settings;
}

Result<bool> SlotStaging::plan(const SessionShape& session, const StagedShape& staged) noexcept {
  if (mode() == StagingMode::resident || staged.n_layers == 0) return false;
  ratio_ = staged.ratio;
  row_bytes_ = staged.row_bytes;
  max_rows_ = session.max_rows;
  max_decode_ = session.max_decode;
  const auto chunks = [this](std::int64_t tokens) { return (tokens + ratio_ - 1) / ratio_; };
  rules_.sink_chunks = chunks(settings_.sink_tokens);
  rules_.recent_chunks = chunks(settings_.recent_tokens);
  const std::int64_t n_pinned = rules_.sink_chunks + rules_.recent_chunks;
  const std::int64_t least = staged.top_k + n_pinned;
  const std::int64_t slots = settings_.slots > 0 ? settings_.slots : staged.top_k + least;
  shape_ = {staged.n_layers, session.max_open, chunks(session.max_context), staged.n_layers * slots,
            staged.top_k};
  if (slots >= shape_.n_chunks) {
    host_.log(LogLevel::info,
              fmt::format("swapping is off: {} slots per layer hold all {} chunks of max_context",
                          slots, shape_.n_chunks));
    return false;
  }
  if (slots < least) {
    return Error{
        Errc::invalid_argument,
        fmt::format("[swap] slots = {}: one row selects up to {} chunks (top_k) and {} are pinned: "
                    "want {} or more",
                    slots, staged.top_k, n_pinned, least)};
  }
  if (layout().pool_bytes > settings_.host_limit) {
    return Error{Errc::out_of_memory,
                 fmt::format("[swap] host_limit = {} bytes: the pool of {} layers needs {}",
                             settings_.host_limit, shape_.n_layers, layout().pool_bytes)};
  }
  layers_.resize(static_cast<std::size_t>(shape_.n_layers));
  counters_.resize(layers_.size());
  return true;
}

SwapLayout SlotStaging::layout() const noexcept {
  return {mode(),
          shape_.n_layers,
          shape_.n_chunks,
          slots_per_layer(),
          static_cast<std::uint64_t>(shape_.n_layers * layer_bytes()),
          static_cast<std::uint64_t>(shape_.max_open) * SlotMap::bytes(shape_)};
}

Status SlotStaging::open() noexcept {
  try {
    if (!host_.is_rehearsal()) EBB_TRY(policy_->open(shape_));
    return allocate();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "no host memory for the slot maps of %d sequences",
                      shape_.max_open);
  }
}

Status SlotStaging::allocate() {
  Compute& compute = *host_.compute();
  const auto bytes = static_cast<std::uint64_t>(layer_bytes());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    EBB_ASSIGN(layers_[i].pool, compute.allocate_host(bytes, "the chunk pool"));
    host_.log(LogLevel::info, fmt::format("chunk pool: layer {} of {}, {} bytes each", i + 1,
                                          layers_.size(), bytes));
  }
  const auto n = static_cast<std::int64_t>(shape_.max_open);
  const std::int64_t n_logged = std::int64_t{max_decode_} * shape_.top_k;
  // A birth, a promotion and a demanded chunk may each evict another. Two logs may be learned from
  // between two steps: of the step before, and, where a sequence is closed, of the last.
  const std::int64_t n_born = max_rows_ / ratio_ + n, n_promoted = 2 * n * settings_.max_promotions;
  const std::int64_t n_foreseen = n * std::min(settings_.max_prefetch, slots_per_layer());
  const auto new_moves = [&](std::int64_t most) -> Result<SlotMoves> {
    EBB_ASSIGN(std::byte* const memory,
               compute.allocate_host(static_cast<std::uint64_t>(most + 1) * sizeof(SlotMove),
                                     "a list of moves"));
    moves_.reserve(std::max(moves_.capacity(), static_cast<std::size_t>(most)));
    return SlotMoves{reinterpret_cast<std::int32_t*>(memory),
                     reinterpret_cast<SlotMove*>(memory) + 1, static_cast<std::int32_t>(most)};
  };
  EBB_ASSIGN(step_moves_, new_moves(2 * shape_.n_layers * (n_born + n_promoted + n_foreseen)));
  EBB_ASSIGN(layer_moves_, new_moves(2 * n_logged));
  log_copy_.resize(static_cast<std::size_t>(shape_.n_layers * (n_logged + max_decode_)));
  EBB_ASSIGN(std::byte* const log,
             compute.allocate_host(log_copy_.size() * sizeof(log_copy_[0]), "the selection log"));
  log_ = reinterpret_cast<std::int32_t*>(log);
  if (host_.is_rehearsal()) return ok_status();
  maps_ = std::vector<SlotMap>(static_cast<std::size_t>(n), SlotMap(rules_, shape_));
  if (settings_.max_prefetch > 0) plans_.resize(maps_.size());
  for (PrefetchPlan& plan : plans_) plan.resize(shape_);
  runs_.reserve(maps_.size());
  log_runs_.reserve(maps_.size());
  chunks_.resize(static_cast<std::size_t>(n_logged));
  chosen_.resize(chunks_.size());
  victims_.resize(static_cast<std::size_t>(std::max(n_logged, slots_per_layer())));
  return ok_status();
}

// The slots of all layers are one array, taken with the first.
StagedRows SlotStaging::carve_layer(Arena& arena, std::int32_t layer) noexcept {
  StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
  rows.slots = layer > 0 ? layers_[0].slots
                         : arena.take<std::byte>(shape_.max_open * shape_.n_slots * row_bytes_,
                                                 "chunk slots");
  rows.slot_of = arena.take<std::int32_t>(shape_.max_open * shape_.n_chunks, "slot tables");
  rows.row_bytes = row_bytes_;
  rows.n_chunks = shape_.n_chunks;
  rows.n_slots = shape_.n_slots;
  return rows;
}

}  // namespace ebb
