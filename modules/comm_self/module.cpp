#include <algorithm>
#include <memory>

#include "core/api/comm.h"

// One rank: it is the root of every broadcast and the only term of every sum, so a collective is at
// most a copy. What is checked is what would be wrong with more ranks too.

namespace ebb {
namespace {

class CommSelf final : public Comm {
 public:
  static Result<std::unique_ptr<CommSelf>> create(Host&, Options& options) {
    EBB_TRY(options.finish());
    return std::make_unique<CommSelf>();
  }

  std::int32_t rank() const noexcept override { return 0; }
  std::int32_t size() const noexcept override { return 1; }

  Status broadcast(std::span<std::byte>, std::int32_t root) noexcept override {
    if (root == 0) return ok_status();
    return make_error(Errc::invalid_argument, "broadcast from rank %d: want 0, the only rank",
                      root);
  }

  Status all_reduce_sum(std::span<float>) noexcept override { return ok_status(); }

  Status all_gather(std::span<const float> mine, std::span<float> all) noexcept override {
    if (all.size() != mine.size()) {
      return make_error(Errc::invalid_argument,
                        "all_gather of %zu values into %zu: want equal sizes", mine.size(),
                        all.size());
    }
    std::copy(mine.begin(), mine.end(), all.begin());
    return ok_status();
  }

  Status barrier() noexcept override { return ok_status(); }
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Comm, ebb::CommSelf, "comm_self", EBB_VERSION);
