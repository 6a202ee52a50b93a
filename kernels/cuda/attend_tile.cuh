#pragma once

#include "kernels/chunks.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/row_quads.cuh"
#include "kernels/rope.h"

// One tile of keys against the heads of a block, on the matrix units (matrix.cuh). Sixteen warps
// share the work:
//   stage   a warp decodes two keys and splits them into halves; one factor serves the tile
//   score   a warp takes 16 keys and an eighth of the dims, for all heads; the eighths are added
//           in order by
//   soften  a warp per head, a lane per key: softmax weights, split into halves too
//   weigh   a warp takes a sixteenth of the dims, for all heads, and all keys
// Keys that are f16 numbers, as after training's rounding, have no low halves; a step that would
// only add zeros is left out.

namespace ebb::cuda {

inline constexpr int kAttendThreads = 512;
inline constexpr int kAttendWarps = kAttendThreads / kWarp;
inline constexpr int kTile = 32;  ///< keys; one per lane in the softmax
inline constexpr int kWarpKeys = kTile / kAttendWarps;
inline constexpr int kDepths = 8;  ///< parts that the dims are cut into for scores
inline constexpr int kMaxSplits = 24;
inline constexpr float kWeightFactor = 16384.0f;  ///< brings weights, at most 1, to f16's range

struct AttendPlan {
  AttendArgs args;
  HeadsArgs heads;  // what is still to be done to the queries; x is nullptr for nothing
  RowReader ring;
  RowReader chunks;
  float* partial = nullptr;  // [rows, heads, kMaxSplits, width] sums
  float2* state = nullptr;   // [rows, heads, kMaxSplits] maximum and denominator
  /// [rows, top_k] chunks that have no slot, brought in before; nullptr: they are read in the pool.
  std::byte* landing = nullptr;
};

/// The keys of one row: window, then chunks, in order. They are cut into tiles, and the tiles into
/// up to kMaxSplits runs of neighbours; the cut depends on the number of keys alone.
struct Keys {
  std::int32_t window_first, n_window, n_keys, n_tiles, n_splits;
  const std::int32_t* ids;

