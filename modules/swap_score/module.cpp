#include <exception>
#include <memory>
#include <vector>

#include "modules/swap_common/slot_staging.h"
#include "modules/swap_score/sequence.h"

// Sequences know nothing of each other: each has its own slots, selections and scores.

namespace ebb {
namespace {

class SwapScore final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<SwapScore>> create(Host&, Options& options) {
    score::Settings settings;
    settings.score = options.get_float("score", settings.score, 0, 1e6);
    settings.frequency = options.get_float("frequency", settings.frequency, 0, 1e6);
    settings.recency = options.get_float("recency", settings.recency, 0, 1e6);
    settings.half_life = options.get_float("half_life", settings.half_life, 1, 1e6);
    EBB_TRY(options.finish());
    return std::make_unique<SwapScore>(settings);
  }
  explicit SwapScore(const score::Settings& settings) : settings_(settings) {}

  Status open(const SwapShape& shape) noexcept override {
    try {
      sequences_.resize(static_cast<std::size_t>(shape.max_sequences));
      for (score::Sequence& sequence : sequences_) sequence.resize(shape, settings_);
    } catch (const std::exception&) {
      return make_error(Errc::out_of_memory, "no memory for the lists of %d sequences",
                        shape.max_sequences);
    }
    return ok_status();
  }
  void forget(std::int32_t sequence) noexcept override { at(sequence).clear(); }
  void selected(CacheId cache, std::span<const std::int32_t> chunks,
                const SlotView&) noexcept override {
    at(cache.sequence).selected(cache.layer, chunks);
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
    return at(cache.sequence).victims(out, slots);
  }

 private:
  score::Sequence& at(std::int32_t sequence) {
    return sequences_[static_cast<std::size_t>(sequence)];
  }

  score::Settings settings_;
  std::vector<score::Sequence> sequences_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::SwapScore>, "swap_score", EBB_VERSION);
