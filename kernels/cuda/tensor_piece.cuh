#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/tensor_iq2.cuh"
#include "kernels/cuda/tensor_product.h"
#include "kernels/quant_grids.h"

// What the kernels of tensor products share: a block's piece, its tiles and tables, terms and
// stores.

namespace ebb::cuda {

/// Columns of a weight row that make one term of the sum.
inline constexpr int kTermValues = kOrderBlock;

/// A number that all lanes have, which the compiler then knows to be so.
__device__ __forceinline__ int known_alike(int value) { return __shfl_sync(kAllLanes, value, 0); }

/// Where a vector comes from and where its product goes.
struct Entry {
  std::int32_t vector;
  std::int32_t place;
};

/// Matrix and vectors of piece `index`, for all threads; n = 0: there is nothing to do. Thread r <
/// n writes entries[r]. Without ids it may be opened before wait_for_inputs.
struct OpenPiece {
  std::int32_t matrix = 0;
  std::int32_t n = 0;

  __device__ OpenPiece(const Pieces& p, int index, Entry* entries) {
    const int n_rows = of_step(p.n_rows);
    int first = 0;
    if (p.ids == nullptr) {
      matrix = index / p.n_ranges;
      first = index % p.n_ranges * p.rows;
      n = max(min(p.rows, n_rows - first), 0);
    } else if (p.entries != nullptr) {
      if (index >= *p.n_pieces) return;
      const Piece piece = p.pieces[index];
      matrix = piece.expert;
      first = piece.first;
      n = piece.n;
    } else {
      if (index >= n_rows * p.n_used) return;
      matrix = p.ids[index];
      first = index;
      n = matrix >= 0 && matrix < p.n_experts ? 1 : 0;
    }
    const int r = threadIdx.x;
    if (r >= n) return;
    if (p.ids == nullptr) {
      const int row = first + r;
      entries[r] = {row * p.vector_stride + p.vector_first + matrix,
                    row * p.place_stride + p.place_first + matrix};
    } else {
      const int entry = p.entries != nullptr ? p.entries[first + r] : first + r;
      const int row = entry / p.n_used, slot = entry % p.n_used;
      entries[r] = {row * p.vector_stride + slot * p.vector_slot, row * p.place_stride + slot};
    }
  }
};

/// The tables of IQ2_XXS (Tables), from the codebook.
__device__ inline void fill_tables(const std::uint64_t* grid, void* tables) {
  for (int i = threadIdx.x; i < 256 + 128; i += blockDim.x) {
    std::uint32_t select = 0;
    if (i < 256) {
      const std::uint64_t codeword = grid[i];
#pragma unroll 1
      for (int v = 0; v < 8; ++v) {
        const std::uint32_t magnitude = static_cast<std::uint32_t>(codeword >> (8 * v)) & 255u;
        select |= select_of(magnitude) << (4 * v);
      }
    } else {
      const std::uint32_t signs = kernels::sign_byte(static_cast<std::uint32_t>(i - 256));
#pragma unroll 1
      for (int v = 0; v < 8; ++v) select |= (signs >> v & 1u) * kTableSign << (4 * v);
    }
    auto* const entry = static_cast<std::uint32_t*>(tables) + i % 256 * (kTableStride / 4) +
                        i / 256 * (kTableSigns / 4);
#pragma unroll 4
    for (int k = 0; k < kTableCopies; ++k) {
      entry[(k + static_cast<int>(threadIdx.x)) % kTableCopies] = select;
    }
  }
}

/// The tables at `memory`, where dynamic shared memory begins, as a codec takes them.
__device__ __forceinline__ Tables tables_at(const void* memory) {
  if (__cvta_generic_to_shared(memory) != kReservedShared) __trap();
  // The lane is below kWarp, but the compiler does not know it: a constant would be moved to a
  // register anew for each use.
  std::uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return {lane * 4, kTableBytesLow + lane / kWarp};
}

/// Operands of octet o of a tile's rows: two of f16 numbers or, of integers, one.
template <class C>
struct Operands {
  static constexpr int kParts = C::kDigits ? 1 : 2;
  std::uint32_t a[kParts][4];
  std::int32_t odd[2];  // with kOwnScales: of the group, by row

