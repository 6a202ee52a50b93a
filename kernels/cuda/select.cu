// score  a warp holds 16 keys as operands of the matrix units (matrix.cuh) and takes row after row,
//        16 heads at a time: the sum of a score depends on the row and the chunk alone.
// pick   a block finds the top_k-th largest by counting (select_pick.cuh).
//
// Rows that see no more than top_k chunks need no scores. Many rows go in waves and keys in
// segments, so that the memory for scores is bounded.

#include <algorithm>

#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/row_quads.cuh"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_pick.cuh"

namespace ebb::cuda {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / kWarp;
constexpr int kWarpChunks = 16;
constexpr int kBlockChunks = kScoreWarps * kWarpChunks;
constexpr int kBlockRows = 16;  // rows that share the keys of a block
constexpr int kFewRows = 16;
constexpr int kWaveRows = 256;
constexpr std::int32_t kSegment = 16384;     // chunks of a wave of many rows
constexpr std::int32_t kFewSegment = 65536;  // and of few rows

/// Rows of queries in shared memory, halves; the padding puts the rows that a quarter of a warp
/// reads, 8 bytes a lane, in different banks.
template <int kWidth>
constexpr int kQueryStride = kWidth + 16;

template <int kWidth>
std::size_t score_bytes(std::int32_t n_heads) {
  const auto heads = static_cast<std::size_t>((n_heads + 15) / 16 * 16);
  return heads * (2 * kQueryStride<kWidth> * sizeof(__half) + sizeof(float));
}

/// The warp's keys as operands: lane (g, t) holds values 16 step + 4 t .. + 3 of keys g and g + 8.
/// Which value has which place along k does not matter as long as the queries agree.
template <int kWidth>
struct KeyOperands {
  uint2 high[kWidth / 16][2], low[kWidth / 16][2];
  float inverse[4];  // 1 / factor of the keys whose scores the lane sums
  bool has_low;

  __device__ __forceinline__ void load(const RowReader& reader, const RowStore& keys, int seq,
                                       int first_chunk) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    std::uint32_t low_bits = 0;
    float own_inverse[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // A chunk past the store's end repeats its last one; the score is not used.
      const std::int64_t chunk = min(first_chunk + 8 * n + g, static_cast<int>(keys.n_rows) - 1);
      float4 value[kWidth / 16];
      float largest = 0;
      const std::byte* const stored = row_at(keys, seq, chunk);
      load_quads(reader, stored, 4 * t, 16, value);
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        largest = fmaxf(largest, largest_of(value[step]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float factor = half_range_factor(largest);
      own_inverse[n] = 1.0f / factor;
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        const float4 v = value[step];
        split_halves(v.x * factor, v.y * factor, high[step][n].x, low[step][n].x);
        split_halves(v.z * factor, v.w * factor, high[step][n].y, low[step][n].y);
        low_bits |= low[step][n].x | low[step][n].y;
      }
    }
    // The lane's sums are of keys 2 t and 2 t + 1 of both eights.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      inverse[i] = __shfl_sync(kAllLanes, own_inverse[i / 2], 4 * (2 * t + i % 2));
    }
    has_low = __any_sync(kAllLanes, (low_bits & 0x7fff7fffu) != 0) != 0;
  }
};

/// Some heads' queries of a row, on their way from memory; a warp per head.
template <int kWidth>
struct HeldQueries {
  static constexpr int kQuads = (kWidth + 127) / 128;
  static constexpr int kHeads = 8 / kQuads;  // of a warp
  float4 of[kHeads][kQuads];

