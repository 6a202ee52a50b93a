// The baseline of recency: the logit of a chunk is minus the number of visible chunks after it, 0
// for the newest. Whole numbers, so no two chunks are equal.

#include <memory>

#include "core/api/memory.h"

namespace ebb {
namespace {

class ScorerRecent final : public Scorer {
 public:
  static Result<std::unique_ptr<ScorerRecent>> create(Host&, Options& options) {
    EBB_TRY(options.finish());
    return std::make_unique<ScorerRecent>();
  }

  std::int32_t layer() const noexcept override { return -1; }
  Status load() noexcept override { return ok_status(); }
  void carve(Arena&, const SessionShape&) noexcept override {}
  Status plan(Ops&, const StepView&, std::int32_t, float*, std::int64_t) noexcept override {
    return ok_status();
  }

  void finish(std::int32_t, std::int64_t, std::span<float> logits) noexcept override {
    auto age = static_cast<std::int64_t>(logits.size());
    for (float& logit : logits) logit = -static_cast<float>(--age);
  }
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Scorer, ebb::ScorerRecent, "scorer_recent", EBB_VERSION);