  __device__ __forceinline__ Operands(const typename C::Row (&rows)[2], int o,
                                      const Tables& tables) {
    std::uint32_t low[2 * kParts], high[2 * kParts];
    C::octet(rows[0], o, tables, low);
    C::octet(rows[1], o, tables, high);
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      a[i / 2][i % 2 * 2] = low[i];
      a[i / 2][i % 2 * 2 + 1] = high[i];
    }
    if constexpr (C::kOwnScales) {
      odd[0] = C::odd(rows[0], o);
      odd[1] = C::odd(rows[1], o);
    }
  }
};

/// A fragment of a term: rows g and g + 8, columns 2 t and 2 t + 1 each.
template <class C, bool kDigits = C::kDigits, bool kOwnScales = C::kOwnScales>
struct Term {
  float sum[4] = {};

  /// Adds the products of octet o. The matrix units cut off what does not fit their sums, which
  /// would add up: they sum two products of k 16 at most, and what they give is added with
  /// rounding.
  __device__ __forceinline__ void add_octet(const typename C::Row (&rows)[2], int o,
                                            const Operands<C>& w, uint4 x) {
    if constexpr (C::kGroup == 1) {
      float first[4], second[4];
      multiply(first, w.a[0], x.x, x.y);
      multiply(second, w.a[1], x.z, x.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = fmaf(C::scale(rows[i / 2], o, 0), first[i], sum[i]);
        sum[i] = fmaf(C::scale(rows[i / 2], o, 1), second[i], sum[i]);
      }
    } else {
      float both[4];
      multiply(both, w.a[0], x.x, x.y);
      multiply_add(both, w.a[1], x.z, x.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (C::kGroup == 0) {
          sum[i] += both[i];
        } else {
          sum[i] = fmaf(C::scale(rows[i / 2], o, 0), both[i], sum[i]);
        }
      }
    }
  }
  __device__ __forceinline__ float value(int i, float) const { return sum[i]; }
};

/// Integers are summed exactly: of the columns' upper and of their lower bytes.
template <class C>
struct Term<C, true, false> {
  std::int32_t high[4] = {}, low[4] = {};

  __device__ __forceinline__ void add_octet(const typename C::Row (&)[2], int, const Operands<C>& w,
                                            uint4 x) {
    multiply_add_bytes<true>(high, w.a[0], x.x, x.y);
    multiply_add_bytes<false>(low, w.a[0], x.z, x.w);
  }
  __device__ __forceinline__ float value(int i, float second) const {
    const auto sum = static_cast<float>(high[i] * 256 + low[i]);
    return i % 2 == 0 ? sum : sum * second;
  }
};

/// The same where each group of 32, which is an octet, has an odd number that multiplies it: two
/// groups, a chunk, are still summed exactly, and chunks as numbers, by pairs. Products of few
/// columns have the same sums (tensor_diagonal.cuh).
template <class C>
struct Term<C, true, true> {
  float sum[4], pair[4];
  std::int32_t chunk[4];

  __device__ __forceinline__ void add_octet(const typename C::Row (&)[2], int o,
                                            const Operands<C>& w, uint4 x) {
    std::int32_t high[4], low[4];
    multiply_add_signed(high, w.a[0], x.x, x.y, {0, 0, 0, 0});
    multiply_add_signed(low, w.a[0], x.z, x.w, {0, 0, 0, 0});
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int32_t scaled = w.odd[i / 2] * shifted_sum(high[i], low[i]);
      chunk[i] = o % 2 == 0 ? scaled : chunk[i] + scaled;
      const auto number = static_cast<float>(chunk[i]);
      if (o % 4 == 1) pair[i] = number;
      if (o % 4 == 3) pair[i] += number;
      if (o == 3) sum[i] = pair[i];
      if (o == 7) sum[i] += pair[i];
    }
  }
  __device__ __forceinline__ float value(int i, float second) const {
    return i % 2 == 0 ? sum[i] : sum[i] * second;
  }
};

/// Octets of a stage that are added in one go. The loop's code must fit the instruction cache
/// beside that of other warps.
template <class C>
inline constexpr int kOctetsAtOnce =
    C::kTables || C::kDigits || C::kBlock == 128 ? 4 : C::kBlock / 32;

/// The lane's eight values each of so many octets of its column; zeros where it has no column.
template <class C>
struct LaneValues {
  uint4 of[kOctetsAtOnce<C>] = {};
};

/// Where the lane has the octets of its column, if they stand in their order.
struct OctetPlaces {
  const uint4* first;
  __device__ __forceinline__ const uint4* operator()(int octet) const { return first + octet * 4; }
};

