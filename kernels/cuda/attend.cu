// A row's keys (window, then chunks, in order) are cut into tiles, and the tiles into runs
// (attend_tile.cuh). A block takes some heads, which share every key, through the tiles of one run
// with an online softmax; runs are joined in order, beginning with the sink.
//
// Few rows: a block per run, and a second kernel that joins. Many rows: a block takes all runs of
// its heads and joins as it goes. Both use the same steps, so they give the same bits.

#include <algorithm>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/copy_row.cuh"

namespace ebb::cuda {
namespace {

constexpr int kManyHeads = 32;  // heads of a block when there are rows enough
constexpr int kFewHeads = 16;   // and when there are not
constexpr int kSplitRows = 16;  // more rows than this join as they go
constexpr int kFetchThreads = 128;

/// A warp copies a chunk's row.
__global__ void __launch_bounds__(kFetchThreads)
    attend_fetch_kernel(const __grid_constant__ AttendArgs a, std::byte* landing) {
  const int row = blockIdx.y, lane = threadIdx.x % kWarp;
  const int place = static_cast<int>(blockIdx.x * kFetchThreads + threadIdx.x) / kWarp;
  const int n_rows = of_step(a.step.n_rows), seq = of_step(a.step.seq + row);
  wait_for_inputs();
  if (row >= n_rows || place >= a.count[row]) return;
  const std::int64_t at = static_cast<std::int64_t>(row) * a.top_k + place;
  const std::int32_t chunk = a.ids[at];
  if (a.slots.slot_of[seq * a.chunks.n_rows + chunk] >= 0) return;
  copy_row(landing + at * a.chunks.row_bytes, row_at(a.chunks, seq, chunk),
           static_cast<int>(a.chunks.row_bytes), lane);
}

/// The tiles of one split: s.state and `sums` on return; the sums are to be multiplied by the
/// returned factor. Queries come in with the first keys, so that both are under way together.
template <int kWidth, int kHeads>
__device__ __forceinline__ float run_split(const AttendPlan& plan, int row, int seq,
                                           const Keys& keys, int split, int first_head,
                                           bool with_queries, Shared<kWidth, kHeads>& s,
                                           Sums<kWidth, kHeads>& sums) {
  sums = {};
  float factor = 1.0f;
  const int begin = keys.tile(split), last = keys.tile(split + 1);
  for (int t = begin; t < last; ++t) {
    const int first = t * kTile;
    HeldKeys<kWidth> held;
    held.load(plan, row, seq, keys, first);
    if (with_queries && t == begin) load_queries(plan, row, first_head, s);
    const float tile_factor = stage_keys(held, s);
    if (t == begin && threadIdx.x < kHeads) s.state[threadIdx.x] = {-INFINITY, 0.0f};
    score_tile(s);
    __syncthreads();
    soften_tile(min(kTile, keys.n_keys - first), tile_factor, tile_factor / factor, s);
    factor = tile_factor;
    __syncthreads();
    weigh_tile(s, sums);
  }
  return 1.0f / (factor * kWeightFactor);
}

template <int kWidth, int kHeads>
__global__ void __launch_bounds__(kAttendThreads, 1)
    attend_split_kernel(const __grid_constant__ AttendPlan plan) {
  extern __shared__ float4 memory[];
  auto& s = *reinterpret_cast<Shared<kWidth, kHeads>*>(memory);
  using S = Sums<kWidth, kHeads>;
  const AttendArgs& a = plan.args;
  const int split = blockIdx.x, first_head = blockIdx.y * kHeads, row = blockIdx.z;
  // Loaded together; what stands in rows past n_rows is not used.
  const int n_rows = of_step(a.step.n_rows), seq = of_step(a.step.seq + row);
  const std::int32_t pos = of_step(a.step.pos + row);
  wait_for_inputs();
  const Keys keys(a, row, pos);
  if (row >= n_rows || split >= keys.n_splits) return;
  S sums;
  const float factor =
      run_split<kWidth, kHeads>(plan, row, seq, keys, split, first_head, true, s, sums);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < S::kHeadTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = first_head + m * 16 + half * 8 + lane / 4;
      if (head >= a.n_heads) continue;
      float* const to =
          plan.partial +
          ((static_cast<std::int64_t>(row) * a.n_heads + head) * kMaxSplits + split) * kWidth;
#pragma unroll
      for (int n = 0; n < S::kDimTiles; ++n) {
        const int dim = (warp * S::kDimTiles + n) * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to + dim) =
            make_float2(sums.of[m][n][2 * half] * factor, sums.of[m][n][2 * half + 1] * factor);
      }
    }
  }
  if (threadIdx.x < kHeads && first_head + static_cast<int>(threadIdx.x) < a.n_heads) {
    const State state = s.state[threadIdx.x];
    plan.state[(static_cast<std::int64_t>(row) * a.n_heads + first_head + threadIdx.x) *
                   kMaxSplits +
               split] = make_float2(state.largest, state.total);
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kWidth / 2)
    attend_join_kernel(const __grid_constant__ AttendPlan plan) {
  __shared__ Factors factors[kMaxSplits];
  __shared__ float total;
  static_assert(kMaxSplits <= kWarp);
  const AttendArgs& a = plan.args;
  const int head = blockIdx.x, row = blockIdx.y;
  const int n_rows = of_step(a.step.n_rows);
  const std::int32_t pos = of_step(a.step.pos + row);
  wait_for_inputs();
  const Keys keys(a, row, pos);
  if (row >= n_rows) return;
  const std::int64_t slot = (static_cast<std::int64_t>(row) * a.n_heads + head) * kMaxSplits;
  const int dim = threadIdx.x * 2;
  float2 part[kMaxSplits];
#pragma unroll
  for (int split = 0; split < kMaxSplits; ++split) {
    if (split < keys.n_splits) {
      part[split] = *reinterpret_cast<const float2*>(plan.partial + (slot + split) * kWidth + dim);
    }
  }
  // One warp finds the factors, a lane to a split; what comes before a split is its own maximum.
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    const bool there = lane < keys.n_splits;
    const float2 own = there ? plan.state[slot + lane] : make_float2(-INFINITY, 0.0f);
    const State sink = sink_state(a.sink[head]);
    float largest = fmaxf(own.x, sink.largest);  // of the sink and the splits up to the lane's
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      largest = fmaxf(largest, __shfl_up_sync(kAllLanes, largest, min(step, lane)));
    }
    const float before = __shfl_up_sync(kAllLanes, largest, 1);
    const Factors f{decay(lane == 0 ? sink.largest : before, largest), decay(own.x, largest)};
    if (there) factors[lane] = f;
    float denominator = sink.total;
    for (int split = 0; split < keys.n_splits; ++split) {
      denominator =
          fmaf(__shfl_sync(kAllLanes, own.y, split), __shfl_sync(kAllLanes, f.other, split),
               denominator * __shfl_sync(kAllLanes, f.own, split));
    }
    if (lane == 0) total = denominator;
  }
  __syncthreads();
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int split = 0; split < kMaxSplits; ++split) {
    if (split < keys.n_splits) {
      const Factors f = factors[split];
      sum.x = fmaf(part[split].x, f.other, sum.x * f.own);
      sum.y = fmaf(part[split].y, f.other, sum.y * f.own);
    }
  }
  write_pair(a, row, head, dim, sum, total);
}

