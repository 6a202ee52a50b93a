#pragma once

#include <string>
#include <utility>
#include <vector>

#include "modules/compute_cuda/handles.h"
#include "modules/compute_cuda/recorder.h"

namespace ebb::cuda {

/// A recorded plan, ready to be launched again and again: as one graph, or op by op.
class Plan {
 public:
  /// Captures the ops, whose host calls it keeps. `launch.stream` is used for the capture alone;
  /// `launch.workspace` holds recorded.all_workspace() and outlives the plan. With `timed`, a run
  /// also takes the time after every op. Without `as_graph` the graph's nodes are only counted, and
  /// a run enqueues every op anew: what a graph is compared with. With times, or without a graph,
  /// no op runs beside another.
  static Result<Plan> capture(RecordedPlan&& recorded, const Launch& launch, bool timed,
                              bool as_graph);

  /// Enqueues one run.
  Status launch(cudaStream_t stream) const;

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
  GraphExec exec_;         // null without a graph:
  RecordedPlan recorded_;  // then its ops
  Launch launch_;          // and what they are enqueued with, but for the stream
  Event over_;
  std::size_t n_nodes_ = 0;
  std::vector<Event> events_;  // before the first op and after each
  std::vector<std::pair<const char*, double>> times_;
};

}  // namespace ebb::cuda