  __device__ Keys(const AttendArgs& a, int row, std::int32_t pos) {
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

/// Halves are padded so that the eight rows of a tile of ldmatrix stand in different banks.
template <int kWidth, int kHeads>
struct Shared {
  static constexpr int kStride = kWidth + 8;
  static constexpr int kWeightStride = kTile + 8;
  __half q_high[kHeads][kStride], q_low[kHeads][kStride];
  __half key_high[kTile][kStride], key_low[kTile][kStride];
  float part[kDepths][kHeads][kTile + 8];  // shares of the scores
  __half weight_high[kHeads][kWeightStride], weight_low[kHeads][kWeightStride];
  float q_factor[kHeads];  // of a sum of products, to make it a score but for the keys' factor
  float rescale[kHeads];
  State state[kHeads];
  float largest[kAttendWarps];
  std::uint32_t low_depths;  // bit i: part i of the dims has low halves that are not zero
};

/// A warp's sums: for tiles of 16 heads, 8 dims each.
template <int kWidth, int kHeads>
struct Sums {
  static constexpr int kHeadTiles = kHeads / 16;
  static constexpr int kDimTiles = kWidth / kAttendWarps / 8;
  float of[kHeadTiles][kDimTiles][4];
};

/// Address of chunk `chunk`, which stands at `place` of the row's choice: in its slot if it has
/// one.
__device__ __forceinline__ const std::byte* chunk_at(const AttendPlan& plan, int row, int seq,
                                                     std::int64_t chunk, int place) {
  const AttendArgs& a = plan.args;
  if (a.slots.slot_of != nullptr) {
    const std::int32_t slot = a.slots.slot_of[seq * a.chunks.n_rows + chunk];
    if (slot >= 0) {
      return a.slots.slots + seq * a.slots.sequence_bytes + slot * a.chunks.row_bytes;
    }
    if (plan.landing != nullptr) {
      return plan.landing + (static_cast<std::int64_t>(row) * a.top_k + place) * a.chunks.row_bytes;
    }
  }
  return row_at(a.chunks, seq, chunk);
}

/// Address of key `key` of the list: with chunk_at the one place that knows where rows are.
__device__ __forceinline__ const std::byte* key_at(const AttendPlan& plan, int row, int seq,
                                                   const Keys& keys, int key) {
  const AttendArgs& a = plan.args;
  if (key < keys.n_window) {
    return row_at(a.ring, seq, ring_index(keys.window_first + key, a.ring.n_rows));
  }
  const int place = key - keys.n_window;
  return chunk_at(plan, row, seq, keys.ids != nullptr ? keys.ids[place] : place, place);
}

/// The warp's keys of a tile, on their way from memory; keys past the end are zero.
template <int kWidth>
struct HeldKeys {
  float4 of[kWarpKeys][kWidth / 128];

  __device__ __forceinline__ void load(const AttendPlan& plan, int row, int seq, const Keys& keys,
                                       int first) {
    const int lane = threadIdx.x % kWarp;
    const int begin = first + static_cast<int>(threadIdx.x) / kWarp * kWarpKeys;
    const std::byte* stored[kWarpKeys];
#pragma unroll
    for (int k = 0; k < kWarpKeys; ++k) {
      const int key = begin + k;
      stored[k] = key < keys.n_keys ? key_at(plan, row, seq, keys, key) : nullptr;
    }
#pragma unroll
    for (int k = 0; k < kWarpKeys; ++k) {
      if (stored[k] != nullptr) {
        load_quads(begin + k < keys.n_window ? plan.ring : plan.chunks, stored[k], 4 * lane, 128,
                   of[k]);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth / 128; ++i) of[k][i] = make_float4(0, 0, 0, 0);
      }
    }
  }
};

__device__ __forceinline__ void store_split(float4 v, float factor, __half* high, __half* low,
                                            uint2& low_bits) {
  uint2 high_bits;
  split_halves(v.x * factor, v.y * factor, high_bits.x, low_bits.x);
  split_halves(v.z * factor, v.w * factor, high_bits.y, low_bits.y);
  *reinterpret_cast<uint2*>(high) = high_bits;
  *reinterpret_cast<uint2*>(low) = low_bits;
}

/// Puts the held keys into the tile; returns the tile's factor. Begins and ends with a barrier.
template <int kWidth, int kHeads>
__device__ __forceinline__ float stage_keys(const HeldKeys<kWidth>& held,
                                            Shared<kWidth, kHeads>& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kWarpKeys; ++k) {
#pragma unroll
    for (int i = 0; i < kWidth / 128; ++i) largest = fmaxf(largest, largest_of(held.of[k][i]));
  }
  largest = warp_max(largest);
  __syncthreads();  // the tile before is done with
  if (lane == 0) s.largest[warp] = largest;
  if (threadIdx.x == 0) s.low_depths = 0;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kAttendWarps; ++w) largest = fmaxf(largest, s.largest[w]);
  const float factor = half_range_factor(largest);
  std::uint32_t depths = 0;
#pragma unroll
  for (int k = 0; k < kWarpKeys; ++k) {
    const int key = warp * kWarpKeys + k;
#pragma unroll
    for (int i = 0; i < kWidth / 128; ++i) {
      const int dim = 128 * i + 4 * lane;
      uint2 low;
      store_split(held.of[k][i], factor, &s.key_high[key][dim], &s.key_low[key][dim], low);
      // Either zero has no bits but the sign.
      if (((low.x | low.y) & 0x7fff7fffu) != 0) depths |= 1u << (dim / (kWidth / kDepths));
    }
  }
  depths = warp_or(depths);
  if (lane == 0 && depths != 0) atomicOr(&s.low_depths, depths);
  __syncthreads();
  return factor;
}

