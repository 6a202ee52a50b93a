#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "core/api/host.h"
#include "core/api/options.h"
#include "modules/swap_common/policy.h"

namespace ebb {

/// The policy whose sequences know nothing of each other: each question goes to the `Sequence` that
/// it is about, which has slots, selections and scores of its own. A Sequence has
///   Settings, with static Settings read(Options&), which does not finish the options
///   resize(const SwapShape&, const Settings&)   the only one that allocates
///   clear()
/// and what is called below, in the sense of SwapPolicy.
template <class Sequence>
class PerSequencePolicy final : public SwapPolicy {
 public:
  using Settings = typename Sequence::Settings;

  static Result<std::unique_ptr<PerSequencePolicy>> create(Host&, Options& options) {
    const Settings settings = Settings::read(options);
    EBB_TRY(options.finish());
    return std::make_unique<PerSequencePolicy>(settings);
  }
  explicit PerSequencePolicy(const Settings& settings) : settings_(settings) {}

  Status open(const SwapShape& shape) noexcept override {
    try {
      sequences_.resize(static_cast<std::size_t>(shape.max_open));
      for (Sequence& sequence : sequences_) sequence.resize(shape, settings_);
    } catch (const std::exception&) {
      return make_error(Errc::out_of_memory, "no memory for the lists of %d sequences",
                        shape.max_open);
    }
    return ok_status();
  }
  void forget(std::int32_t sequence) noexcept override { at(sequence).clear(); }
  void selected(CacheId cache, std::span<const std::int32_t> chunks,
                const SlotView& slots) noexcept override {
    at(cache.sequence).selected(cache.layer, chunks, slots);
  }
  void inserted(CacheId cache, std::int32_t chunk, SlotReason) noexcept override {
    at(cache.sequence).inserted({cache.layer, chunk});
  }
  void evicted(CacheId cache, std::int32_t chunk) noexcept override {
    at(cache.sequence).evicted({cache.layer, chunk});
  }
  void scored(std::int32_t sequence, std::span<const float> scores) noexcept override {
    at(sequence).scored(scores);
  }
  std::size_t admit(CacheId cache, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    return at(cache.sequence).admit(cache.layer, missed, out);
  }
  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    return at(cache.sequence).victims(cache.layer, out, slots);
  }

 private:
  Sequence& at(std::int32_t sequence) { return sequences_[static_cast<std::size_t>(sequence)]; }

  const Settings settings_;
  std::vector<Sequence> sequences_;
};

}  // namespace ebb
