// A row's keys (window, then chunks, in order) are cut into tiles of kTile, and the tiles into up
// to kMaxSplits runs of neighbours. A block takes a few heads, which share every key, through the
// tiles of one run with an online softmax; runs are joined in order, beginning with the sink. The
// cut depends on the number of the row's keys alone.
//
// Few rows: a block per run, and a second kernel that joins. Many rows: a block takes all runs of
// its heads and joins as it goes. Both use the same steps, so they give the same bits.

#include <algorithm>

#include "kernels/chunks.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/device.cuh"
#include "kernels/rope.h"
#include "kernels/row_format.h"

namespace ebb::cuda {
namespace {

constexpr int kAttendThreads = 256;
constexpr int kAttendWarps = kAttendThreads / kWarp;
constexpr int kTile = 32;       // keys; one per lane in the softmax
constexpr int kWarpKeys = 4;    // keys that a warp holds in registers
constexpr int kManyHeads = 16;  // heads of a block when there are rows enough
constexpr int kFewHeads = 8;    // and when there are not
constexpr int kMaxSplits = 24;
constexpr int kSplitRows = 16;  // more rows than this join as they go

static_assert(kAttendWarps * kWarpKeys == kTile);

struct AttendPlan {
  AttendArgs args;
  std::int32_t ring_rot = 0;
  std::int32_t chunk_rot = 0;
  float* partial = nullptr;  // [rows, heads, kMaxSplits, d] sums
  float2* state = nullptr;   // [rows, heads, kMaxSplits] maximum and denominator
};

/// The keys of one row.
struct Keys {
  std::int32_t window_first, n_window, n_keys, n_tiles, n_splits;
  const std::int32_t* ids;

