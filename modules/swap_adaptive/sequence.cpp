#include "modules/swap_adaptive/sequence.h"

#include <algorithm>

// A selection is a set, and most of it is the last step's selection once more. That says nothing
// about a chunk beyond "still needed"; what says something is a chunk that left the selection and
// came back. So each layer keeps two lists of the chunks with slots, by the time of their last use:
//   once    selected (or born) and not let go since
//   again   came back at least once after a pause
// and behind each the ghosts of those that lost their slots. A miss that finds its ghost in `once`
// says that the list was too short, one in `again` likewise: the target length of `once` moves
// towards the list that was missed. The idea of two lists and two ghost lists that tune each other
// is that of ARC (Megiddo and Modha, FAST 2003); sets, pauses, shares and the guard are ours.
//
// Victims come from a layer that has more slots than its share (slot_shares.h), the tail of the
// list that is over its target; and where that would stray too far from LRU (lru_guard.h), they are
// chunks that LRU has already let go, or LRU's own choice.

namespace ebb::adaptive {
namespace {

// Chunks that must not go are passed over, and moved to the front so that the next call does not
// meet them again. A call that meets more of them than this gives up.
constexpr int kMaxProbes = 16;

}  // namespace

Settings Settings::read(Options& options) {
  Settings s;
  s.regret = options.get_float("regret", s.regret, 0, 1);
  s.window = options.get_int("window", s.window, 0, 1 << 20);
  return s;
}

void Sequence::resize(const SwapShape& shape, const Settings& settings) {
  const std::int64_t n_all = shape.n_layers * shape.n_chunks;
  // Slots, ghosts and LRU's chunks may all be different; a step adds a selection before it removes.
  const std::int64_t n_wanted = 3 * shape.n_slots + 2 * shape.top_k + kMaxProbes;
  const auto n_entries = static_cast<std::int32_t>(std::min(n_all, n_wanted));
  table_.resize(shape.n_layers, shape.n_chunks, n_entries);
  entries_.resize(static_cast<std::size_t>(n_entries));
  layers_.resize(static_cast<std::size_t>(shape.n_layers));
  leaving_ = shape.n_layers * kinds;
  lists_.resize(n_entries, leaving_ + 1);
  guard_.resize(n_entries, shape.n_layers, shape.n_slots, settings.regret);
  shares_.resize(shape.n_layers, shape.n_slots, shape.top_k, settings.window);
  clear();
}

void Sequence::clear() {
  table_.clear();
  lists_.clear();
  guard_.clear();
  shares_.clear();
  for (Entry& entry : entries_) entry = {};
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(layers_.size()); ++l) {
    layer(l) = {0, 0, static_cast<double>(shares_.share(l)) / 2};
  }
  pending_ = 0;
}

bool Sequence::is_ghost(std::int32_t i) const {
  const std::int32_t list = lists_.list_of(i);
  return list != kNone && list != leaving_ && list % kinds >= once_ghost;
}

// The chunk's entry, a new one if need be; kNone if there is none left even for want of ghosts.
std::int32_t Sequence::entry_for(ChunkId chunk) {
  std::int32_t i = table_.find(chunk);
  if (i != kNone) return i;
  i = table_.take(chunk);
  for (std::int32_t l = 0; i == kNone && l < static_cast<std::int32_t>(layers_.size()); ++l) {
    for (const Kind kind : {once_ghost, again_ghost}) {
      const std::int32_t ghost = lists_.back(list(l, kind));
      if (ghost == kNone || i != kNone) continue;
      lists_.remove(ghost);
      forget_if_unknown(ghost);
      i = table_.take(chunk);
    }
  }
  if (i != kNone) entry(i) = {};
  return i;
}

void Sequence::forget_if_unknown(std::int32_t i) {
  if (lists_.list_of(i) == kNone && !guard_.holds(i)) table_.give_back(i);
}

void Sequence::place(std::int32_t i, std::int32_t l, bool at_front) {
  const std::int32_t to = list(l, entry(i).is_frequent ? again : once);
  if (at_front) {
    lists_.push_front(to, i);
  } else {
    lists_.push_back(to, i);
  }
}

