// A scorer that looks at nothing: scores are drawn from position and chunk, some of them NaN. What
// it foresees is wrong, and may cost time and never a bit of a result.

#include <cstdint>
#include <limits>
#include <memory>

#include "core/api/host.h"
#include "core/api/memory.h"
#include "core/api/options.h"

namespace ebb {
namespace {

class ScorerPattern final : public Scorer {
 public:
  static Result<std::unique_ptr<ScorerPattern>> create(Host&, Options& options) {
    EBB_TRY(options.finish());
    return std::make_unique<ScorerPattern>();
  }
  std::int32_t layer() const noexcept override { return -1; }
  Status load() noexcept override { return ok_status(); }
  void carve(Arena&, const SessionShape&) noexcept override {}
  Status plan(Ops&, const StepView&, std::int32_t, float*, std::int64_t) noexcept override {
    return ok_status();
  }
  void finish(std::int32_t, std::int64_t pos, std::span<float> logits) noexcept override {
    std::uint64_t x = static_cast<std::uint64_t>(pos) + 1;
    for (float& logit : logits) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      logit = static_cast<float>(x % 2000) / 100 - 10;
      if (x % 97 == 0) logit = std::numeric_limits<float>::quiet_NaN();
    }
  }
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Scorer, ebb::ScorerPattern, "scorer_pattern", EBB_VERSION);
