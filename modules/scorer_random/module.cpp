// The baseline of chance: a logit is a hash of seeds, query position and chunk, so a run repeats
// whatever else runs beside it, and no state is kept.

#include <cstdint>
#include <memory>

#include "core/api/host.h"
#include "core/api/memory.h"

namespace ebb {
namespace {

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

/// A bijection of 64 bits after which one changed bit of the argument has changed half of them.
/// Source: SplitMix64, Steele et al., OOPSLA 2014
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class ScorerRandom final : public Scorer {
 public:
  static Result<std::unique_ptr<ScorerRandom>> create(Host& host, Options& options) {
    const auto seed =
        static_cast<std::uint64_t>(options.get_int("seed", 0, 0, std::int64_t{1} << 62));
    EBB_TRY(options.finish());
    return std::make_unique<ScorerRandom>(mix(mix(host.seed() + kStep) + seed + kStep));
  }

  explicit ScorerRandom(std::uint64_t seed) : seed_(seed) {}

  std::int32_t layer() const noexcept override { return -1; }
  Status load() noexcept override { return ok_status(); }
  void carve(Arena&, const SessionShape&) noexcept override {}
  Status plan(Ops&, const StepView&, std::int32_t, float*, std::int64_t) noexcept override {
    return ok_status();
  }

  /// Equal sequences get equal logits: which of them asks is not part of the hash.
  void finish(std::int32_t, std::int64_t pos, std::span<float> logits) noexcept override {
    std::uint64_t counter = mix(seed_ + static_cast<std::uint64_t>(pos) * kStep);
    for (float& logit : logits) {
      // 24 bits, which a float between -1 and 1 holds exactly.
      const auto bits = static_cast<std::int32_t>(mix(counter += kStep) >> 40);
      logit = static_cast<float>(bits - (1 << 23)) / static_cast<float>(1 << 23);
    }
  }

 private:
  const std::uint64_t seed_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Scorer, ebb::ScorerRandom, "scorer_random", EBB_VERSION);