  __device__ __forceinline__ void load(const SelectArgs& a, int row, int first_head) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      const int h = first_head + k * kScoreWarps + warp;
      const float* const q = a.q + (static_cast<std::int64_t>(row) * a.n_heads + h) * a.d;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int dim = 128 * i + 4 * lane;
        float4 v = make_float4(0, 0, 0, 0);
        if (h < a.n_heads && dim < a.d) {
          if (a.d % 4 == 0) {
            v = *reinterpret_cast<const float4*>(q + dim);
          } else {
            v.x = q[dim];
            if (dim + 1 < a.d) v.y = q[dim + 1];
            if (dim + 2 < a.d) v.z = q[dim + 2];
            if (dim + 3 < a.d) v.w = q[dim + 3];
          }
        }
        of[k][i] = v;
      }
    }
  }

  /// Splits them into halves; true if a low half of the thread's is not zero.
  __device__ __forceinline__ bool store(const SelectArgs& a, int row, int first_head, int n_heads,
                                        __half* high, __half* low, float* weight) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    std::uint32_t any_low = 0;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      const int h = first_head + k * kScoreWarps + warp;
      if (h >= n_heads) break;
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) largest = fmaxf(largest, largest_of(of[k][i]));
      const float factor = half_range_factor(warp_max(largest));
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int dim = 128 * i + 4 * lane;
        if (dim >= kWidth) continue;
        const float4 v = of[k][i];
        uint2 high_bits, low_bits;
        split_halves(v.x * factor, v.y * factor, high_bits.x, low_bits.x);
        split_halves(v.z * factor, v.w * factor, high_bits.y, low_bits.y);
        *reinterpret_cast<uint2*>(high + h * kQueryStride<kWidth> + dim) = high_bits;
        *reinterpret_cast<uint2*>(low + h * kQueryStride<kWidth> + dim) = low_bits;
        any_low |= low_bits.x | low_bits.y;
      }
      if (lane == 0) {
        weight[h] = h < a.n_heads ? a.weight[static_cast<std::int64_t>(row) * a.n_heads + h] *
                                        a.weight_scale / factor
                                  : 0.0f;
      }
    }
    return (any_low & 0x7fff7fffu) != 0;
  }
};

/// Not a maximum with 0, which would drop a NaN.
__device__ __forceinline__ float rectified(float x) { return x < 0.0f ? 0.0f : x; }