/// Adds a stage of kTiles tiles, one behind the other, to a set of eight columns. x(o) is where the
/// lane has octet o of its column; it is not read where the lane has none. `odd`: see is_odd.
/// `rows` are left open for finish_term.
template <class C, int kTiles, class Column>
__device__ __forceinline__ void add_stage(const std::uint8_t* stage, const bool (&odd)[kTiles],
                                          Column x, bool there, const Tables& tables,
                                          LaneValues<C>& values, typename C::Row (&rows)[kTiles][2],
                                          Term<C> (&term)[kTiles]) {
  constexpr int kAtOnce = kOctetsAtOnce<C>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    rows[k][0] = C::open(stage + k * kStageBytes<C>, g, t, odd[k]);
    rows[k][1] = C::open(stage + k * kStageBytes<C>, g + 8, t, odd[k]);
  }
#pragma unroll(C::kDigits ? 2 : 1)
  for (int first = 0; first < C::kBlock / 32; first += kAtOnce) {
    if (there) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) values.of[i] = *x(first + i);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        term[k].add_octet(rows[k], first + i, Operands<C>(rows[k], first + i, tables),
                          values.of[i]);
      }
    }
  }
}

/// What the integers of odd columns stand for.
__device__ __forceinline__ float second_column(int per_vector) {
  return per_vector == 2 ? 1.0f / kDigitStep : 1.0f;
}

/// A fragment of a finished term: what is common to the block is applied. `sums` is the operand of
/// the activations' sums, `second` is second_column.
template <class C>
__device__ __forceinline__ void finish_term(const typename C::Row (&rows)[2], uint2 sums,
                                            float second, const Term<C>& sum, float (&term)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    term[i] = sum.value(i, second);
    if constexpr (C::kGroup == 0 && C::kScaled) term[i] *= C::scale(rows[i / 2], 0, 0);
  }
  if constexpr (C::kMinus) {
    float minimum[4];
    std::uint32_t low[2], high[2];
    C::minima(rows[0], low);
    C::minima(rows[1], high);
    multiply(minimum, {low[0], high[0], low[1], high[1]}, sums.x, sums.y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      term[i] = fmaf(-static_cast<float>(kSumValues) * C::minus(rows[i / 2]), minimum[i], term[i]);
    }
  }
}

/// Stores a fragment of finished sums: rows first + g and first + g + 8 of a matrix, columns
/// column + 2 t and column + 2 t + 1. kMats = 2: sums of gate and of up.
template <int kMats>
__device__ __forceinline__ void store_sums(const float (&sum)[kMats][4], const TensorPart& part,
                                           int first, int column, int n_entries, int per_vector,
                                           float clamp, const Entry* entries, const float* inverse,
                                           int lane) {
  const int g = lane / 4, t = lane % 4;
  const auto put = [&](int e, const float(&gate)[2], const float(&up)[2]) {
    if (e >= n_entries) return;
    float* const out =
        part.out + static_cast<std::int64_t>(entries[e].place) * part.n_out + first + g;
    const float scale = inverse[e];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kMats == 2) {
        out[8 * h] = gated(gate[h] * scale, up[h] * scale, clamp);
      } else {
        out[8 * h] = gate[h] * scale;
      }
    }
  };
  constexpr int kUp = kMats - 1;
  if (per_vector == 2) {
    put((column + 2 * t) / 2, {sum[0][0] + sum[0][1], sum[0][2] + sum[0][3]},
        {sum[kUp][0] + sum[kUp][1], sum[kUp][2] + sum[kUp][3]});
  } else {
    put(column + 2 * t, {sum[0][0], sum[0][2]}, {sum[kUp][0], sum[kUp][2]});
    put(column + 2 * t + 1, {sum[0][1], sum[0][3]}, {sum[kUp][1], sum[kUp][3]});
  }
}

/// Whether block b of a row has an odd number: a 2-byte field is then in the high half of its word.
__device__ __forceinline__ bool is_odd(int matrix, int n_out, int row, int row_blocks, int b) {
  return ((((matrix & n_out) + row) & row_blocks) + b & 1) != 0;
}

/// The part that holds `tile`, which becomes the tile's number within the part.
__device__ __forceinline__ int part_of(const TensorProduct& p, int& tile) {
  int part = 0;
  while (tile >= p.parts[part].tiles_end) ++part;
  if (part > 0) tile -= p.parts[part - 1].tiles_end;
  return part;
}

/// First row of the 16 of row tile `index`: the last tile ends with the matrix.
__device__ __forceinline__ int tile_row(int index, int n_out) {
  return min(index * kTileRows, n_out - kTileRows);
}

}  // namespace ebb::cuda
