#pragma once

#include <string>
#include <utility>
#include <vector>

#include "modules/compute_cuda/handles.h"
#include "modules/compute_cuda/recorder.h"

namespace ebb::cuda {

/// A recorded plan as one graph, ready to be launched again and again.
class Plan {
 public:
  /// Captures the ops, whose host calls it keeps. `launch.stream` is used for the capture alone;
  /// `launch.workspace` holds recorded.workspace_bytes and outlives the plan. With `timed`, the
  /// graph also takes the time after every op.
  static Result<Plan> capture(RecordedPlan&& recorded, const Launch& launch, bool timed);

  /// Enqueues one run.
  cudaError_t launch(cudaStream_t stream) const { return cudaGraphLaunch(exec_.get(), stream); }

  /// For the one who launches, to record behind a run; done until then.
  cudaEvent_t over() const { return over_.get(); }

  /// Kernels, copies and the like in the graph.
  std::size_t n_nodes() const { return n_nodes_; }
  /// Adds the times of the last run, which is over, to milliseconds(). Only with `timed`.
  Status collect_times();
  /// By op, in order: name and sum over runs.
  const std::vector<std::pair<const char*, double>>& milliseconds() const { return times_; }

 private:
  Plan() = default;

  std::deque<HostCallArgs> calls_;  // which the graph points to
  Graph graph_;
  GraphExec exec_;
  Event over_;
  std::size_t n_nodes_ = 0;
  std::vector<Event> events_;  // before the first op and after each
  std::vector<std::pair<const char*, double>> times_;
};

}  // namespace ebb::cuda