  __device__ Keys(const AttendArgs& a, int row) {
    const std::int32_t pos = a.step.pos[row];
    window_first = window_begin(pos, a.window);
    n_window = pos - window_first + 1;
    n_keys = n_window;
    ids = nullptr;
    if (a.chunks.data != nullptr) {
      if (a.ids != nullptr) {
        ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
        n_keys += a.count[row];
      } else {
        n_keys += visible_chunks(pos, a.ratio);
      }
    }
    n_tiles = (n_keys + kTile - 1) / kTile;
    n_splits = min(n_tiles, kMaxSplits);
  }
  /// First tile of a split.
  __device__ int tile(int split) const {
    return static_cast<int>(static_cast<std::int64_t>(n_tiles) * split / n_splits);
  }
};

/// Running maximum and denominator of a softmax.
struct State {
  float largest, total;
};

/// What the sums of two parts are multiplied by when they are joined.
struct Factors {
  float own, other;
};

__device__ __forceinline__ float decay(float from, float to) {
  // Nothing but -inf on either side: no weight has been given yet.
  return from == to ? 1.0f : expf(from - to);
}

__device__ __forceinline__ Factors join(State& state, State other) {
  const float largest = fmaxf(state.largest, other.largest);
  const Factors f{decay(state.largest, largest), decay(other.largest, largest)};
  state.total = fmaf(other.total, f.other, state.total * f.own);
  state.largest = largest;
  return f;
}

__device__ __forceinline__ State sink_state(float sink) {
  return {sink, sink == -INFINITY ? 0.0f : 1.0f};
}

template <int kWidth, int kHeads>
struct Shared {
  float q[kHeads][kWidth];
  float tile[kTile][kWidth];
  float weight[kTile][kHeads + 4];  // scores, then softmax weights; padded against bank conflicts
  float rescale[kHeads];
  State state[kHeads];
};

/// Address of key `key` of the list.
__device__ __forceinline__ const std::byte* key_at(const AttendArgs& a, int seq, const Keys& keys,
                                                   int key) {
  const bool in_window = key < keys.n_window;
  std::int64_t place;
  if (in_window) {
    place = ring_index(keys.window_first + key, a.ring.n_rows);
  } else {
    place = key - keys.n_window;
    if (keys.ids != nullptr) place = keys.ids[place];
  }
  return row_at(in_window ? a.ring : a.chunks, seq, place);
}

/// Decodes the keys [first, first + n) of the row into the tile; the rest is zero.
template <int kWidth, int kHeads>
__device__ void load_tile(const AttendPlan& plan, int seq, const Keys& keys, int first, int n,
                          Shared<kWidth, kHeads>& s) {
  const AttendArgs& a = plan.args;
  const int begin = threadIdx.x / kWarp * kWarpKeys, lane = threadIdx.x % kWarp;
  const bool chunks_plain = a.chunks.data == nullptr || a.chunks.format == RowFormat::f32;
  if (a.ring.format == RowFormat::f32 && chunks_plain && a.d == kWidth) {
    // All loads are on their way before the first is used.
    float4 value[kWarpKeys][kWidth / 128];
    const float4* stored[kWarpKeys];
#pragma unroll
    for (int k = 0; k < kWarpKeys; ++k) {
      stored[k] = begin + k < n
                      ? reinterpret_cast<const float4*>(key_at(a, seq, keys, first + begin + k))
                      : nullptr;
    }
#pragma unroll
    for (int k = 0; k < kWarpKeys; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth / 128; ++i) {
        value[k][i] = stored[k] != nullptr ? stored[k][lane + 32 * i] : make_float4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int k = 0; k < kWarpKeys; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth / 128; ++i) {
        reinterpret_cast<float4*>(s.tile[begin + k])[lane + 32 * i] = value[k][i];
      }
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kWarpKeys; ++k) {
    const int j = begin + k, key = first + j;
    if (j >= n) {
      for (int i = lane; i < kWidth; i += kWarp) s.tile[j][i] = 0;
      continue;
    }
    const bool in_window = key < keys.n_window;
    const RowStore& store = in_window ? a.ring : a.chunks;
    const std::byte* const stored = key_at(a, seq, keys, key);
    const int n_rot = in_window ? plan.ring_rot : plan.chunk_rot;
    for (int i = lane; i < kWidth; i += kWarp) {
      s.tile[j][i] = i < a.d ? decode_value(store.format, a.d, n_rot, stored, i) : 0.0f;
    }
  }
}

/// Scores of all heads against the warp's keys. The four sums of a head are folded together: after
/// two exchanges a lane is left with one of them.
template <int kWidth, int kHeads>
__device__ void score_tile(Shared<kWidth, kHeads>& s) {
  constexpr int kQuads = kWidth / 128;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float4 key[kWarpKeys][kQuads];
#pragma unroll
  for (int k = 0; k < kWarpKeys; ++k) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      key[k][i] = reinterpret_cast<const float4*>(s.tile[warp * kWarpKeys + k])[lane + 32 * i];
    }
  }
#pragma unroll 4
  for (int h = 0; h < kHeads; ++h) {
    float sum[kWarpKeys] = {};
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 x = reinterpret_cast<const float4*>(s.q[h])[lane + 32 * i];
#pragma unroll
      for (int k = 0; k < kWarpKeys; ++k) sum[k] = dot4(x, key[k][i], sum[k]);
    }
    const bool high = (lane & 16) != 0, odd = (lane & 8) != 0;
    float a = high ? sum[2] : sum[0], b = high ? sum[3] : sum[1];
    a += __shfl_xor_sync(kAllLanes, high ? sum[0] : sum[2], 16);
    b += __shfl_xor_sync(kAllLanes, high ? sum[1] : sum[3], 16);
    float c = odd ? b : a;
    c += __shfl_xor_sync(kAllLanes, odd ? a : b, 8);
    c += __shfl_xor_sync(kAllLanes, c, 4);
    c += __shfl_xor_sync(kAllLanes, c, 2);
    c += __shfl_xor_sync(kAllLanes, c, 1);
    if (lane % 8 == 0) s.weight[warp * kWarpKeys + lane / 8][h] = c;
  }
}

/// Turns the scores of n keys into weights and moves the states on.
template <int kWidth, int kHeads>
__device__ void soften_tile(int n, float scale, Shared<kWidth, kHeads>& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int h = warp; h < kHeads; h += kAttendWarps) {
    const float score = lane < n ? s.weight[lane][h] * scale : -INFINITY;
    const State old = s.state[h];
    const float largest = fmaxf(old.largest, warp_max(score));
    // Nothing but -inf so far: subtracting it would make NaN.
    const float weight = expf(score - (largest == -INFINITY ? 0.0f : largest));
    const float sum = warp_sum(weight);
    s.weight[lane][h] = weight;
    if (lane == 0) {
      const float rescale = decay(old.largest, largest);
      s.rescale[h] = rescale;
      s.state[h] = {largest, fmaf(old.total, rescale, sum)};
    }
  }
}

