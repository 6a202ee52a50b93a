// A piece starts as one symbol per byte. Of all adjacent pairs that have a merge, the one of lowest
// rank is joined, the leftmost first among equals, until no pair is left.
//
// The symbols are a doubly linked list in an array, so a join is O(1), and candidate pairs wait in
// a heap ordered by (rank, position). A join leaves stale candidates behind; one is recognised when
// it comes up, because the pair that now stands at its position has another rank (a rank belongs to
// one pair only). Each join adds at most two candidates: O(n log n) whatever the text.

#include "modules/tokenizer_gguf/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

namespace ebb::tokenizer_gguf {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary) : byte_token_(vocabulary.byte_tokens()) {
  // Counting sort by left token; merges arrive by rank, so the stable sort by right token below
  // keeps the lower rank of two equal merges in front, where find() meets it.
  const std::vector<Merge>& merges = vocabulary.merges();
  first_entry_.assign(static_cast<std::size_t>(vocabulary.size()) + 1, 0);
  for (const Merge& merge : merges) ++first_entry_[static_cast<std::size_t>(merge.left) + 1];
  for (std::size_t i = 1; i < first_entry_.size(); ++i) first_entry_[i] += first_entry_[i - 1];
  entries_.resize(merges.size());
  std::vector<std::uint32_t> place(first_entry_.begin(), first_entry_.end() - 1);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    entries_[place[static_cast<std::size_t>(merge.left)]++] = {merge.right, merge.joined,
                                                               static_cast<std::uint32_t>(rank)};
  }
  for (std::size_t left = 0; left + 1 < first_entry_.size(); ++left) {
    std::sort(entries_.begin() + first_entry_[left], entries_.begin() + first_entry_[left + 1],
              [](const Entry& a, const Entry& b) {
                return std::tie(a.right, a.rank) < std::tie(b.right, b.rank);
              });
  }
}

const Bpe::Entry* Bpe::find(std::int32_t left, std::int32_t right) const noexcept {
  const Entry* begin = entries_.data() + first_entry_[static_cast<std::size_t>(left)];
  const Entry* end = entries_.data() + first_entry_[static_cast<std::size_t>(left) + 1];
  const Entry* found = std::lower_bound(
      begin, end, right, [](const Entry& entry, std::int32_t id) { return entry.right < id; });
  return found != end && found->right == right ? found : nullptr;
}

void Bpe::push_pair(std::uint32_t at, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols_[at];
  if (left.next == kNone) return;
  const Entry* merge = find(left.token, scratch.symbols_[left.next].token);
  if (merge == nullptr) return;
  scratch.queue_.push_back(std::uint64_t{merge->rank} << 32 | at);
}

void Bpe::merge_piece(std::string_view piece, Scratch& scratch,
                      std::vector<std::int32_t>& ids) const {
  auto& symbols = scratch.symbols_;
  auto& queue = scratch.queue_;
  const auto n = static_cast<std::uint32_t>(piece.size());
  symbols.resize(n);
  queue.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_token_[static_cast<std::uint8_t>(piece[i])], i == 0 ? kNone : i - 1,
                  i + 1 == n ? kNone : i + 1};
  }
  for (std::uint32_t i = 0; i < n; ++i) push_pair(i, scratch);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());

  const auto push_heap = [&](std::uint32_t at) {
    const std::size_t before = queue.size();
    push_pair(at, scratch);
    if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    const auto at = static_cast<std::uint32_t>(queue.back());
    queue.pop_back();

    Scratch::Symbol& left = symbols[at];
    if (left.token < 0 || left.next == kNone) continue;
    Scratch::Symbol& right = symbols[left.next];
    const Entry* merge = find(left.token, right.token);
    if (merge == nullptr || merge->rank != rank) continue;

    left.token = merge->joined;
    right.token = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = at;
    if (left.previous != kNone) push_heap(left.previous);
    push_heap(at);
  }

  for (std::uint32_t at = n == 0 ? kNone : 0; at != kNone; at = symbols[at].next) {
    ids.push_back(symbols[at].token);
  }
}

}  // namespace ebb::tokenizer_gguf