// A missed chunk was here before: the list it left was too short, by the weight of the other's
// ghosts as in ARC.
void Sequence::ghost_hit(std::int32_t i, std::int32_t l) {
  Layer& state = layer(l);
  const double n_once = lists_.size(list(l, once_ghost));
  const double n_again = lists_.size(list(l, again_ghost));
  if (lists_.list_of(i) == list(l, once_ghost)) {
    state.once_target += std::max(1.0, n_again / n_once);
  } else {
    state.once_target -= std::max(1.0, n_once / n_again);
  }
  state.once_target = std::clamp(state.once_target, 0.0, static_cast<double>(shares_.share(l)));
  if (state.n_evicted - entry(i).evicted < shares_.reach()) shares_.near_miss(l);
  entry(i).is_frequent = true;
  lists_.push_front(list(l, again_ghost), i);
}

void Sequence::selected(std::int32_t l, std::span<const std::int32_t> chunks,
                        const SlotView& slots) {
  put_back_leaving();
  trim_lru(l, slots);  // what LRU gave up for chunks that were completed
  shares_.tick();
  Layer& state = layer(l);
  ++state.clock;
  pending_ = 0;
  for (const std::int32_t chunk : chunks) {
    const std::int32_t i = table_.find({l, chunk});
    const bool is_known = i != kNone;
    const bool is_resident = is_known && entry(i).is_resident;
    if (!is_resident) {
      guard_.missed();
      ++pending_;
    }
    if (!is_known) continue;
    const bool is_back = entry(i).seen + 1 != state.clock;
    entry(i).seen = state.clock;
    if (guard_.holds(i)) guard_.touch(i);
    if (is_resident) {
      entry(i).is_frequent |= is_back;
      place(i, l, true);
    } else if (is_ghost(i) && is_back) {
      ghost_hit(i, l);
    }
  }
  // LRU too takes its hits before it makes room for its misses.
  for (const std::int32_t chunk : chunks) {
    const std::int32_t i = entry_for({l, chunk});
    if (i == kNone) {
      guard_.lru_missed();
    } else if (!guard_.holds(i)) {
      guard_.lru_missed();
      guard_.insert(i, l, entry(i).is_resident);
      entry(i).seen = state.clock;
    }
  }
  trim_lru(l, slots);
}

void Sequence::inserted(ChunkId chunk) {
  const std::int32_t i = entry_for(chunk);
  if (i == kNone || entry(i).is_resident) return;
  Entry& state = entry(i);
  if (state.seen == layer(chunk.layer).clock && pending_ > 0) --pending_;
  state.seen = layer(chunk.layer).clock;
  state.is_resident = true;
  place(i, chunk.layer, true);
  shares_.use(chunk.layer, 1);
  if (guard_.holds(i)) {
    guard_.arrived();
  } else {
    guard_.insert(i, chunk.layer, true);  // LRU would have been given it as well
  }
}

void Sequence::evicted(ChunkId chunk) {
  const std::int32_t i = table_.find(chunk);
  if (i == kNone || !entry(i).is_resident) return;
  Entry& state = entry(i);
  state.is_resident = false;
  state.evicted = layer(chunk.layer).n_evicted++;
  lists_.push_front(list(chunk.layer, state.is_frequent ? again_ghost : once_ghost), i);
  shares_.use(chunk.layer, -1);
  guard_.left(i);
  trim_ghosts(chunk.layer);
}

// As many ghosts as slots, and no more chunks of `once` with ghosts than slots, as in ARC.
void Sequence::trim_ghosts(std::int32_t l) {
  const auto share = static_cast<std::int32_t>(shares_.share(l));
  for (;;) {
    const std::int32_t n_once = lists_.size(list(l, once_ghost));
    const std::int32_t n_again = lists_.size(list(l, again_ghost));
    if (n_once + n_again <= share) return;
    const bool is_once_over = lists_.size(list(l, once)) + n_once > share;
    const bool from_once = n_once > 0 && (is_once_over || n_again == 0);
    const std::int32_t i = lists_.back(list(l, from_once ? once_ghost : again_ghost));
    lists_.remove(i);
    entry(i).is_frequent = false;
    forget_if_unknown(i);
  }
}

