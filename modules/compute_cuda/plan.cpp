#include "modules/compute_cuda/plan.h"

namespace ebb::cuda {
namespace {

/// The branch of a graph that is being captured on which ops run beside others.
class Branch {
 public:
  static Result<Branch> create(const Launch& main, const RecordedPlan& recorded) {
    Branch branch;
    branch.main_ = main.stream;
    int priority = 0;
    EBB_TRY(check(cudaStreamGetPriority(main.stream, &priority), "the priority of a stream"));
    EBB_ASSIGN(branch.stream_, new_stream(priority));
    EBB_ASSIGN(branch.begins_, new_event());
    EBB_ASSIGN(branch.ends_, new_event());
    branch.launch_ = main;
    branch.launch_.stream = branch.stream_.get();
    branch.launch_.workspace = main.workspace + recorded.beside_workspace();
    return branch;
  }

  /// `main` has got on: what comes beside it next waits for it.
  void get_on() { is_behind_ = true; }

  Status enqueue(const RecordedOp& op) {
    Launch launch = launch_;
    if (is_behind_) {
      EBB_TRY(wait(main_, begins_, stream_.get()));
      launch.early_start = false;  // it has two predecessors, if not more
      is_behind_ = false;
    }
    is_open_ = true;
    return check(op.enqueue(launch), op.name);
  }

  Status join() {
    if (!is_open_) return ok_status();
    is_open_ = false;
    return wait(stream_.get(), ends_, main_);
  }

 private:
  static Status wait(cudaStream_t earlier, const Event& event, cudaStream_t later) {
    EBB_TRY(check(cudaEventRecord(event.get(), earlier), "cudaEventRecord"));
    return check(cudaStreamWaitEvent(later, event.get()), "cudaStreamWaitEvent");
  }

  cudaStream_t main_ = nullptr;
  Stream stream_;
  Event begins_, ends_;
  Launch launch_;
  bool is_behind_ = true;
  bool is_open_ = false;
};

/// Enqueues every op on the capturing stream and on the branch beside it.
Status enqueue_all(const RecordedPlan& recorded, const Launch& launch, Branch& branch) {
  for (const RecordedOp& op : recorded.ops) {
    if (op.beside) {
      EBB_TRY(branch.enqueue(op));
      continue;
    }
    // It may still start early: what the branch did is over before it is launched at all, and its
    // kernels wait for the one before them on this stream.
    if (op.joins) EBB_TRY(branch.join());
    EBB_TRY(check(op.enqueue(launch), op.name));
    branch.get_on();
  }
  return branch.join();
}

/// Enqueues one op after another on a stream, be it a capturing one or not, with the time between
/// them if there are events.
Status enqueue_in_order(const RecordedPlan& recorded, const Launch& launch,
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
  EBB_ASSIGN(Branch branch, Branch::create(launch, recorded));
  EBB_TRY(check(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture"));
  const Status enqueued = timed ? enqueue_in_order(recorded, launch, plan.events_, true)
                                : enqueue_all(recorded, launch, branch);
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
  return enqueue_in_order(recorded_, launch, events_, false);
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