template <int kWidth, int kHeads>
__global__ void __launch_bounds__(kAttendThreads, 1)
    attend_rows_kernel(const __grid_constant__ AttendPlan plan) {
  extern __shared__ float4 memory[];
  auto& s = *reinterpret_cast<Shared<kWidth, kHeads>*>(memory);
  using S = Sums<kWidth, kHeads>;
  wait_for_inputs();
  const AttendArgs& a = plan.args;
  const int first_head = blockIdx.x * kHeads, row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  const Keys keys(a, row, a.step.pos[row]);
  const int seq = a.step.seq[row];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  S all{};
  State state[S::kHeadTiles][2];
#pragma unroll
  for (int m = 0; m < S::kHeadTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = first_head + m * 16 + half * 8 + lane / 4;
      state[m][half] = sink_state(head < a.n_heads ? a.sink[head] : 0.0f);
    }
  }
  for (int split = 0; split < keys.n_splits; ++split) {
    S sums;
    const float factor =
        run_split<kWidth, kHeads>(plan, row, seq, keys, split, first_head, split == 0, s, sums);
#pragma unroll
    for (int m = 0; m < S::kHeadTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Factors f = join(state[m][half], s.state[m * 16 + half * 8 + lane / 4]);
#pragma unroll
        for (int n = 0; n < S::kDimTiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            all.of[m][n][i] = fmaf(sums.of[m][n][i] * factor, f.other, all.of[m][n][i] * f.own);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < S::kHeadTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = first_head + m * 16 + half * 8 + lane / 4;
      if (head >= a.n_heads) continue;
#pragma unroll
      for (int n = 0; n < S::kDimTiles; ++n) {
        write_pair(a, row, head, (warp * S::kDimTiles + n) * 8 + lane % 4 * 2,
                   make_float2(all.of[m][n][2 * half], all.of[m][n][2 * half + 1]),
                   state[m][half].total);
      }
    }
  }
}

