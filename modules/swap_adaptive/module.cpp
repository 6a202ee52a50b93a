#include <exception>
#include <memory>
#include <vector>

#include "modules/swap_adaptive/sequence.h"
#include "modules/swap_common/slot_staging.h"

// Sequences know nothing of each other: each has its own slots and learns from its own selections.

namespace ebb {
namespace {

class SwapAdaptive final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<SwapAdaptive>> create(Host&, Options& options) {
    adaptive::Settings settings;
    settings.regret = options.get_float("regret", settings.regret, 0, 1);
    settings.window = options.get_int("window", settings.window, 0, 1 << 20);
    EBB_TRY(options.finish());
    return std::make_unique<SwapAdaptive>(settings);
  }
  explicit SwapAdaptive(const adaptive::Settings& settings) : settings_(settings) {}

  Status open(const SwapShape& shape) noexcept override {
    try {
      sequences_.resize(static_cast<std::size_t>(shape.max_sequences));
      for (adaptive::Sequence& sequence : sequences_) sequence.resize(shape, settings_);
    } catch (const std::exception&) {
      return make_error(Errc::out_of_memory, "no memory for the lists of %d sequences",
                        shape.max_sequences);
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
  void scored(std::int32_t, std::span<const float>) noexcept override {}
  std::size_t admit(CacheId cache, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    return at(cache.sequence).admit(cache.layer, missed, out);
  }
  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    return at(cache.sequence).victims(cache.layer, out, slots);
  }

 private:
  adaptive::Sequence& at(std::int32_t sequence) {
    return sequences_[static_cast<std::size_t>(sequence)];
  }

  adaptive::Settings settings_;
  std::vector<adaptive::Sequence> sequences_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::SwapAdaptive>, "swap_adaptive", EBB_VERSION);
