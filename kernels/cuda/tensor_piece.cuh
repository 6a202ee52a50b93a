#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/tensor_codec.cuh"
#include "kernels/cuda/tensor_product.h"
#include "kernels/quant_grids.h"

// What both kernels of tensor products share: a block's piece, its tiles and tables, terms and
// stores.

namespace ebb::cuda {

/// Columns of a weight row that make one term of the sum.
inline constexpr int kTermValues = kOrderBlock;

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

/// The tables of TensorCodec<iq2_xxs>, from the codebook.
__device__ inline void fill_tables(const std::uint64_t* grid, std::uint64_t* tables) {
  for (int i = threadIdx.x; i < 256 + 128; i += blockDim.x) {
    std::uint64_t select = 0;
    if (i < 256) {
      const std::uint64_t codeword = grid[i];
#pragma unroll 1
      for (int v = 0; v < 8; ++v) {
        const std::uint32_t magnitude = static_cast<std::uint32_t>(codeword >> (8 * v)) & 255u;
        select |= (magnitude == 8 ? 0x30ull : magnitude == 25 ? 0x31ull : 0x32ull) << (8 * v);
      }
    } else {
      const std::uint64_t signs = kernels::sign_byte(static_cast<std::uint32_t>(i - 256));
#pragma unroll 1
      for (int v = 0; v < 8; ++v) select |= (signs >> v & 1u) << (8 * v + 2);
    }
#pragma unroll 4
    for (int k = 0; k < kTableCopies; ++k) {
      tables[i * kTableCopies + (k + static_cast<int>(threadIdx.x)) % kTableCopies] = select;
    }
  }
}

/// The shared address of the lane's copy of the tables at `memory`.
__device__ __forceinline__ std::uint32_t tables_of_lane(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)) +
         threadIdx.x % kTableCopies * 8;
}

/// Adds the products of octet o of a tile's rows, operands a0 and a1, to a fragment of the term.
/// The matrix units cut off what does not fit their sums, which would add up: they sum two products
/// of k 16 at most, and what they give is added with rounding.
template <class C>
__device__ __forceinline__ void add_octet(const typename C::Row (&rows)[2], int o,
                                          const std::uint32_t (&a0)[4],
                                          const std::uint32_t (&a1)[4], uint4 x, float (&term)[4]) {
  if constexpr (C::kGroup == 1) {
    float first[4], second[4];
    multiply(first, a0, x.x, x.y);
    multiply(second, a1, x.z, x.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      term[i] = fmaf(C::scale(rows[i / 2], o, 0), first[i], term[i]);
      term[i] = fmaf(C::scale(rows[i / 2], o, 1), second[i], term[i]);
    }
  } else {
    float both[4];
    multiply(both, a0, x.x, x.y);
    multiply_add(both, a1, x.z, x.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (C::kGroup == 0) {
        term[i] += both[i];
      } else {
        term[i] = fmaf(C::scale(rows[i / 2], o, 0), both[i], term[i]);
      }
    }
  }
}

/// Operands of octet o of a tile's rows.
template <class C>
__device__ __forceinline__ void operands(const typename C::Row (&rows)[2], int o,
                                         std::uint32_t tables, std::uint32_t (&a0)[4],
                                         std::uint32_t (&a1)[4]) {
  std::uint32_t low[4], high[4];
  C::octet(rows[0], o, tables, low);
  C::octet(rows[1], o, tables, high);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a0[2 * i] = low[i];
    a0[2 * i + 1] = high[i];
    a1[2 * i] = low[2 + i];
    a1[2 * i + 1] = high[2 + i];
  }
}

/// Adds a stage of kTiles tiles, one behind the other, to a set of eight columns; the lane's
/// column begins at x for this stage, which is not read without `there`. `odd`: see is_odd. `rows`
/// are left open for finish_term.
template <class C, int kTiles, int kUnroll>
__device__ __forceinline__ void add_stage(const std::uint8_t* stage, const bool (&odd)[kTiles],
                                          const uint4* x, bool there, std::uint32_t tables,
                                          typename C::Row (&rows)[kTiles][2],
                                          float (&term)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    rows[k][0] = C::open(stage + k * kStageBytes<C>, g, t, odd[k]);
    rows[k][1] = C::open(stage + k * kStageBytes<C>, g + 8, t, odd[k]);
  }
#pragma unroll kUnroll
  for (int o = 0; o < C::kBlock / 32; ++o) {
    const uint4 value = there ? x[o * 4] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      std::uint32_t a0[4], a1[4];
      operands<C>(rows[k], o, tables, a0, a1);
      add_octet<C>(rows[k], o, a0, a1, value, term[k]);
    }
  }
}

/// What is common to the block, applied to a fragment of its term; `sums` is the operand of the
/// activations' sums.
template <class C>
__device__ __forceinline__ void finish_term(const typename C::Row (&rows)[2], uint2 sums,
                                            float (&term)[4]) {
  if constexpr (C::kGroup == 0 && C::kScaled) {
#pragma unroll
    for (int i = 0; i < 4; ++i) term[i] *= C::scale(rows[i / 2], 0, 0);
  }
  if constexpr (C::kMinus) {
    float minimum[4];
    multiply(minimum,
             {rows[0].minimum[0], rows[1].minimum[0], rows[0].minimum[1], rows[1].minimum[1]},
             sums.x, sums.y);
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
