#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/api/compute.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/ops.h"

namespace ebb::cuda {

/// One op of a plan: what it is called and how its kernels are enqueued.
struct RecordedOp {
  const char* name = nullptr;
  std::function<cudaError_t(const Launch&)> enqueue;
};

struct RecordedPlan {
  std::vector<RecordedOp> ops;
  std::uint64_t workspace_bytes = 0;  ///< the most that one op wants
};

/// Checks each op and keeps it as a launch. A mixing of streams (hc_post) is held back: if the next
/// op takes its input out of the same streams, both become one.
class Recorder final : public Ops {
 public:
  /// `largest_shared` is what a block of the device may have of shared memory, bytes.
  explicit Recorder(std::uint64_t largest_shared) : largest_shared_(largest_shared) {}

  Result<RecordedPlan> take() noexcept;

  Status embed(const EmbedArgs& args) noexcept override;
  Status matmul(const MatmulArgs& args) noexcept override;
  Status rms_norm(const RmsNormArgs& args) noexcept override;
  Status hc_pre(const HcPreArgs& args) noexcept override;
  Status hc_post(const HcPostArgs& args) noexcept override;
  Status hc_head(const HcHeadArgs& args) noexcept override;
  Status argmax(const ArgmaxArgs& args) noexcept override;
  Status route(const RouteArgs& args) noexcept override;
  Status experts(const ExpertsArgs& args) noexcept override;
  Status rope_table(const RopeTableArgs& args) noexcept override;
  Status heads(const HeadsArgs& args) noexcept override;
  Status append(const AppendArgs& args) noexcept override;
  Status compress(const CompressArgs& args) noexcept override;
  Status select(const SelectArgs& args) noexcept override;
  Status attend(const AttendArgs& args) noexcept override;

 private:
  Status add(const char* name, std::uint64_t workspace_bytes,
             std::function<cudaError_t(const Launch&)> enqueue);
  Status add_pending();

  const std::uint64_t largest_shared_;
  RecordedPlan plan_;
  std::optional<HcPostArgs> pending_;
};

/// An error that names `what` unless products with the weight can be computed here.
Status check_weight(const char* op, const char* what, const Weight& weight);
/// The types that check_weight lets pass, for messages.
inline constexpr const char* kUsableTypes =
    "F32, F16, BF16, Q8_0, Q2_K, Q4_K, Q6_K, IQ2_XXS or MXFP4";

}  // namespace ebb::cuda
