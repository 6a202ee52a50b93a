// group    sorts (row, slot) pairs by expert into pieces of rows of one expert (experts_group.cuh)
// gate_up  hidden = gated(gate x, up x)
// down     partial = down hidden
// sum      y = sum over slots of weight * partial, in the order of ids, then the shared expert
//
// Products run on the matrix units where the weight allows it (tensor_product.h), else by plain
// arithmetic. A step of few rows has no groups: a piece is one pair. An element's bits do not
// depend on any of that but the weight. The shared expert sees every row: its pieces are the rows
// in order.

#include <algorithm>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_group.cuh"
#include "kernels/cuda/experts_pieces.cuh"
#include "kernels/cuda/experts_row.h"
#include "kernels/cuda/tensor_product.h"

namespace ebb::cuda {
namespace {

constexpr std::int64_t kMaxUngrouped = 4;     // rows of a step that is not grouped
constexpr std::int64_t kMaxSmallPieces = 64;  // rows of a step whose pieces are streams

/// out = gated(out, in) in the slots [first, first + n) of every row.
struct Gating {
  const std::int32_t* n_rows;
  float* out;
  const float* in;
  std::int32_t n_slots, first, n;
  std::int32_t width;
  float clamp;
};

__global__ void gated_kernel(Gating a) {
  wait_for_inputs();
  const std::int64_t n = static_cast<std::int64_t>(*a.n_rows) * a.n * a.width;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t entry = i / a.width, row = entry / a.n;
    const std::int64_t at = (row * a.n_slots + a.first + entry % a.n) * a.width + i % a.width;
    a.out[at] = gated(a.out[at], a.in[at], a.clamp);
  }
}

__global__ void sum_kernel(ExpertsArgs a, int d, int n_experts) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= *a.step.n_rows || i >= d) return;
  const float* const partial = a.partial + row * (a.n_used + 1) * d + i;
  float y = 0;
  for (int slot = 0; slot < a.n_used; ++slot) {
    const std::int32_t id = a.ids[row * a.n_used + slot];
    const bool known = id >= 0 && id < n_experts;
    const float p =
        known ? partial[static_cast<std::int64_t>(slot) * d] : __int_as_float(0x7fc00000);
    y += a.weights[row * a.n_used + slot] * p;
  }
  a.y[row * d + i] = y + partial[static_cast<std::int64_t>(a.n_used) * d];
}

/// The op, and where its parts are in the workspace.
class Run {
 public:
  Run(const ExpertsArgs& args, Precision precision, std::byte* workspace)
      : args_(args),
        precision_(precision),
        rows_(args.step.max_rows),
        slots_(args.n_used + 1),
        n_experts_(static_cast<std::int32_t>(args.routed.gate.n_mats)),
        d_(args.routed.gate.n_in),
        f_(args.routed.gate.n_out),
        grouped_(rows_ > kMaxUngrouped) {
    const auto take = [&](std::size_t bytes) {
      std::byte* const place = workspace + end_;
      end_ += (bytes + 255) / 256 * 256;
      return place;
    };
    const std::int32_t columns = rows_ > kMaxSmallPieces ? kTileColumns : kFewColumns;
    groups_.per_vector = columns_per_vector(precision);
    groups_.piece_rows = columns / groups_.per_vector;
    if (grouped_) {
      groups_.n_pieces = reinterpret_cast<std::int32_t*>(take(2 * sizeof(std::int32_t)));
      groups_.entries = reinterpret_cast<std::int32_t*>(
          take(static_cast<std::size_t>(rows_) * args.n_used * sizeof(std::int32_t)));
      groups_.pieces = reinterpret_cast<Piece*>(
          take(static_cast<std::size_t>(groups_.max_pieces(rows_, args.n_used, n_experts_)) *
               sizeof(Piece)));
    }
    if (args.routed.gate.type != args.routed.up.type ||
        args.shared.gate.type != args.shared.up.type) {
      up_ = reinterpret_cast<float*>(
          take(static_cast<std::size_t>(rows_ * slots_ * f_) * sizeof(float)));
    }
    // The columns of x are not wanted any more when those of hidden are made.
    x_columns_[0] = x_columns_[1] = take(0);
    hidden_columns_ = x_columns_[0];
    bool any = false;
    for (const ExpertWeights* const w : {&args.routed, &args.shared}) {
      any |=
          suits_tensor_units(w->gate) || suits_tensor_units(w->up) || suits_tensor_units(w->down);
    }
    if (!any || (rows_ == 1 && std::max(d_, f_) <= kMaxOwnSplit)) return;
    const std::size_t of_x = columns_bytes(rows_, d_, precision);
    const std::size_t of_hidden = columns_bytes(rows_ * slots_, f_, precision);
    take(std::max(2 * of_x, of_hidden));
    x_columns_[1] += of_x;
  }

