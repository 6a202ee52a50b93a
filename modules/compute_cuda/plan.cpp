#include "modules/compute_cuda/plan.h"

namespace ebb::cuda {
namespace {

/// Enqueues every op on a stream, be it a capturing one or not.
Status enqueue_all(const RecordedPlan& recorded, const Launch& launch,
                   const std::vector<Event>& events, bool is_capturing) {
  const unsigned flags = is_capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
  const auto record = [&](std::size_t i) {
    return events.empty() ? cudaSuccess
                          : cudaEventRecordWithFlags(events[i].get(), launch.stream, flags);
  };
  EBB_TRY(check(record(0), "recording an event"));
  for (std::size_t i = 0; i < recorded.ops.size(); ++i) {
    EBB_TRY(check(recorded.ops[i].enqueue(launch), recorded.ops[i].name));
    EBB_TRY(check(record(i + 1), "recording an event"));
  }
  return ok_status();
}

}  // namespace

Result<Plan> Plan::capture(RecordedPlan&& recorded, const Launch& launch, bool timed,
                           bool as_graph) {
  Plan plan;
  plan.calls_ = std::move(recorded.calls);
  EBB_ASSIGN(plan.over_, new_event());
  if (timed) {
    for (std::size_t i = 0; i <= recorded.ops.size(); ++i) {
      EBB_ASSIGN(Event event, new_event(cudaEventDefault));
      plan.events_.push_back(std::move(event));
    }
    for (const RecordedOp& op : recorded.ops) plan.times_.emplace_back(op.name, 0.0);
  }
  EBB_TRY(check(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture"));
  const Status enqueued = enqueue_all(recorded, launch, plan.events_, true);
  // The capture must be ended even if an op failed.
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(launch.stream, &graph);
  plan.graph_.reset(graph);
  EBB_TRY(enqueued);
  EBB_TRY(check(ended, "cudaStreamEndCapture"));
  EBB_TRY(check(cudaGraphGetNodes(graph, nullptr, &plan.n_nodes_), "cudaGraphGetNodes"));
  if (!as_graph) {
    plan.recorded_ = std::move(recorded);
    plan.launch_ = launch;
    return plan;
  }
  cudaGraphExec_t exec = nullptr;
  EBB_TRY(check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  plan.exec_.reset(exec);
  EBB_TRY(check(cudaGraphUpload(exec, launch.stream), "cudaGraphUpload"));
  return plan;
}

Status Plan::launch(cudaStream_t stream) const {
  if (exec_) return check(cudaGraphLaunch(exec_.get(), stream), "launching a graph");
  Launch launch = launch_;
  launch.stream = stream;
  return enqueue_all(recorded_, launch, events_, false);
}

Status Plan::collect_times() {
  for (std::size_t i = 0; i < times_.size(); ++i) {
    float ms = 0;
    EBB_TRY(check(cudaEventElapsedTime(&ms, events_[i].get(), events_[i + 1].get()),
                  "cudaEventElapsedTime"));
    times_[i].second += static_cast<double>(ms);
  }
  return ok_status();
}

}  // namespace ebb::cuda