int width_of(std::int32_t d) { return d <= 128 ? 128 : d <= 256 ? 256 : 512; }

template <int kWidth>
cudaError_t run(const Launch& launch, AttendPlan plan) {
  const AttendArgs& a = plan.args;
  const bool many = a.step.max_rows > kSplitRows;
  const int heads = many ? kManyHeads : kFewHeads;
  const auto groups = static_cast<unsigned>((a.n_heads + heads - 1) / heads);
  const auto rows = static_cast<unsigned>(a.step.max_rows);
  const std::size_t bytes =
      many ? sizeof(Shared<kWidth, kManyHeads>) : sizeof(Shared<kWidth, kFewHeads>);
  if (many) {
    if (const cudaError_t error = allow_shared(attend_rows_kernel<kWidth, kManyHeads>, bytes))
      return error;
    return start(launch, attend_rows_kernel<kWidth, kManyHeads>, dim3(groups, rows),
                 dim3(kAttendThreads), bytes, plan);
  }
  plan.partial = reinterpret_cast<float*>(launch.workspace);
  const std::int64_t slots = std::int64_t{a.step.max_rows} * a.n_heads * kMaxSplits;
  plan.state = reinterpret_cast<float2*>(plan.partial + slots * kWidth);
  if (const cudaError_t error = allow_shared(attend_split_kernel<kWidth, kFewHeads>, bytes))
    return error;
  if (attend_landing(a) > 0) plan.landing = launch.landing;
  // No more splits than the row that sees most can fill.
  std::int64_t most = a.window;
  if (a.chunks.data != nullptr) {
    most += a.ids != nullptr ? std::min<std::int64_t>(a.top_k, a.chunks.n_rows) : a.chunks.n_rows;
  }
  const auto splits =
      static_cast<unsigned>(std::min<std::int64_t>(kMaxSplits, (most + kTile - 1) / kTile));
  const cudaError_t error = start(launch, attend_split_kernel<kWidth, kFewHeads>,
                                  dim3(splits, groups, rows), dim3(kAttendThreads), bytes, plan);
  if (error != cudaSuccess) return error;
  return start(launch, attend_join_kernel<kWidth>, dim3(static_cast<unsigned>(a.n_heads), rows),
               dim3(kWidth / 2), 0, plan);
}

}  // namespace

std::size_t attend_workspace(const AttendArgs& args) {
  if (args.step.max_rows > kSplitRows) return 0;
  const std::int64_t slots = std::int64_t{args.step.max_rows} * args.n_heads * kMaxSplits;
  return static_cast<std::size_t>(slots) * (width_of(args.d) * sizeof(float) + sizeof(float2));
}

std::size_t attend_landing(const AttendArgs& args) {
  const bool fetches = args.step.max_rows <= kSplitRows && args.chunks.data != nullptr &&
                       args.slots.slot_of != nullptr && args.ids != nullptr;
  return fetches ? static_cast<std::size_t>(std::int64_t{args.step.max_rows} * args.top_k *
                                            args.chunks.row_bytes)
                 : 0;
}

cudaError_t attend_fetch(const Launch& launch, const AttendArgs& args) {
  constexpr int kRows = kFetchThreads / kWarp;
  return start(launch, attend_fetch_kernel,
               dim3(static_cast<unsigned>((args.top_k + kRows - 1) / kRows),
                    static_cast<unsigned>(args.step.max_rows)),
               dim3(kFetchThreads), 0, args, launch.landing);
}

cudaError_t attend(const Launch& launch, const AttendArgs& args, std::int32_t ring_rot,
                   std::int32_t chunk_rot, const HeadsArgs* heads) {
  AttendPlan plan;
  plan.args = args;
  if (heads != nullptr) plan.heads = *heads;
  plan.ring = row_reader(args.ring, args.d, ring_rot);
  plan.chunks = row_reader(args.chunks, args.d, chunk_rot);
  switch (width_of(args.d)) {
    case 128:
      return run<128>(launch, plan);
    case 256:
      return run<256>(launch, plan);
    default:
      return run<512>(launch, plan);
  }
}

}  // namespace ebb::cuda
