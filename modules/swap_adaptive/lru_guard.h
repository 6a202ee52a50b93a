#pragma once

#include <cstdint>

#include "modules/swap_common/lists.h"

namespace ebb::adaptive {

/// What plain LRU with equal shares for all layers would hold and miss, and how far one may stray
/// from it.
///
/// Invariant behind the guarantee. Let `exposure` be
///     (own misses - LRU's misses) + chunks that LRU would hold and that have no slot ("lacking").
/// A selected chunk never raises it: if only LRU holds the chunk, a miss is paid and one lacking
/// chunk comes back; if only we hold it, LRU pays. Making room raises it by one when the victim is
/// a chunk that LRU would hold, and not at all when the victim is one that LRU has let go (an
/// "outsider"); if all slots are taken there is an outsider for every lacking chunk. So whoever
/// takes insiders only while exposure stays within `regret` times LRU's misses never has more than
/// 1 + regret times LRU's misses, at no point of any trace.
class LruGuard {
 public:
  static constexpr std::int32_t kNone = Lists::kNone;

  /// Allocates. `regret`: share of LRU's misses that may be lost.
  void resize(std::int32_t n_entries, std::int32_t n_layers, std::int64_t n_slots, double regret) {
    order_.resize(n_entries, n_layers);
    outsiders_.resize(n_entries, 2);
    quota_ = n_slots / n_layers;
    regret_ = regret;
    clear();
  }
  void clear() {
    order_.clear();
    outsiders_.clear();
    misses_ = lru_misses_ = lacking_ = 0;
  }

  bool holds(std::int32_t entry) const { return order_.list_of(entry) != kNone; }
  bool is_outsider(std::int32_t entry) const { return outsiders_.list_of(entry) != kNone; }
  /// Whether LRU has to let one go.
  bool is_over(std::int32_t layer) const { return order_.size(layer) > quota_; }
  /// What LRU gives up next in a layer; kNone if it holds nothing of it.
  std::int32_t oldest(std::int32_t layer) const { return order_.back(layer); }
  std::int32_t newer_than(std::int32_t entry) const { return order_.before(entry); }
  /// The one outside for longest, of those that came back once or of the others.
  std::int32_t oldest_outsider(bool is_frequent) const { return outsiders_.back(is_frequent); }
  void skip_outsider(std::int32_t entry) {
    outsiders_.push_front(outsiders_.list_of(entry), entry);
  }
  /// A chunk is named as victim, or it stays after all.
  void hide(std::int32_t entry) { outsiders_.remove(entry); }
  void show(std::int32_t entry, bool is_frequent) {
    if (!holds(entry)) outsiders_.push_back(is_frequent, entry);
  }

  /// One of our own misses.
  void missed() { ++misses_; }
  /// LRU holds it already.
  void touch(std::int32_t entry) { order_.push_front(order_.list_of(entry), entry); }
  void lru_missed() { ++lru_misses_; }
  /// LRU gets it.
  void insert(std::int32_t entry, std::int32_t layer, bool is_resident) {
    order_.push_front(layer, entry);
    if (is_resident) {
      outsiders_.remove(entry);
    } else {
      ++lacking_;
    }
  }
  /// LRU lets it go.
  void drop(std::int32_t entry, bool is_resident, bool is_frequent) {
    order_.remove(entry);
    if (is_resident) {
      outsiders_.push_front(is_frequent, entry);
    } else {
      --lacking_;
    }
  }
  /// A chunk that LRU holds got a slot.
  void arrived() { --lacking_; }
  /// A chunk lost its slot.
  void left(std::int32_t entry) {
    if (holds(entry)) {
      ++lacking_;
    } else {
      outsiders_.remove(entry);
    }
  }

  /// Whether `n` insiders may go, if `pending` chunks that are missed now get slots at once.
  bool allows(std::int64_t n, std::int64_t pending) const {
    const std::int64_t exposure = misses_ - lru_misses_ + lacking_ - pending;
    return static_cast<double>(exposure + n) <= regret_ * static_cast<double>(lru_misses_);
  }

 private:
  Lists order_;      // what LRU would hold, by layer, newest first
  Lists outsiders_;  // [2] chunks with a slot that LRU would not hold, longest outside last
  std::int64_t quota_ = 0;
  double regret_ = 0;
  std::int64_t misses_ = 0, lru_misses_ = 0, lacking_ = 0;
};

}  // namespace ebb::adaptive