/// How the threads of a block share the sums: each has two dims of kOwnHeads heads.
template <int kWidth, int kHeads>
struct Own {
  static constexpr int kThreadsPerSet = kWidth / 2;
  static constexpr int kOwnHeads = kHeads * kThreadsPerSet / kAttendThreads;
  static __device__ int dim() { return threadIdx.x % kThreadsPerSet * 2; }
  static __device__ int head() {
    return static_cast<int>(threadIdx.x) / kThreadsPerSet * kOwnHeads;
  }
};

/// The tiles of one split: s.state and `sum` on return.
template <int kWidth, int kHeads>
__device__ void run_split(const AttendPlan& plan, int seq, const Keys& keys, int split,
                          Shared<kWidth, kHeads>& s,
                          float2 (&sum)[Own<kWidth, kHeads>::kOwnHeads]) {
  constexpr int kOwnHeads = Own<kWidth, kHeads>::kOwnHeads;
  const int dim = Own<kWidth, kHeads>::dim(), head = Own<kWidth, kHeads>::head();
#pragma unroll
  for (int h = 0; h < kOwnHeads; ++h) sum[h] = make_float2(0, 0);
  if (threadIdx.x < kHeads) s.state[threadIdx.x] = {-INFINITY, 0.0f};
  const int last = keys.tile(split + 1);
  for (int t = keys.tile(split); t < last; ++t) {
    const int first = t * kTile, n = min(kTile, keys.n_keys - first);
    __syncthreads();
    load_tile(plan, seq, keys, first, n, s);
    __syncwarp();  // a warp scores the keys that it loaded
    score_tile(s);
    __syncthreads();
    soften_tile(n, plan.args.scale, s);
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
      const float rescale = s.rescale[head + h];
      sum[h].x *= rescale;
      sum[h].y *= rescale;
    }
#pragma unroll 4
    for (int j = 0; j < n; ++j) {
      const float2 value = *reinterpret_cast<const float2*>(&s.tile[j][dim]);
#pragma unroll
      for (int h = 0; h < kOwnHeads; ++h) {
        const float weight = s.weight[j][head + h];
        sum[h].x = fmaf(weight, value.x, sum[h].x);
        sum[h].y = fmaf(weight, value.y, sum[h].y);
      }
    }
  }
  __syncthreads();
}

template <int kWidth, int kHeads>
__device__ void load_queries(const AttendArgs& a, int row, int first_head,
                             Shared<kWidth, kHeads>& s) {
  const float* const q = a.q + (static_cast<std::int64_t>(row) * a.n_heads + first_head) * a.d;
  constexpr int kQuads = kHeads * kWidth / 4 / kAttendThreads;  // of a thread
  if (a.d == kWidth) {
    float4 value[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = threadIdx.x + i * kAttendThreads;
      value[i] = first_head + at / (kWidth / 4) < a.n_heads ? reinterpret_cast<const float4*>(q)[at]
                                                            : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      reinterpret_cast<float4*>(s.q[0])[threadIdx.x + i * kAttendThreads] = value[i];
    }
    return;
  }
  for (int i = threadIdx.x; i < kHeads * kWidth; i += kAttendThreads) {
    const int h = i / kWidth, at = i % kWidth;
    s.q[h][at] = at < a.d && first_head + h < a.n_heads ? q[h * a.d + at] : 0.0f;
  }
}

/// out = sum / total, the last dims rotated back; dims dim and dim + 1 of one head.
__device__ __forceinline__ void write_pair(const AttendArgs& a, int row, int head, int dim,
                                           float2 sum, float total) {
  if (dim >= a.d) return;
  const float inverse = 1.0f / total;
  float pair[2] = {sum.x * inverse, sum.y * inverse};
  const int rotating = dim - (a.d - 2 * a.n_pairs);
  if (rotating >= 0) {
    rotate_pair_back(pair, a.cos_sin + (static_cast<std::int64_t>(row) * a.n_pairs) * 2 + rotating);
  }
  float* const out = a.out + (static_cast<std::int64_t>(row) * a.n_heads + head) * a.d + dim;
  out[0] = pair[0];
  out[1] = pair[1];
}

