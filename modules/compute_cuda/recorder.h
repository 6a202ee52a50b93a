#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/api/compute.h"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"
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
  std::deque<HostCallArgs> calls;     ///< of the ops; they outlive the graph
};

/// Checks each op and keeps it as a launch. Some ops are held back until it is known what comes
/// next, so that one launch can do several:
///   hc_post        with the hc_pre that takes its input out of the same streams; on devices with
///                  clusters, the experts' sum of a few rows before it too
///   heads          with the attend that reads its queries
///   append, compress, heads of the indexer    with each other
///   rope_table     with each other
/// A product of one row joins one before it that has the same x, if there are but products and
/// norms between them. Products and norms may pass what is held if they touch none of its buffers.
/// Buffers are told apart by where they begin: ops do not work on parts of each other's.
class Recorder final : public Ops {
 public:
  /// `largest_shared` is what a block of the device may have of shared memory, bytes; `clusters`:
  /// the device has clusters of blocks.
  Recorder(std::uint64_t largest_shared, bool clusters, Precision precision)
      : largest_shared_(largest_shared), clusters_(clusters), precision_(precision) {}

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
  Status keep_rows(const KeepRowsArgs& args) noexcept override;
  Status pick_rows(const PickRowsArgs& args) noexcept override;
  Status score(const ScoreArgs& args) noexcept override;
  Status move_rows(const MoveRowsArgs& args) noexcept override;
  Status copy(const CopyArgs& args) noexcept override;
  Status host_call(const HostCallArgs& args) noexcept override;

 private:
  /// The last experts, if no other op has been recorded since; *with_sum says who adds.
  struct Experts {
    ExpertsArgs args;
    std::shared_ptr<bool> with_sum;
  };

  /// A product of one row that may still be joined by another with the same x.
  struct OpenProduct {
    MatmulArgs args;
    std::shared_ptr<std::optional<MatmulArgs>> second;
    std::vector<const void*> touched;  // by the ops behind it
  };

  /// Appends an op behind all that is held.
  Status add(const char* name, std::uint64_t workspace_bytes,
             std::function<cudaError_t(const Launch&)> enqueue);
  /// Appends an op before what is held, if it touches none of its buffers.
  Status add_before_held(const char* name, std::uint64_t workspace_bytes,
                         const std::vector<const void*>& buffers,
                         std::function<cudaError_t(const Launch&)> enqueue);
  void push(const char* name, std::uint64_t workspace_bytes,
            std::function<cudaError_t(const Launch&)> enqueue);

  // Each records what is held of its kind.
  void flush_tables();
  void flush_group();
  void flush_queries();
  void flush_post();
  void flush();

  bool group_touches(const void* buffer) const;
  /// Joins the product to one recorded before, if nothing in between minds.
  bool join(const MatmulArgs& args, const std::vector<const void*>& buffers);

  const std::uint64_t largest_shared_;
  const bool clusters_;
  const Precision precision_;
  RecordedPlan plan_;
  RopeTables tables_;
  RowGroup group_;
  std::optional<HeadsArgs> queries_;
  std::optional<HcPostArgs> post_;
  std::optional<Experts> experts_;
  std::optional<RouteArgs> route_;     // the last op, if it was one
  std::vector<OpenProduct> products_;  // of the ops since the last that is not a product or norm
};

/// An error that names `what` unless products with the weight can be computed here.
Status check_weight(const char* op, const char* what, const Weight& weight);
/// The types that check_weight lets pass, for messages.
inline constexpr const char* kUsableTypes =
    "F32, F16, BF16, Q8_0, Q2_K, Q4_K, Q6_K, IQ2_XXS or MXFP4";

}  // namespace ebb::cuda