// Takes from LRU what it has too much. It keeps what the core keeps it from evicting.
void Sequence::trim_lru(std::int32_t l, const SlotView& slots) {
  for (int n_kept = 0; guard_.is_over(l);) {
    const std::int32_t i = guard_.oldest(l);
    if (entry(i).is_resident && n_kept < kMaxProbes && !slots.evictable(table_.chunk(i))) {
      guard_.touch(i);
      ++n_kept;
      continue;
    }
    guard_.drop(i, entry(i).is_resident, entry(i).is_frequent);
    forget_if_unknown(i);
  }
}

// Victims that the core did not evict after all.
void Sequence::put_back_leaving() {
  for (std::int32_t i; (i = lists_.back(leaving_)) != kNone;) {
    place(i, table_.chunk(i).layer, false);
    guard_.show(i, entry(i).is_frequent);
  }
}

std::size_t Sequence::admit(std::int32_t l, std::span<const std::int32_t> missed,
                            std::span<std::int32_t> out) {
  std::size_t n = 0;
  for (const bool is_frequent : {true, false}) {
    for (const std::int32_t chunk : missed) {
      if (n == out.size()) break;
      const std::int32_t i = table_.find({l, chunk});
      if ((i != kNone && entry(i).is_frequent) == is_frequent) out[n++] = chunk;
    }
  }
  pending_ = static_cast<std::int64_t>(n);
  return n;
}

std::size_t Sequence::victims(std::int32_t l, std::span<ChunkId> out, const SlotView& slots) {
  put_back_leaving();
  trim_lru(l, slots);
  std::size_t n = 0;
  std::int64_t n_insiders = 0;
  std::int32_t cursor = kNone;
  for (; n < out.size(); ++n) {
    std::int32_t i = choose(l, slots);
    if (i == kNone || (!guard_.is_outsider(i) && !guard_.allows(n_insiders + 1, pending_))) {
      const std::int32_t lru = lru_choice(l, cursor, slots);
      if (lru != kNone) i = lru;
    }
    if (i == kNone) break;
    n_insiders += !guard_.is_outsider(i);
    out[n] = table_.chunk(i);
    lists_.push_front(leaving_, i);
    guard_.hide(i);
  }
  return n;
}

// The choice without regard to LRU.
std::int32_t Sequence::choose(std::int32_t l, const SlotView& slots) {
  const std::int32_t from = shares_.is_full(l) ? l : shares_.over();
  if (from == kNone) return oldest(l, slots);
  const std::int32_t i = oldest(from, slots);
  return i == kNone && from != l ? oldest(l, slots) : i;
}

std::int32_t Sequence::oldest(std::int32_t l, const SlotView& slots) {
  const bool is_once_over = lists_.size(list(l, once)) > layer(l).once_target;
  for (const Kind kind : {is_once_over ? once : again, is_once_over ? again : once}) {
    for (int n = 0; n < kMaxProbes; ++n) {
      const std::int32_t i = lists_.back(list(l, kind));
      if (i == kNone) break;
      if (slots.evictable(table_.chunk(i))) return i;
      place(i, l, true);
    }
  }
  return kNone;
}

// An outsider, or what LRU would give up now. Of the outsiders, those that never came back go
// first: what is allowed to stray from LRU should not be spent on them. `cursor` is where the last
// search ended, among LRU's chunks.
std::int32_t Sequence::lru_choice(std::int32_t l, std::int32_t& cursor, const SlotView& slots) {
  for (const bool is_frequent : {false, true}) {
    for (int n = 0; n < kMaxProbes; ++n) {
      const std::int32_t i = guard_.oldest_outsider(is_frequent);
      if (i == kNone) break;
      if (slots.evictable(table_.chunk(i))) return i;
      guard_.skip_outsider(i);
    }
  }
  for (int n = 0; n < kMaxProbes; ++n) {
    cursor = cursor == kNone ? guard_.oldest(l) : guard_.newer_than(cursor);
    if (cursor == kNone) break;
    if (entry(cursor).is_resident && lists_.list_of(cursor) != leaving_ &&
        slots.evictable(table_.chunk(cursor))) {
      return cursor;
    }
  }
  return kNone;
}

}  // namespace ebb::adaptive
