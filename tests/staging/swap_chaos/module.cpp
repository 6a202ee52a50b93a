// The worst policy there is: random victims, fewer than asked for now and then, random admissions
// in random order; and, with `lies`, answers that no policy may give. Slots are given in random
// order too.

#include <algorithm>
#include <memory>
#include <random>

#include "modules/swap_common/slot_staging.h"

namespace ebb {
namespace {

class SwapChaos final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<SwapChaos>> create(Host&, Options& options) {
    const auto seed = options.get_int("seed", 0, 0, std::int64_t{1} << 62);
    const double lies = options.get_float("lies", 0, 0, 1);
    EBB_TRY(options.finish());
    return std::make_unique<SwapChaos>(static_cast<std::uint64_t>(seed), lies);
  }
  SwapChaos(std::uint64_t seed, double lies) : random_(seed), lies_(lies) {}

  Status open(const SwapShape& shape) noexcept override {
    shape_ = shape;
    return ok_status();
  }
  void forget(std::int32_t) noexcept override {}
  void selected(CacheId, std::span<const std::int32_t>, const SlotView&) noexcept override {}
  void inserted(CacheId, std::int32_t, SlotReason) noexcept override {}
  void evicted(CacheId, std::int32_t) noexcept override {}
  void scored(std::int32_t, std::span<const float>) noexcept override {}

  std::size_t admit(CacheId, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    std::size_t n = 0;
    for (std::size_t i = 0; i < missed.size() && n < out.size(); ++i) {
      if (draw(3) == 0) out[n++] = missed[i];
    }
    for (std::size_t i = n; i > 1; --i) std::swap(out[i - 1], out[draw(i)]);
    for (std::size_t i = 0; i < n; ++i) {
      if (lie()) out[i] = draw(2) == 0 ? out[0] : static_cast<std::int32_t>(random_());
    }
    return lie() ? out.size() + 1 + draw(9) : n;
  }

  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    if (draw(50) == 0) return 0;
    std::size_t n = 0;
    const auto n_chunks = static_cast<std::size_t>(shape_.n_chunks);
    for (std::size_t tries = 0; n < out.size() && tries < 4 * n_chunks; ++tries) {
      // Mostly of the layer itself, now and then of any.
      const std::int32_t layer =
          draw(8) == 0 ? static_cast<std::int32_t>(draw(static_cast<std::size_t>(shape_.n_layers)))
                       : cache.layer;
      const ChunkId id{layer, static_cast<std::int32_t>(draw(n_chunks))};
      bool named = !slots.evictable(id);
      for (std::size_t i = 0; i < n; ++i) {
        named = named || (out[i].layer == id.layer && out[i].chunk == id.chunk);
      }
      if (!named) out[n++] = id;
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (!lie()) continue;
      const auto any = static_cast<std::int32_t>(random_());
      const ChunkId nonsense[] = {{any, 0}, {cache.layer, any}, {-1, -1}, out[0], {0, 0}};
      out[i] = nonsense[draw(5)];
    }
    return lie() ? out.size() + 1 + draw(9) : n;
  }

 private:
  std::size_t draw(std::size_t n) { return random_() % n; }
  bool lie() { return lies_ > 0 && static_cast<double>(random_() % 1000) < lies_ * 1000; }

  std::mt19937_64 random_;
  const double lies_;
  SwapShape shape_;
};

class ChaosStaging final : public SlotStaging {
 public:
  static Result<std::unique_ptr<ChaosStaging>> create(Host& host, Options& options) {
    const SwapSettings settings = SwapSettings::read(options);
    EBB_ASSIGN(std::unique_ptr<SwapPolicy> policy, SwapChaos::create(host, options));
    return std::make_unique<ChaosStaging>(host, settings, std::move(policy));
  }
  using SlotStaging::SlotStaging;

  void begin_step(const std::int32_t* pos, const std::int32_t* seq,
                  std::int32_t n_rows) noexcept override {
    for (std::int32_t row = 0; row < n_rows; ++row) shuffle(seq[row]);
    SlotStaging::begin_step(pos, seq, n_rows);
  }

 private:
  void shuffle(std::int32_t sequence) {
    const std::span<std::int32_t> free = free_list(sequence);
    std::shuffle(free.begin(), free.end(), random_);
  }
  std::mt19937_64 random_{1};
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::ChaosStaging, "swap_chaos", EBB_VERSION);
