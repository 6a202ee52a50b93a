// Least recently used. Each layer of each sequence has a list of its resident chunks, the last used
// in front; every layer has the same share of the slots. All of a step's hits are moved to the
// front before the first victim is asked for, and the core names none of them evictable: a step
// never evicts what it needs itself, whatever the order of its selections.
//
// The lists are threaded through one array of links by chunk, made in open(): a touch, an insertion
// and a removal are constant time, and nothing is allocated later.

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "modules/swap_common/slot_staging.h"

namespace ebb {
namespace {

constexpr std::int32_t kNone = -1;

/// Resident chunks of one layer of one sequence in order of last use.
class RecencyList {
 public:
  explicit RecencyList(std::int64_t n_chunks) : links_(static_cast<std::size_t>(n_chunks)) {}

  std::int64_t size() const { return size_; }
  bool contains(std::int32_t chunk) const { return links(chunk).listed; }
  std::int32_t oldest() const { return tail_; }
  std::int32_t newer(std::int32_t chunk) const { return links(chunk).newer; }

  void push_front(std::int32_t chunk) {
    links(chunk) = {kNone, head_, true};
    (head_ == kNone ? tail_ : links(head_).newer) = chunk;
    head_ = chunk;
    ++size_;
  }
  void remove(std::int32_t chunk) {
    const Links gone = links(chunk);
    (gone.newer == kNone ? head_ : links(gone.newer).older) = gone.older;
    (gone.older == kNone ? tail_ : links(gone.older).newer) = gone.newer;
    links(chunk) = {};
    --size_;
  }

 private:
  struct Links {
    std::int32_t newer = kNone, older = kNone;
    bool listed = false;
  };
  Links& links(std::int32_t chunk) { return links_[static_cast<std::size_t>(chunk)]; }
  const Links& links(std::int32_t chunk) const { return links_[static_cast<std::size_t>(chunk)]; }

  std::vector<Links> links_;
  std::int32_t head_ = kNone, tail_ = kNone;
  std::int64_t size_ = 0;
};

class SwapLru final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<SwapLru>> create(Host&, Options& options) {
    EBB_TRY(options.finish());
    return std::make_unique<SwapLru>();
  }

  Status open(const SwapShape& shape) noexcept override {
    try {
      n_layers_ = shape.n_layers;
      quota_ = shape.n_slots / shape.n_layers;
      lists_.assign(static_cast<std::size_t>(shape.max_open * shape.n_layers),
                    RecencyList(shape.n_chunks));
      return ok_status();
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory,
                        "swap_lru: no memory for lists of %d x %d x %lld chunks", shape.max_open,
                        shape.n_layers, static_cast<long long>(shape.n_chunks));
    }
  }

  void forget(std::int32_t sequence) noexcept override {
    for (std::int32_t layer = 0; layer < n_layers_; ++layer) {
      RecencyList& list = at({sequence, layer});
      while (list.oldest() != kNone) list.remove(list.oldest());
    }
  }

  void selected(CacheId cache, std::span<const std::int32_t> chunks,
                const SlotView&) noexcept override {
    RecencyList& list = at(cache);
    for (const std::int32_t chunk : chunks) {
      if (!list.contains(chunk)) continue;
      list.remove(chunk);
      list.push_front(chunk);
    }
  }
  void inserted(CacheId cache, std::int32_t chunk, SlotReason) noexcept override {
    at(cache).push_front(chunk);
  }
  void evicted(CacheId cache, std::int32_t chunk) noexcept override { at(cache).remove(chunk); }
  void scored(std::int32_t, std::span<const float>) noexcept override {}

  /// All of them, as far as they may: the latest chunks first.
  std::size_t admit(CacheId, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    const std::size_t n = std::min(missed.size(), out.size());
    std::copy_n(missed.rbegin(), n, out.begin());
    return n;
  }

  /// The oldest of the layers that have more than their share, then the oldest of the layer itself.
  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    std::size_t n = 0;
    for (std::int32_t layer = 0; layer < n_layers_ && n < out.size(); ++layer) {
      const CacheId other{cache.sequence, layer};
      if (layer != cache.layer) n += take(other, at(other).size() - quota_, out.subspan(n), slots);
    }
    return n + take(cache, at(cache).size(), out.subspan(n), slots);
  }

 private:
  RecencyList& at(CacheId cache) {
    return lists_[static_cast<std::size_t>(cache.sequence * n_layers_ + cache.layer)];
  }

  /// Names up to `most` evictable chunks of a list, oldest first.
  std::size_t take(CacheId cache, std::int64_t most, std::span<ChunkId> out,
                   const SlotView& slots) {
    const RecencyList& list = at(cache);
    std::size_t n = 0;
    for (std::int32_t chunk = list.oldest();
         chunk != kNone && n < out.size() && static_cast<std::int64_t>(n) < most;
         chunk = list.newer(chunk)) {
      if (slots.evictable({cache.layer, chunk})) out[n++] = {cache.layer, chunk};
    }
    return n;
  }

  std::int32_t n_layers_ = 0;
  std::int64_t quota_ = 0;
  std::vector<RecencyList> lists_;  // [max_open, n_layers]
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::SwapLru>, "swap_lru", EBB_VERSION);
