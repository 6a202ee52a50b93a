// The maps run ahead of the device's tables: a change is decided at once in the map and noted as a
// move, and the moves of one epoch are published together, when the step of that number begins.
// What makes a list of moves safe in any order, and results independent of the policy:
//   - a chunk changes at most once per epoch, so no entry and no slot stands in a list twice;
//   - a chunk that the log at hand selected is not evicted while that log is learned from;
//   - a chunk without an entry is read from the pool, which holds every complete chunk.
// demand: resolve() runs inside the step, so its epoch is that step. zero_copy: the log of step t
// is learned from while step t + 1 runs; what it decides takes effect in step t + 2. What forecasts
// foresee gets its slots as a step begins, after the chunks that it completes (prefetch.cpp).

#include "modules/swap_common/slot_staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/api/compute.h"

namespace ebb {

Status SlotStaging::open_sequence(std::int32_t sequence) noexcept {
  constexpr std::int64_t kPiece = 1024;
  std::int32_t none[kPiece];
  std::fill(std::begin(none), std::end(none), -1);
  for (const StagedRows& rows : layers_) {
    auto* const table = const_cast<std::int32_t*>(rows.slot_of) + sequence * rows.n_chunks;
    for (std::int64_t at = 0; at < rows.n_chunks; at += kPiece) {
      const auto n = static_cast<std::uint64_t>(std::min(kPiece, rows.n_chunks - at));
      EBB_TRY(host_.compute()->write(table + at, none, n * sizeof(none[0])));
    }
  }
  return ok_status();
}

void SlotStaging::fill(std::int32_t sequence, std::int64_t n_tokens) noexcept {
  map(sequence).n_complete = static_cast<std::int32_t>(n_tokens / ratio_);
}

void SlotStaging::close_sequence(std::int32_t sequence) noexcept {
  policy_->forget(sequence);
  SlotMap& slots = map(sequence);
  for (const ChunkId id : slots.owners()) {
    if (id.layer < 0) continue;
    if (slots.at(id).foreseen == SlotMap::Foreseen::unused) ++count(id.layer).prefetch_wasted;
    slots.erase(id);
    ++count(id.layer).freed;
  }
  slots.restart();
  if (!plans_.empty()) plans_[static_cast<std::size_t>(sequence)].clear();
  std::erase_if(moves_, [&](const Move& move) { return move.sequence == sequence; });
}

void SlotStaging::begin_step(const std::int32_t* pos, const std::int32_t* seq,
                             std::int32_t n_rows) noexcept {
  take_log();
  rules_.epoch = step_ + 1;
  if (mode() == StagingMode::demand) ++rules_.look;
  for (std::int32_t first = 0, end = 0; first < n_rows; first = end) {
    while (end < n_rows && seq[end] == seq[first]) ++end;
    if (n_rows <= max_log_rows()) runs_.push_back({seq[first], first, end});
    const std::int32_t complete = (pos[end - 1] + 1) / ratio_;
    const std::int32_t n_new = complete - std::exchange(map(seq[first]).n_complete, complete);
    for (std::int32_t layer = 0; n_new > 0 && layer < shape_.n_layers; ++layer) {
      const CacheId cache{seq[first], layer};
      const auto fit = static_cast<std::size_t>(std::min<std::int64_t>(n_new, slots_per_layer()));
      const auto n = static_cast<std::int32_t>(make_room(cache, fit));
      for (std::int32_t chunk = complete - n; chunk < complete; ++chunk) {
        insert(cache, chunk, SlotReason::born);
      }
      count(layer).stores += static_cast<std::uint64_t>(n_new);
      count(layer).d2h_bytes += static_cast<std::uint64_t>(n_new * row_bytes_);
    }
  }
  for (const Run& run : runs_) prefetch(run.sequence);
  publish(step_moves_);
  step_ = rules_.epoch;
}

// The device will write over the log in its next step.
void SlotStaging::take_log() {
  if (mode() == StagingMode::zero_copy && !runs_.empty()) {
    std::memcpy(log_copy_.data(), log_, log_copy_.size() * sizeof(log_copy_[0]));
    log_runs_.swap(runs_);
    log_step_ = step_;
  }
  runs_.clear();
}

void SlotStaging::settle() noexcept {
  digest();
  take_log();
  digest();
}

void SlotStaging::digest() noexcept {
  if (log_runs_.empty()) return;
  rules_.epoch = step_ + 1;
  ++rules_.look;
  // All look-ups before the first change: until then it is known what had a slot in the log's step.
  for (const Run& run : log_runs_) {
    for (std::int32_t i = 0; i < shape_.n_layers; ++i) {
      count(i).pool_reads += look_up(log_at(log_copy_.data(), i), run, i, log_step_).size();
    }
  }
  std::uint64_t n_all = 0;
  for (const Run& run : log_runs_) {
    for (std::int32_t i = 0; i < shape_.n_layers; ++i) {
      promote({run.sequence, i}, gather(log_at(log_copy_.data(), i), run, n_all));
    }
  }
  log_runs_.clear();
}

void SlotStaging::resolve(std::int32_t layer) noexcept {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (const Run& run : runs_) {
    const CacheId cache{run.sequence, layer};
    const std::span<std::int32_t> missed = look_up(log(layer), run, layer, step_);
    const std::size_t n = make_room(cache, missed.size());
    for (const std::int32_t chunk : missed.first(n)) insert(cache, chunk, SlotReason::demanded);
    count(layer).pool_reads += missed.size() - n;
  }
  publish(layer_moves_);
  count(layer).stall_us +=
      static_cast<std::uint64_t>((Clock::now() - begin) / std::chrono::microseconds(1));
}

// The distinct chunks that a run selected in a layer, ascending; adds all selections to `n_all`.
std::span<std::int32_t> SlotStaging::gather(const SelectionLog& log, const Run& run,
                                            std::uint64_t& n_all) {
  const std::int32_t n_complete = map(run.sequence).n_complete;
  auto end = chunks_.begin();
  for (std::int32_t row = run.first; row < run.end; ++row) {
    const std::int32_t* const ids = log.ids + std::int64_t{row} * shape_.top_k;
    end = std::copy_if(ids, ids + std::clamp(log.count[row], 0, shape_.top_k), end,
                       [=](std::int32_t id) { return id >= 0 && id < n_complete; });
  }
  n_all += static_cast<std::uint64_t>(end - chunks_.begin());
  if (!std::is_sorted(chunks_.begin(), end)) std::sort(chunks_.begin(), end);
  return {chunks_.begin(), std::unique(chunks_.begin(), end)};
}

// Accounts for a run's selections in a layer and tells the policy; returns those that had no slot
// in `step`. A change of a later step is undone in thought.
std::span<std::int32_t> SlotStaging::look_up(const SelectionLog& log, const Run& run,
                                             std::int32_t layer, std::uint32_t step) {
  SlotMap& slots = map(run.sequence);
  SwapCounters& counters = count(layer);
  const std::span<std::int32_t> chunks = gather(log, run, counters.selections);
  for (const std::int32_t chunk : chunks) slots.at({layer, chunk}).used = rules_.look;
  policy_->selected({run.sequence, layer}, chunks, slots);
  const auto end = std::remove_if(chunks.begin(), chunks.end(), [&](std::int32_t chunk) {
    return use({layer, chunk}, slots.at({layer, chunk}), step);
  });
  const std::span<std::int32_t> missed(chunks.begin(), end);
  counters.distinct += chunks.size();
  counters.hits += chunks.size() - missed.size();
  counters.misses += missed.size();
  counters.h2d_bytes += missed.size() * static_cast<std::uint64_t>(row_bytes_);
  return missed;
}

// zero_copy: gives slots to those of the selected chunks that the policy admits.
void SlotStaging::promote(CacheId cache, std::span<std::int32_t> chunks) {
  SlotMap& slots = map(cache.sequence);
  const auto cannot_enter = [&](std::int32_t chunk) {
    const ChunkId id{cache.layer, chunk};
    return slots.resident(id) || slots.at(id).changed == rules_.epoch;
  };
  const auto end = std::remove_if(chunks.begin(), chunks.end(), cannot_enter);
  const std::span<std::int32_t> missed(chunks.begin(), end);
  const auto most = static_cast<std::size_t>(settings_.max_promotions);
  const std::span<std::int32_t> out(chosen_.data(), std::min(missed.size(), most));
  if (out.empty()) return;
  std::size_t n = policy_->admit(cache, missed, out);
  if (n > out.size()) {
    refuse(cache, "too many admissions", {-1, -1});
    n = out.size();
  }
  std::size_t room = make_room(cache, n);
  for (const std::int32_t chunk : out.first(n)) {
    if (!std::binary_search(missed.begin(), missed.end(), chunk) || cannot_enter(chunk)) {
      refuse(cache, "admission", {cache.layer, chunk});
    } else if (room > 0) {
      --room;
      insert(cache, chunk, SlotReason::promoted);
    }
  }
}

// Has slots of a sequence given up until `n_wanted` are free; returns how many of those there are.
// For a victim that is refused, any other evictable chunk has to go.
std::size_t SlotStaging::make_room(CacheId cache, std::size_t n_wanted) {
  SlotMap& slots = map(cache.sequence);
  const auto n_free = static_cast<std::size_t>(slots.free_slots());
  if (n_free >= n_wanted) return n_wanted;
  const std::span<ChunkId> out(victims_.data(), n_wanted - n_free);
  std::size_t n = policy_->victims(cache, out, slots);
  if (n > out.size()) {
    refuse(cache, "too many victims", {-1, -1});
    n = out.size();
  }
  for (ChunkId victim : out.first(n)) {
    if (!slots.evictable(victim)) {
      refuse(cache, "victim", victim);
      const auto other = std::find_if(slots.owners().begin(), slots.owners().end(),
                                      [&slots](ChunkId id) { return slots.evictable(id); });
      if (other == slots.owners().end()) break;
      victim = *other;
    }
    evict({cache.sequence, victim.layer}, victim.chunk);
  }
  if (rules_.epoch == step_) drop_prefetched(cache.sequence, n_wanted);
  return std::min(n_wanted, static_cast<std::size_t>(slots.free_slots()));
}

void SlotStaging::insert(CacheId cache, std::int32_t chunk, SlotReason reason) {
  SlotMap& slots = map(cache.sequence);
  note_move(cache, chunk, slots.insert({cache.layer, chunk}), reason != SlotReason::born);
  SwapCounters& counters = count(cache.layer);
  const auto bytes = static_cast<std::uint64_t>(row_bytes_);
  SlotMap::Foreseen& foreseen = slots.at({cache.layer, chunk}).foreseen;
  foreseen = SlotMap::Foreseen::no;
  switch (reason) {
    case SlotReason::born:
      ++counters.born;
      break;
    case SlotReason::demanded:  // counted as it was missed
      break;
    case SlotReason::promoted:
      ++counters.promotions;
      counters.h2d_bytes += bytes;
      break;
    case SlotReason::prefetched:
      ++counters.prefetched;
      counters.h2d_bytes += bytes;
      counters.prefetch_bytes += bytes;
      foreseen = SlotMap::Foreseen::unused;
  }
  policy_->inserted(cache, chunk, reason);
}

void SlotStaging::evict(CacheId cache, std::int32_t chunk) {
  SlotMap& slots = map(cache.sequence);
  slots.erase({cache.layer, chunk});
  note_move(cache, chunk, -1, false);
  ++count(cache.layer).evictions;
  SlotMap::Foreseen& foreseen = slots.at({cache.layer, chunk}).foreseen;
  if (foreseen == SlotMap::Foreseen::unused) {
    foreseen = SlotMap::Foreseen::wasted;
    ++count(cache.layer).prefetch_wasted;
  }
  policy_->evicted(cache, chunk);
}

void SlotStaging::note_move(CacheId cache, std::int32_t chunk, std::int32_t slot, bool copies) {
  const StagedRows& rows = layers_[static_cast<std::size_t>(cache.layer)];
  const std::int64_t row = cache.sequence * rows.n_chunks + chunk;
  SlotMove move;
  move.entry = const_cast<std::int32_t*>(rows.slot_of) + row;
  if (copies) move.from = rows.pool + row * row_bytes_;
  if (slot >= 0) move.to = rows.slots + (cache.sequence * rows.n_slots + slot) * row_bytes_;
  move.value = slot;
  move.row_bytes = static_cast<std::int32_t>(row_bytes_);
  moves_.push_back({cache.sequence, move});
}

void SlotStaging::refuse(CacheId cache, const char* what, ChunkId answer) {
  const std::uint64_t n = ++count(cache.layer).refused;
  if ((n & (n - 1)) != 0) return;  // the 1st, 2nd, 4th, 8th and so on are logged
  host_.log(LogLevel::warning,
            fmt::format("answer refused: {} (layer {}, chunk {}); {} so far for layer {}", what,
                        answer.layer, answer.chunk, n, cache.layer));
}

void SlotStaging::publish(const SlotMoves& list) {
  EBB_ASSERT(std::ssize(moves_) <= list.max_moves);
  std::transform(moves_.begin(), moves_.end(), const_cast<SlotMove*>(list.moves),
                 [](const Move& move) { return move.move; });
  *const_cast<std::int32_t*>(list.count) = static_cast<std::int32_t>(moves_.size());
  moves_.clear();
}

}  // namespace ebb
