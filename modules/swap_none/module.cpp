// The policy that does nothing: a chunk has a slot if one was free when it was completed, and keeps
// it. What remains of swapping's cost under it is the cost of the machinery.

#include <memory>

#include "modules/swap_common/slot_staging.h"

namespace ebb {
namespace {

class SwapNone final : public SwapPolicy {
 public:
  static Result<std::unique_ptr<SwapNone>> create(Host&, Options& options) {
    EBB_TRY(options.finish());
    return std::make_unique<SwapNone>();
  }

  Status open(const SwapShape&) noexcept override { return ok_status(); }
  void forget(std::int32_t) noexcept override {}
  void selected(CacheId, std::span<const std::int32_t>, const SlotView&) noexcept override {}
  void inserted(CacheId, std::int32_t, SlotReason) noexcept override {}
  void evicted(CacheId, std::int32_t) noexcept override {}
  void scored(std::int32_t, std::span<const float>) noexcept override {}
  std::size_t admit(CacheId, std::span<const std::int32_t>,
                    std::span<std::int32_t>) noexcept override {
    return 0;
  }
  std::size_t victims(CacheId, std::span<ChunkId>, const SlotView&) noexcept override { return 0; }
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Swap, ebb::PolicyModule<ebb::SwapNone>, "swap_none", EBB_VERSION);