  std::size_t workspace_bytes() const { return end_; }

  cudaError_t run(const Launch& launch, bool with_sum) const {
    if (const cudaError_t error = hidden(launch)) return error;
    const cudaError_t error = partial(launch);
    if (error != cudaSuccess || !with_sum) return error;
    const auto d = static_cast<std::int32_t>(d_);
    return start(launch, sum_kernel,
                 dim3(static_cast<unsigned>((d + 127) / 128), static_cast<unsigned>(rows_)),
                 dim3(128), 0, args_, d, n_experts_);
  }

 private:
  /// A product of one kind of expert: out = weight in, or gated with `up`.
  struct Job {
    bool shared;
    const Weight* weight;
    const Weight* up;  // nullptr: not gated
    bool from_hidden;
    float* out;
  };

  const ExpertWeights& weights(bool shared) const { return shared ? args_.shared : args_.routed; }

  cudaError_t hidden(const Launch& launch) const {
    const auto job = [this](bool shared) {
      return Job{shared, &weights(shared).gate, &weights(shared).up, false, args_.hidden};
    };
    const Job jobs[] = {job(false), job(true)};
    const auto alike = [](const Job& gate_up) { return gate_up.weight->type == gate_up.up->type; };
    const bool at_once = alike(jobs[0]) && alike(jobs[1]);
    if (const cudaError_t error = begin(launch, jobs, at_once ? 2 : 0)) return error;
    for (const Job& gate_up : jobs) {
      const bool shared = gate_up.shared;
      cudaError_t error = cudaSuccess;
      if (alike(gate_up)) {
        if (!at_once) error = split(launch, &gate_up, 1);
        if (error == cudaSuccess) error = product(launch, gate_up);
      } else {
        const Job gate{shared, gate_up.weight, nullptr, false, args_.hidden};
        const Job up{shared, gate_up.up, nullptr, false, up_};
        for (const Job& one : {gate, up}) {
          error = split(launch, &one, 1);
          if (error == cudaSuccess) error = product(launch, one);
          if (error != cudaSuccess) return error;
        }
        const Gating gating{args_.step.n_rows,
                            args_.hidden,
                            up_,
                            slots_,
                            shared ? args_.n_used : 0,
                            shared ? 1 : args_.n_used,
                            static_cast<std::int32_t>(f_),
                            weights(shared).clamp};
        error = start(launch, gated_kernel, dim3(static_cast<unsigned>(launch.n_sms * 4)),
                      dim3(256), 0, gating);
      }
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  cudaError_t partial(const Launch& launch) const {
    const Job jobs[] = {{false, &args_.routed.down, nullptr, true, args_.partial},
                        {true, &args_.shared.down, nullptr, true, args_.partial}};
    if (const cudaError_t error = split(launch, jobs, 2)) return error;
    if (const cudaError_t error = product(launch, jobs[0])) return error;
    return product(launch, jobs[1]);
  }

  /// Whether a product's pieces are of one vector each, which blocks split for themselves.
  bool splits_itself(const Job& job) const {
    return (rows_ == 1 || (!job.shared && !grouped_)) && job.weight->n_in <= kMaxOwnSplit;
  }

  /// What comes before the products of x: sorts the entries and splits x for n_jobs jobs.
  cudaError_t begin(const Launch& launch, const Job* jobs, int n_jobs) const {
    if (!grouped_) return split(launch, jobs, n_jobs);
    Split splits[2];
    const int n_splits = splits_of(launch, jobs, n_jobs, splits);
    const std::int64_t held = rows_ <= kMaxSmallPieces && n_splits > 0 ? rows_ * args_.n_used : 0;
    const std::size_t bytes = group_bytes(n_experts_, held);
    if (held > 0) {
      const Splits both(splits, n_splits);
      if (const cudaError_t error = allow_shared(group_and_split_kernel, bytes)) return error;
      return start(launch, group_and_split_kernel,
                   dim3(static_cast<unsigned>(1 + split_blocks(launch, both, rows_))),
                   dim3(kSplitThreads), bytes, args_, groups_, n_experts_,
                   static_cast<std::int32_t>(d_), both);
    }
    if (const cudaError_t error = allow_shared(group_kernel, bytes)) return error;
    const cudaError_t error =
        start(launch, group_kernel, dim3(1), dim3(1024), bytes, args_, groups_, n_experts_);
    return error == cudaSuccess ? split(launch, jobs, n_jobs) : error;
  }

  /// Splits what the jobs, which have one input, want split.
  cudaError_t split(const Launch& launch, const Job* jobs, int n) const {
    Split splits[2];
    const int n_splits = splits_of(launch, jobs, n, splits);
    if (n_splits == 0) return cudaSuccess;
    return split_columns(launch, jobs->from_hidden ? args_.hidden : args_.x,
                         static_cast<std::int32_t>(jobs->weight->n_in), args_.step.n_rows, rows_,
                         splits, n_splits);
  }

  int splits_of(const Launch& launch, const Job* jobs, int n, Split (&splits)[2]) const {
    int n_splits = 0;
    for (int i = 0; i < n; ++i) {
      const Job& job = jobs[i];
      if (!on_tensor_units(launch, *job.weight) || splits_itself(job)) continue;
      Split& one = splits[n_splits++];
      one.order = tensor_order(job.weight->type);
      one.columns = columns_of(job);
      if (job.from_hidden) {
        one.vectors = {slots_, job.shared ? args_.n_used : 0, job.shared ? 1 : args_.n_used};
      }
    }
    return n_splits;
  }

  Columns columns_of(const Job& job) const {
    return job.from_hidden ? columns_at(hidden_columns_, rows_ * slots_, f_, precision_)
                           : columns_at(x_columns_[job.shared ? 1 : 0], rows_, d_, precision_);
  }

  cudaError_t product(const Launch& launch, const Job& job) const {
    if (!on_tensor_units(launch, *job.weight)) return plain(launch, job);
    const TensorProduct p = tensor_job(launch, job);
    const std::int64_t n_pieces =
        job.shared ? p.pieces.n_ranges
        : grouped_ ? std::int64_t{groups_.max_pieces(rows_, args_.n_used, n_experts_)}
                   : rows_ * args_.n_used;
    return tensor_product(launch, job.weight->type, p, n_pieces, piece_rows(job));
  }

  /// Vectors of a piece, at most.
  std::int32_t piece_rows(const Job& job) const {
    if (job.shared) {
      return tensor_piece_rows(job.weight->type, rows_, columns_per_vector(precision_));
    }
    return grouped_ ? groups_.piece_rows : 1;
  }

  TensorProduct tensor_job(const Launch& launch, const Job& job) const {
    TensorProduct p;
    p.x = job.from_hidden ? args_.hidden : args_.x;
    p.columns.per_vector = columns_per_vector(precision_);
    if (!splits_itself(job)) p.columns = columns_of(job);
    p.grid_iq2 = launch.grid_iq2;
    p.n_in = static_cast<std::int32_t>(job.weight->n_in);
    p.gated = job.up != nullptr;
    p.clamp = weights(job.shared).clamp;
    p.n_parts = 1;
    p.parts[0].a = planes_of(*job.weight);
    if (p.gated) p.parts[0].b = planes_of(*job.up);
    p.parts[0].out = job.out;
    p.parts[0].n_out = static_cast<std::int32_t>(job.weight->n_out);
    Pieces& pieces = p.pieces;
    pieces.n_rows = args_.step.n_rows;
    pieces.vector_stride = job.from_hidden ? slots_ : 1;
    pieces.place_stride = slots_;
    if (job.shared) {
      pieces.rows = piece_rows(job);
      pieces.n_ranges = static_cast<std::int32_t>((rows_ + pieces.rows - 1) / pieces.rows);
      pieces.vector_first = job.from_hidden ? args_.n_used : 0;
      pieces.place_first = args_.n_used;
    } else {
      pieces.ids = args_.ids;
      pieces.n_used = args_.n_used;
      pieces.n_experts = n_experts_;
      pieces.vector_slot = job.from_hidden ? 1 : 0;
      if (grouped_) {
        pieces.entries = groups_.entries;
        pieces.pieces = groups_.pieces;
        pieces.n_pieces = groups_.n_pieces;
      }
    }
    return p;
  }

  cudaError_t plain(const Launch& launch, const Job& job) const {
    Product p;
    p.n_rows = args_.step.n_rows;
    p.in = job.from_hidden ? args_.hidden : args_.x;
    p.out = job.out;
    p.ids = job.shared ? nullptr : args_.ids;
    if (grouped_) p.groups = groups_;
    p.a = planes_of(*job.weight);
    if (job.up != nullptr) p.b = planes_of(*job.up);
    p.grid = launch.grid_iq2;
    p.n_in = static_cast<std::int32_t>(job.weight->n_in);
    p.n_out = static_cast<std::int32_t>(job.weight->n_out);
    p.n_experts = n_experts_;
    p.n_used = args_.n_used;
    p.in_by_slot = job.from_hidden;
    p.clamp = weights(job.shared).clamp;
    const std::int64_t at_once = p.n_out * (job.shared ? std::int64_t{1} : args_.n_used);
    p.n_slices = at_once <= 512 ? 8 : at_once <= 1024 ? 4 : at_once <= 2048 ? 2 : 1;
    PieceGrid grid{job.shared ? rows_ : rows_ * args_.n_used, grouped_};
    if (grouped_) {
      grid.n = job.shared ? (rows_ + kGroupRows - 1) / kGroupRows
                          : groups_.max_pieces(rows_, args_.n_used, n_experts_);
    }
    return plain_product(launch, job.weight->type, p, grid, job.up != nullptr);
  }

  const ExpertsArgs args_;
  const Precision precision_;
  const std::int64_t rows_;
  const std::int32_t slots_;
  const std::int32_t n_experts_;
  const std::int64_t d_, f_;
  const bool grouped_;
  Groups groups_;
  float* up_ = nullptr;  // [rows, n_used + 1, f] if gates and ups differ in type
  std::byte* x_columns_[2] = {};
  std::byte* hidden_columns_ = nullptr;
  std::size_t end_ = 0;
};

}  // namespace

std::size_t experts_workspace(const ExpertsArgs& args, Precision precision) {
  return Run(args, precision, nullptr).workspace_bytes();
}

cudaError_t experts(const Launch& launch, const ExpertsArgs& args, Precision precision,
                    bool with_sum, bool x_settled) {
  if (launch.tensor_units && experts_row_suits(args, launch.largest_shared)) {
    return experts_row(launch, args, precision, x_settled);
  }
  return Run(args, precision, launch.workspace).run(launch, with_sum);
}

}  // namespace ebb::cuda