template <int kWidth, int kHeads>
__device__ __forceinline__ void score_tile(Shared<kWidth, kHeads>& s) {
  constexpr int kSteps = kWidth / kDepths / 16;
  constexpr int kHeadTiles = kHeads / 16;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int depth = warp / 2, first_key = warp % 2 * 16;
  const bool has_low = (s.low_depths >> depth & 1u) != 0;
  float sum[kHeadTiles][2][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int dim = (depth * kSteps + step) * 16;
    const int key = first_key + lane % 8 + lane / 16 * 8, key_dim = dim + lane / 8 % 2 * 8;
    std::uint32_t high[4], low[4];
    load_tiles(high, &s.key_high[key][key_dim]);
    if (has_low) load_tiles(low, &s.key_low[key][key_dim]);
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
      const int head = m * 16 + lane % 16, head_dim = dim + lane / 16 * 8;
      std::uint32_t q_high[4], q_low[4];
      load_tiles(q_high, &s.q_high[head][head_dim]);
      load_tiles(q_low, &s.q_low[head][head_dim]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        add_product(sum[m][n], q_high, high[2 * n], high[2 * n + 1]);
        add_product(sum[m][n], q_low, high[2 * n], high[2 * n + 1]);
        if (has_low) add_product(sum[m][n], q_high, low[2 * n], low[2 * n + 1]);
      }
    }
  }
  const int row = lane / 4, column = first_key + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float* const at = &s.part[depth][m * 16 + row][column + 8 * n];
      *reinterpret_cast<float2*>(at) = make_float2(sum[m][n][0], sum[m][n][1]);
      *reinterpret_cast<float2*>(at + 8 * (kTile + 8)) = make_float2(sum[m][n][2], sum[m][n][3]);
    }
  }
}

/// Turns the scores of n keys into weights and moves the states on. `key_factor` is the tile's,
/// `carry` what the sums so far have to be multiplied by because of it.
template <int kWidth, int kHeads>
__device__ __forceinline__ void soften_tile(int n, float key_factor, float carry,
                                            Shared<kWidth, kHeads>& s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float inverse = 1.0f / key_factor;
#pragma unroll
  for (int h = warp; h < kHeads; h += kAttendWarps) {
    float sum = 0;
#pragma unroll
    for (int depth = 0; depth < kDepths; ++depth) sum += s.part[depth][h][lane];
    const float score = lane < n ? sum * s.q_factor[h] * inverse : -INFINITY;
    const State old = s.state[h];
    const float largest = fmaxf(old.largest, warp_max(score));
    // Nothing but -inf so far: subtracting it would make NaN.
    const float weight = expf(score - (largest == -INFINITY ? 0.0f : largest));
    const float total = warp_sum(weight);
    const float scaled_weight = weight * kWeightFactor;
    const __half high = __float2half_rn(scaled_weight);
    s.weight_high[h][lane] = high;
    s.weight_low[h][lane] = __float2half_rn(scaled_weight - __half2float(high));
    __syncwarp();  // every lane has read the state
    if (lane == 0) {
      const float rescale = decay(old.largest, largest);
      s.rescale[h] = rescale * carry;
      s.state[h] = {largest, fmaf(old.total, rescale, total)};
    }
  }
}