template <int kWidth>
__global__ void __launch_bounds__(kScoreThreads, kWidth <= 128 ? 2 : 1)
    score_kernel(const __grid_constant__ SelectPlan p, const __grid_constant__ RowReader reader,
                 int block_rows) {
  extern __shared__ __half memory[];
  wait_for_inputs();
  const SelectArgs& a = p.args;
  const int n_heads = (a.n_heads + 15) / 16 * 16;
  __half* const q_high = memory;
  __half* const q_low = q_high + n_heads * kQueryStride<kWidth>;
  float* const weight = reinterpret_cast<float*>(q_low + n_heads * kQueryStride<kWidth>);
  const int first = p.first_row + blockIdx.y * block_rows;
  const int last = min(min(first + block_rows, p.first_row + p.wave_rows), *a.step.n_rows);
  const int begin = p.segment * p.segment_size + blockIdx.x * kBlockChunks;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int own = begin + warp * kWarpChunks;
  KeyOperands<kWidth> keys;
  int loaded = -1;  // the sequence whose keys are held
  for (int row = first; row < last; ++row) {
    const int visible = visible_chunks(a.step.pos[row], a.ratio);
    if (visible <= a.top_k || visible <= begin) continue;  // the same for the whole block
    const int seq = a.step.seq[row];
    HeldQueries<kWidth> queries;
    constexpr int kAtOnce = HeldQueries<kWidth>::kHeads * kScoreWarps;
    queries.load(a, row, 0);
    if (loaded != seq) {
      // Chunks past the visible ones may hold anything; their scores are not used.
      loaded = seq;
      keys.load(reader, a.keys, seq, own);
    }
    __syncthreads();  // the row before is done with
    bool any_low = queries.store(a, row, 0, n_heads, q_high, q_low, weight);
    for (int h = kAtOnce; h < n_heads; h += kAtOnce) {
      queries.load(a, row, h);
      any_low = queries.store(a, row, h, n_heads, q_high, q_low, weight) || any_low;
    }
    const bool q_has_low = __syncthreads_or(any_low) != 0;
    if (own >= visible) continue;
    float score[4] = {};
    for (int m = 0; m < n_heads; m += 16) {
      float dot[2][4] = {};
      const __half* const upper = q_high + (m + g) * kQueryStride<kWidth> + 4 * t;
      const __half* const upper_low = q_low + (m + g) * kQueryStride<kWidth> + 4 * t;
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
        const uint2 x = *reinterpret_cast<const uint2*>(upper + 16 * step);
        const uint2 y =
            *reinterpret_cast<const uint2*>(upper + 8 * kQueryStride<kWidth> + 16 * step);
        const std::uint32_t q[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          add_product(dot[n], q, keys.high[step][n].x, keys.high[step][n].y);
        }
        if (keys.has_low) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            add_product(dot[n], q, keys.low[step][n].x, keys.low[step][n].y);
          }
        }
        if (q_has_low) {
          const uint2 z = *reinterpret_cast<const uint2*>(upper_low + 16 * step);
          const uint2 w =
              *reinterpret_cast<const uint2*>(upper_low + 8 * kQueryStride<kWidth> + 16 * step);
          const std::uint32_t r[4] = {z.x, w.x, z.y, w.y};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            add_product(dot[n], r, keys.high[step][n].x, keys.high[step][n].y);
          }
        }
      }
      const float w_upper = weight[m + g], w_lower = weight[m + g + 8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[i] = fmaf(w_upper, rectified(dot[i / 2][i % 2]), score[i]);
        score[i] = fmaf(w_lower, rectified(dot[i / 2][2 + i % 2]), score[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 4);
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 8);
      score[i] += __shfl_xor_sync(kAllLanes, score[i], 16);
    }
    std::uint32_t* const order =
        p.order + static_cast<std::int64_t>(row - p.first_row) * p.segment_size;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = own + i / 2 * 8 + 2 * t + i % 2;
      if (g == 0 && chunk < visible) {
        order[chunk - p.segment * p.segment_size] = order_of(score[i] * keys.inverse[i]);
      }
    }
  }
}

__global__ void __launch_bounds__(kPickThreads, 1)
    pick_kernel(const __grid_constant__ SelectPlan p) {
  __shared__ PickMemory memory;
  wait_for_inputs();
  const SelectArgs& a = p.args;
  const int row = p.first_row + blockIdx.x;
  const int n_rows = *a.step.n_rows, visible = visible_chunks(a.step.pos[row], a.ratio);
  if (row >= n_rows) return;
  const int begin = p.segment * p.segment_size;
  std::int32_t* const ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
  if (visible <= a.top_k) {
    if (p.segment > 0) return;
    for (int i = threadIdx.x; i < visible; i += kPickThreads) ids[i] = i;
    if (threadIdx.x == 0) a.count[row] = visible;
    return;
  }
  if (visible <= begin) return;  // chosen with the segment before
  const int end = min(visible, begin + p.segment_size);
  const bool is_last = end == visible;
  const auto half = [&](auto* kept, int segment) {
    return kept + (static_cast<std::int64_t>(segment % 2) * p.wave_rows + blockIdx.x) * a.top_k;
  };
  Candidates c{};
  c.n_kept = min(begin, a.top_k);
  if (c.n_kept > 0) {
    c.kept_order = half(p.kept_order, p.segment);
    c.kept_ids = half(p.kept_ids, p.segment);
  }
  c.order = p.order + static_cast<std::int64_t>(blockIdx.x) * p.segment_size;
  c.first_id = begin;
  c.n = c.n_kept + end - begin;
  std::int32_t* const out_ids = is_last ? ids : half(p.kept_ids, p.segment + 1);
  std::uint32_t* const out_order = is_last ? nullptr : half(p.kept_order, p.segment + 1);
  if (is_last && threadIdx.x == 0) a.count[row] = a.top_k;
  const int top_k = min(a.top_k, c.n);
  if (c.n <= kPickThreads * 4) {
    pick<4, true>(c, top_k, memory, out_ids, out_order);
  } else if (c.n <= kPickThreads * 16) {
    pick<16, true>(c, top_k, memory, out_ids, out_order);
  } else {
    pick<16, false>(c, top_k, memory, out_ids, out_order);
  }
}

