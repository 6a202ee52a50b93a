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

/// One op of a plan: what it is called and how its kernels are enqueued. In the order of the list
/// every op finds what it needs. An op beside may run while the op that comes behind it and those
/// beside it does, which then does not join.
struct RecordedOp {
  const char* name = nullptr;
  std::function<cudaError_t(const Launch&)> enqueue;
  bool beside = false;
  bool joins = true;  ///< waits for the ops beside that came before it
};

struct RecordedPlan {
  std::vector<RecordedOp> ops;
  std::uint64_t workspace_bytes = 0;         ///< the most that one op wants
  std::uint64_t beside_workspace_bytes = 0;  ///< that one op beside wants, in a place of its own
  std::uint64_t landing_bytes = 0;           ///< of launch.landing, behind both
  std::deque<HostCallArgs> calls;            ///< of the ops; they outlive the graph

  /// Where the workspace of ops beside begins, behind that of the others.
  std::uint64_t beside_workspace() const { return (workspace_bytes + 255) / 256 * 256; }
  /// Where launch.landing begins.
  std::uint64_t landing() const {
    return (beside_workspace() + beside_workspace_bytes + 255) / 256 * 256;
  }
  std::uint64_t all_workspace() const { return landing() + landing_bytes; }
};

/// Checks each op and keeps it as a launch. Some ops are held back until it is known what comes
/// next, so that one launch can do several:
///   hc_post        with the hc_pre that takes its input out of the same streams; on devices with
///                  clusters, the experts' sum of a few rows before it too
///   heads          with the attend that reads its queries
///   append, compress, heads of the indexer    with each other
///   rope_table     with each other
///   rms_norm       with the product of one row that takes its y
/// A product of one row joins one before it that has the same x, if there are but products and
/// norms between them; if that one does a norm, it goes before it instead. Products and norms may
/// pass what is held if they touch none of its buffers. Row ops, selections and what brings chosen
/// chunks in for an attend run beside a product of few rows, the last op, if they touch nothing of
/// it.
/// Buffers are told apart by where they begin: ops do not work on parts of each other's.
class Recorder final : public Ops {
 public:
  /// `largest_shared` is what a block of the device may have of shared memory, bytes; `clusters`:
  /// the device has clusters of blocks.
  Recorder(std::uint64_t largest_shared, bool clusters, Precision precision)
      : largest_shared_(largest_shared), clusters_(clusters), precision_(precision) {}

  Result<RecordedPlan> take() noexcept;

  EBB_OPS(EBB_OVERRIDE_OP)

 private:
  /// The last experts, if no other op has been recorded since; *with_sum says who adds.
  struct Experts {
    ExpertsArgs args;
    std::shared_ptr<bool> with_sum;
  };

  /// A route behind a product.
  struct Route {
    RouteArgs args;
    MatmulArgs router;
  };

  using Buffers = std::vector<const void*>;

  /// A product that may still be joined by another with the same x, or have ops beside it.
  struct OpenProduct {
    std::size_t op = 0;  // in plan_.ops
    MatmulArgs args;
    std::shared_ptr<std::optional<RmsNormArgs>> norm;  // that it does first
    std::shared_ptr<std::optional<MatmulArgs>> second;
    Buffers own;      // that it and its second touch
    Buffers touched;  // by the ops behind it
    Buffers beside;   // by the ops at its side
  };

  /// Appends an op behind all that is held.
  Status add(const char* name, std::uint64_t workspace_bytes,
             std::function<cudaError_t(const Launch&)> enqueue);
  /// Appends an op before what is held, if it touches none of its buffers.
  void push_before_held(const char* name, std::uint64_t workspace_bytes, const Buffers& buffers,
                        std::function<cudaError_t(const Launch&)> enqueue);
  /// Appends an op, or lets it run beside the product that is the last op.
  void push_beside(const char* name, std::uint64_t workspace_bytes, const Buffers& buffers,
                   std::function<cudaError_t(const Launch&)> enqueue);
  void insert(std::size_t at, RecordedOp op, const Buffers& buffers);
  void push(const char* name, std::uint64_t workspace_bytes,
            std::function<cudaError_t(const Launch&)> enqueue);

  // Each records what is held of its kind.
  void flush_norm();
  void flush_tables();
  void flush_group();
  void flush_queries();
  void flush_post();
  void flush();
  /// An attend's queries stay held: it may finish them itself.
  void flush_all_but_queries();
  /// Records an op that does not take the norm before it. Errors: out_of_memory.
  template <class Record>
  Status record(Record op) noexcept;

  /// Widest vectors of the ops that hold one in shared memory, as floats.
  std::int64_t max_d() const { return static_cast<std::int64_t>(largest_shared_ / sizeof(float)); }
  bool group_touches(const void* buffer) const;
  bool held_touches(const Buffers& buffers) const;
  /// Whether an op with the buffers may run while the last op does, a product of few rows.
  bool fits_beside(const Buffers& buffers) const;
  /// Joins the product to one recorded before, or records it in front of that, if nothing in
  /// between minds.
  bool join(const MatmulArgs& args, const Buffers& buffers);

  const std::uint64_t largest_shared_;
  const bool clusters_;
  const Precision precision_;
  RecordedPlan plan_;
  RopeTables tables_;
  RowGroup group_;
  std::optional<RmsNormArgs> norm_;  // the last op, if it was one
  std::optional<HeadsArgs> queries_;
  std::optional<HcPostArgs> post_;
  std::optional<Experts> experts_;
  std::optional<Route> route_;  // the last op, if it was one
  // Of the ops since the last that is not a product, a norm or beside one.
  std::vector<OpenProduct> products_;
};

/// An error that names `what` unless products with the weight can be computed here.
Status check_weight(const char* op, const char* what, const Weight& weight);
/// The types that check_weight lets pass, for messages.
inline constexpr const char* kUsableTypes =
    "F32, F16, BF16, Q8_0, Q2_K, Q4_K, Q6_K, IQ2_XXS or MXFP4";

}  // namespace ebb::cuda
