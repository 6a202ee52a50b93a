#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ebb::score {

/// Entries 0..n-1 that have slots, the least valuable on top; equal values go by the older use.
/// Only resize() allocates. A change of one entry costs O(log n); one that grows more valuable as
/// it is used, like its neighbours, mostly stays where it is.
class ValueHeap {
 public:
  struct Value {
    double key = 0;
    std::uint64_t used = 0;
    bool operator<(const Value& other) const {
      return key != other.key ? key < other.key : used < other.used;
    }
  };

  void resize(std::int32_t n_entries) {
    place_.assign(static_cast<std::size_t>(n_entries), kNone);
    value_.resize(static_cast<std::size_t>(n_entries));
    heap_.reserve(static_cast<std::size_t>(n_entries));
  }
  void clear() {
    for (const std::int32_t entry : heap_) place_[static_cast<std::size_t>(entry)] = kNone;
    heap_.clear();
  }

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  bool holds(std::int32_t entry) const { return place(entry) != kNone; }
  std::int32_t top() const { return heap_.front(); }
  const Value& value(std::int32_t entry) const { return value_[static_cast<std::size_t>(entry)]; }
  /// In no particular order.
  const std::vector<std::int32_t>& entries() const { return heap_; }

  /// Adds the entry or changes its value.
  void set(std::int32_t entry, Value value) {
    value_[static_cast<std::size_t>(entry)] = value;
    if (!holds(entry)) {
      place(entry) = static_cast<std::int32_t>(heap_.size());
      heap_.push_back(entry);
    }
    restore(static_cast<std::size_t>(place(entry)));
  }
  /// The value alone; restore_all() has to follow.
  void set_later(std::int32_t entry, Value value) {
    value_[static_cast<std::size_t>(entry)] = value;
  }
  void restore_all() {
    for (std::size_t i = heap_.size() / 2; i-- > 0;) sink(i);
  }
  void remove(std::int32_t entry) {
    if (!holds(entry)) return;
    const auto i = static_cast<std::size_t>(place(entry));
    swap(i, heap_.size() - 1);
    heap_.pop_back();
    place(entry) = kNone;
    if (i < heap_.size()) restore(i);
  }

 private:
  static constexpr std::int32_t kNone = -1;

  std::int32_t& place(std::int32_t entry) { return place_[static_cast<std::size_t>(entry)]; }
  std::int32_t place(std::int32_t entry) const { return place_[static_cast<std::size_t>(entry)]; }
  bool less(std::size_t i, std::size_t j) const { return value(heap_[i]) < value(heap_[j]); }
  void swap(std::size_t i, std::size_t j) {
    std::swap(heap_[i], heap_[j]);
    place(heap_[i]) = static_cast<std::int32_t>(i);
    place(heap_[j]) = static_cast<std::int32_t>(j);
  }
  void restore(std::size_t i) {
    for (; i > 0 && less(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
    sink(i);
  }
  void sink(std::size_t i) {
    for (std::size_t child; (child = 2 * i + 1) < heap_.size(); i = child) {
      if (child + 1 < heap_.size() && less(child + 1, child)) ++child;
      if (!less(child, i)) return;
      swap(i, child);
    }
  }

  std::vector<std::int32_t> heap_;   // entries
  std::vector<std::int32_t> place_;  // by entry: where in heap_
  std::vector<Value> value_;         // by entry
};

}  // namespace ebb::score