/// How rows and keys are cut.
struct Layout {
  std::int32_t wave_rows, segment, n_segments;
  std::size_t kept_order, kept_ids, end;  // places in the workspace, bytes

  explicit Layout(const SelectArgs& args) {
    const std::int32_t rows = args.step.max_rows;
    wave_rows = std::min(rows, kWaveRows);
    const std::int64_t capacity =
        std::max<std::int64_t>(4, (args.keys.n_rows + 3) / 4 * std::int64_t{4});
    segment = static_cast<std::int32_t>(
        std::min<std::int64_t>(capacity, rows <= kFewRows ? kFewSegment : kSegment));
    n_segments = static_cast<std::int32_t>((capacity + segment - 1) / segment);
    const auto wave = static_cast<std::size_t>(wave_rows);
    kept_order = wave * static_cast<std::size_t>(segment) * sizeof(std::uint32_t);
    const std::size_t kept =
        n_segments > 1 ? 2 * wave * static_cast<std::size_t>(args.top_k) * sizeof(std::uint32_t)
                       : 0;
    kept_ids = kept_order + kept;
    end = kept_ids + kept;
  }
};

template <int kWidth>
cudaError_t score(const Launch& launch, const SelectPlan& plan, std::int32_t rows) {
  const SelectArgs& a = plan.args;
  const std::size_t bytes = score_bytes<kWidth>(a.n_heads);
  if (const cudaError_t error = allow_shared(score_kernel<kWidth>, bytes)) return error;
  const int block_rows = rows > kFewRows ? kBlockRows : 1;
  return start(launch, score_kernel<kWidth>,
               dim3(static_cast<unsigned>((plan.segment_size + kBlockChunks - 1) / kBlockChunks),
                    static_cast<unsigned>((rows + block_rows - 1) / block_rows)),
               dim3(kScoreThreads), bytes, plan, row_reader(a.keys, a.d, plan.n_rot), block_rows);
}

}  // namespace

std::size_t select_workspace(const SelectArgs& args) { return Layout(args).end; }

cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot) {
  const Layout layout(args);
  SelectPlan plan;
  plan.args = args;
  plan.order = reinterpret_cast<std::uint32_t*>(launch.workspace);
  plan.kept_order = reinterpret_cast<std::uint32_t*>(launch.workspace + layout.kept_order);
  plan.kept_ids = reinterpret_cast<std::int32_t*>(launch.workspace + layout.kept_ids);
  plan.segment_size = layout.segment;
  plan.wave_rows = layout.wave_rows;
  plan.n_rot = n_rot;
  for (std::int32_t first = 0; first < args.step.max_rows; first += layout.wave_rows) {
    const std::int32_t rows = std::min(layout.wave_rows, args.step.max_rows - first);
    plan.first_row = first;
    for (plan.segment = 0; plan.segment < layout.n_segments; ++plan.segment) {
      if (args.keys.n_rows > args.top_k) {
        const cudaError_t error = args.d <= 64    ? score<64>(launch, plan, rows)
                                  : args.d <= 128 ? score<128>(launch, plan, rows)
                                                  : score<256>(launch, plan, rows);
        if (error != cudaSuccess) return error;
      }
      const cudaError_t error = start(launch, pick_kernel, dim3(static_cast<unsigned>(rows)),
                                      dim3(kPickThreads), 0, plan);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace ebb::cuda