template <int kWidth, int kHeads>
__device__ __forceinline__ void weigh_tile(const Shared<kWidth, kHeads>& s,
                                           Sums<kWidth, kHeads>& sums) {
  using S = Sums<kWidth, kHeads>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool has_low = (s.low_depths >> (warp / 2) & 1u) != 0;
#pragma unroll
  for (int m = 0; m < S::kHeadTiles; ++m) {
    const float upper = s.rescale[m * 16 + lane / 4], lower = s.rescale[m * 16 + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < S::kDimTiles; ++n) {
      sums.of[m][n][0] *= upper;
      sums.of[m][n][1] *= upper;
      sums.of[m][n][2] *= lower;
      sums.of[m][n][3] *= lower;
    }
  }
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    std::uint32_t high[S::kHeadTiles][4], low[S::kHeadTiles][4];
#pragma unroll
    for (int m = 0; m < S::kHeadTiles; ++m) {
      const int head = m * 16 + lane % 16, key = step * 16 + lane / 16 * 8;
      load_tiles(high[m], &s.weight_high[head][key]);
      load_tiles(low[m], &s.weight_low[head][key]);
    }
#pragma unroll
    for (int n = 0; n < S::kDimTiles; ++n) {
      const int dim = (warp * S::kDimTiles + n) * 8, key = step * 16 + lane % 16;
      std::uint32_t value[2], value_low[2];
      load_tiles_transposed(value, &s.key_high[key][dim]);
      if (has_low) load_tiles_transposed(value_low, &s.key_low[key][dim]);
#pragma unroll
      for (int m = 0; m < S::kHeadTiles; ++m) {
        add_product(sums.of[m][n], high[m], value[0], value[1]);
        add_product(sums.of[m][n], low[m], value[0], value[1]);
        if (has_low) add_product(sums.of[m][n], high[m], value_low[0], value_low[1]);
      }
    }
  }
}

/// The queries of the block's heads, finished (plan.heads), scaled and split; a warp per head.
template <int kWidth, int kHeads>
__device__ __forceinline__ void load_queries(const AttendPlan& plan, int row, int first_head,
                                             Shared<kWidth, kHeads>& s) {
  const AttendArgs& a = plan.args;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  constexpr int kQuads = kWidth / 128;
  float4 value[kHeads / kAttendWarps][kQuads];
#pragma unroll
  for (int k = 0; k < kHeads / kAttendWarps; ++k) {
    const int head = first_head + warp + k * kAttendWarps;
    const float* const q = a.q + (static_cast<std::int64_t>(row) * a.n_heads + head) * a.d;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int dim = 128 * i + 4 * lane;
      value[k][i] = make_float4(0, 0, 0, 0);
      if (head >= a.n_heads) continue;
      if (a.d % 4 == 0) {
        if (dim < a.d) value[k][i] = *reinterpret_cast<const float4*>(q + dim);
      } else if (dim < a.d) {  // an even number
        value[k][i].x = q[dim];
        value[k][i].y = q[dim + 1];
        if (dim + 2 < a.d) {
          value[k][i].z = q[dim + 2];
          value[k][i].w = q[dim + 3];
        }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kHeads / kAttendWarps; ++k) {
    const int h = warp + k * kAttendWarps;
    if (plan.heads.x != nullptr) {
      if (plan.heads.normalise) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) squares = dot4(value[k][i], value[k][i], squares);
        const float scale =
            1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.d) + plan.heads.eps);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          float4& v = value[k][i];
          v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        }
      }
      const int n_pairs = plan.heads.n_pairs;
      const float* const angles = plan.heads.cos_sin + static_cast<std::int64_t>(row) * n_pairs * 2;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int rotating = 128 * i + 4 * lane - (a.d - 2 * n_pairs);
        float pair[4] = {value[k][i].x, value[k][i].y, value[k][i].z, value[k][i].w};
        if (rotating >= 0 && rotating < 2 * n_pairs) rotate_pair(pair, angles + rotating);
        if (rotating + 2 >= 0 && rotating + 2 < 2 * n_pairs) {
          rotate_pair(pair + 2, angles + rotating + 2);
        }
        value[k][i] = make_float4(pair[0], pair[1], pair[2], pair[3]);
      }
    }
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) largest = fmaxf(largest, largest_of(value[k][i]));
    const float factor = half_range_factor(warp_max(largest));
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int dim = 128 * i + 4 * lane;
      uint2 low;
      store_split(value[k][i], factor, &s.q_high[h][dim], &s.q_low[h][dim], low);
    }
    if (lane == 0) s.q_factor[h] = a.scale / factor;
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

}  // namespace ebb::cuda