template <int kWidth, int kHeads>
__global__ void __launch_bounds__(kAttendThreads) attend_split_kernel(AttendPlan plan) {
  extern __shared__ float4 memory[];
  Shared<kWidth, kHeads>& s = *reinterpret_cast<Shared<kWidth, kHeads>*>(memory);
  wait_for_inputs();
  const AttendArgs& a = plan.args;
  const int split = blockIdx.x, first_head = blockIdx.y * kHeads, row = blockIdx.z;
  if (row >= *a.step.n_rows) return;
  const Keys keys(a, row);
  if (split >= keys.n_splits) return;
  load_queries(a, row, first_head, s);
  float2 sum[Own<kWidth, kHeads>::kOwnHeads];
  run_split<kWidth, kHeads>(plan, a.step.seq[row], keys, split, s, sum);
  const int dim = Own<kWidth, kHeads>::dim();
#pragma unroll
  for (int h = 0; h < Own<kWidth, kHeads>::kOwnHeads; ++h) {
    const int head = first_head + Own<kWidth, kHeads>::head() + h;
    if (head >= a.n_heads) break;
    const std::int64_t slot =
        (static_cast<std::int64_t>(row) * a.n_heads + head) * kMaxSplits + split;
    *reinterpret_cast<float2*>(plan.partial + slot * kWidth + dim) = sum[h];
    if (dim == 0) {
      const State state = s.state[Own<kWidth, kHeads>::head() + h];
      plan.state[slot] = make_float2(state.largest, state.total);
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kWidth / 2) attend_join_kernel(AttendPlan plan) {
  wait_for_inputs();
  const AttendArgs& a = plan.args;
  const int head = blockIdx.x, row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  const Keys keys(a, row);
  const std::int64_t slot = (static_cast<std::int64_t>(row) * a.n_heads + head) * kMaxSplits;
  const int dim = threadIdx.x * 2;
  State state = sink_state(a.sink[head]);
  float2 sum = make_float2(0, 0);
#pragma unroll 4
  for (int split = 0; split < keys.n_splits; ++split) {
    const float2 other = plan.state[slot + split];
    const float2 part =
        *reinterpret_cast<const float2*>(plan.partial + (slot + split) * kWidth + dim);
    const Factors f = join(state, {other.x, other.y});
    sum.x = fmaf(part.x, f.other, sum.x * f.own);
    sum.y = fmaf(part.y, f.other, sum.y * f.own);
  }
  write_pair(a, row, head, dim, sum, state.total);
}

template <int kWidth, int kHeads>
__global__ void __launch_bounds__(kAttendThreads) attend_rows_kernel(AttendPlan plan) {
  extern __shared__ float4 memory[];
  Shared<kWidth, kHeads>& s = *reinterpret_cast<Shared<kWidth, kHeads>*>(memory);
  constexpr int kOwnHeads = Own<kWidth, kHeads>::kOwnHeads;
  wait_for_inputs();
  const AttendArgs& a = plan.args;
  const int first_head = blockIdx.x * kHeads, row = blockIdx.y;
  if (row >= *a.step.n_rows) return;
  const Keys keys(a, row);
  load_queries(a, row, first_head, s);
  const int own_head = Own<kWidth, kHeads>::head();
  float2 all[kOwnHeads];
  State state[kOwnHeads];
#pragma unroll
  for (int h = 0; h < kOwnHeads; ++h) {
    all[h] = make_float2(0, 0);
    const int head = first_head + own_head + h;
    state[h] = sink_state(head < a.n_heads ? a.sink[head] : 0.0f);
  }
  for (int split = 0; split < keys.n_splits; ++split) {
    float2 sum[kOwnHeads];
    run_split<kWidth, kHeads>(plan, a.step.seq[row], keys, split, s, sum);
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
      const Factors f = join(state[h], s.state[own_head + h]);
      all[h].x = fmaf(sum[h].x, f.other, all[h].x * f.own);
      all[h].y = fmaf(sum[h].y, f.other, all[h].y * f.own);
    }
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < kOwnHeads; ++h) {
    const int head = first_head + own_head + h;
    if (head < a.n_heads)
      write_pair(a, row, head, Own<kWidth, kHeads>::dim(), all[h], state[h].total);
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

cudaError_t attend(const Launch& launch, const AttendArgs& args, std::int32_t ring_rot,
                   std::int32_t chunk_rot) {
  const AttendPlan plan{args, ring_rot, chunk_rot, nullptr, nullptr};
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
