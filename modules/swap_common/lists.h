#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ebb {

/// Doubly linked lists over the nodes 0..n_nodes-1, each node in one list at most. The front is
/// where the newest stands. Only resize() allocates; all the rest but clear() is O(1).
class Lists {
 public:
  static constexpr std::int32_t kNone = -1;

  /// All lists empty.
  void resize(std::int32_t n_nodes, std::int32_t n_lists) {
    n_nodes_ = n_nodes;
    links_.resize(static_cast<std::size_t>(n_nodes) + static_cast<std::size_t>(n_lists));
    list_.resize(static_cast<std::size_t>(n_nodes));
    size_.resize(static_cast<std::size_t>(n_lists));
    clear();
  }
  void clear() {
    for (std::int32_t& list : list_) list = kNone;
    for (std::size_t list = 0; list < size_.size(); ++list) {
      const std::int32_t head = n_nodes_ + static_cast<std::int32_t>(list);
      at(head) = {head, head};  // the head of a ring: its neighbours are front and back
      size_[list] = 0;
    }
  }

  /// kNone if it is in none.
  std::int32_t list_of(std::int32_t node) const { return list_[static_cast<std::size_t>(node)]; }
  std::int32_t size(std::int32_t list) const { return size_[static_cast<std::size_t>(list)]; }
  /// kNone if the list is empty.
  std::int32_t front(std::int32_t list) const { return node_or_none(at(n_nodes_ + list).after); }
  std::int32_t back(std::int32_t list) const { return node_or_none(at(n_nodes_ + list).before); }
  /// The neighbour on the side of the front, or kNone.
  std::int32_t before(std::int32_t node) const { return node_or_none(at(node).before); }

  /// The node may be in any list, or in none.
  void push_front(std::int32_t list, std::int32_t node) {
    remove(node);
    link(list, node, n_nodes_ + list);
  }
  void push_back(std::int32_t list, std::int32_t node) {
    remove(node);
    link(list, node, at(n_nodes_ + list).before);
  }
  void remove(std::int32_t node) {
    const std::int32_t list = list_of(node);
    if (list == kNone) return;
    const Link link = at(node);
    at(link.before).after = link.after;
    at(link.after).before = link.before;
    --size_[static_cast<std::size_t>(list)];
    list_[static_cast<std::size_t>(node)] = kNone;
  }

 private:
  struct Link {
    std::int32_t before, after;
  };
  Link& at(std::int32_t i) { return links_[static_cast<std::size_t>(i)]; }
  const Link& at(std::int32_t i) const { return links_[static_cast<std::size_t>(i)]; }
  std::int32_t node_or_none(std::int32_t i) const { return i < n_nodes_ ? i : kNone; }
  void link(std::int32_t list, std::int32_t node, std::int32_t before) {
    const std::int32_t after = at(before).after;
    at(node) = {before, after};
    at(before).after = node;
    at(after).before = node;
    ++size_[static_cast<std::size_t>(list)];
    list_[static_cast<std::size_t>(node)] = list;
  }

  std::int32_t n_nodes_ = 0;
  std::vector<Link> links_;  // of the nodes, then the heads of the lists
  std::vector<std::int32_t> list_;
  std::vector<std::int32_t> size_;
};

}  // namespace ebb
