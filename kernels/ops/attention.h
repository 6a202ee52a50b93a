#pragma once

#include <cstdint>

#include "core/api/session.h"

namespace ebb {

// Arguments of the ops of compressed sparse attention. Pointer rules as in dense.h. A chunk is
// `ratio` consecutive tokens compressed to one row; chunk c is visible to the token at `pos` once
// c < (pos + 1) / ratio.

/// How a key-value row or index key is stored; one row is contiguous and self-contained.
///   kv f32, f16: d values.
///   kv fp8: d - n_rot e4m3 bytes, n_rot bf16 values, one e8m0 scale byte per 64 of the e4m3
///   values, padding to a multiple of 8 bytes (d 512, n_rot 64: 584 bytes). key f32: d values. key
///   fp8: d e4m3 bytes, one f32 scale. key fp4: d/2 bytes (value 2i in the low nibble), one e8m0
///   scale byte per 32 values.
enum class RowFormat : std::int32_t { f32, f16, fp8, fp4 };

/// Rounding that the model was trained with, applied before a vector is stored or compared.
enum class Rounding : std::int32_t {
  none,
  fp8_nope,       ///< e4m3 in blocks of 64 with power-of-two scale, on the dims that do not rotate
  hadamard,       ///< orthonormal Hadamard transform over the whole vector
  hadamard_fp4,   ///< the transform, then e2m1 in blocks of 32 with power-of-two scale
  bf16,           ///< bf16 before the rope, and its results again
  bf16_hadamard,  ///< that, then the transform
};

constexpr bool rounds_to_bf16(Rounding rounding) {
  return rounding == Rounding::bf16 || rounding == Rounding::bf16_hadamard;
}
constexpr bool transforms(Rounding rounding) {
  return rounding == Rounding::hadamard || rounding == Rounding::hadamard_fp4 ||
         rounding == Rounding::bf16_hadamard;
}

/// A store of rows per sequence: row i of sequence s is at data + s * sequence_bytes + i *
/// row_bytes.
struct RowStore {
  std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t sequence_bytes = 0;
  std::int64_t n_rows = 0;  ///< capacity per sequence
  RowFormat format = RowFormat::f32;
};

/// A store whose rows have a second, faster place: row i of sequence s is in slot
/// slot_of[s * n_rows + i] of `slots` if that is not negative, with the same bytes. Rows of `slots`
/// are addressed by slot number.
struct SlotStore {
  const std::int32_t* slot_of = nullptr;  ///< nullptr: there is no second place
  std::byte* slots = nullptr;
  std::int64_t sequence_bytes = 0;  ///< of slots
};

/// cos_sin[r][i] = (cos, sin) of (pos[r] + offset) * frequency[i], angle in double. Rows whose
/// pos + offset is negative are not written.   Source: model reference 3.3
struct RopeTableArgs {
  StepView step;
  const double* frequency = nullptr;  ///< [n_pairs], radians per token
  std::int32_t n_pairs = 0;
  std::int32_t offset = 0;   ///< tokens
  float* cos_sin = nullptr;  ///< [rows, n_pairs, 2] out
  bool single = false;       ///< angle = f32(pos + offset) * f32(frequency), rounded to f32
};

/// Per head, in place: optional weightless RMS norm, rope on the last 2 * n_pairs dims, rounding.
/// Source: 3.4 item 2 (queries), 3.7 item 1 (index queries)
struct HeadsArgs {
  StepView step;
  float* x = nullptr;  ///< [rows, n_heads, d] in place
  std::int32_t n_heads = 0;
  std::int32_t d = 0;
  bool normalise = false;
  float eps = 0;
  const float* cos_sin = nullptr;  ///< [rows, n_pairs, 2]
  std::int32_t n_pairs = 0;
  Rounding rounding = Rounding::none;
};

/// Norms, ropes and rounds the row's key-value vector and writes it to the window ring at
/// pos % ring.n_rows. The ring holds window - 1 + max_rows rows or more, so that no row of this
/// step overwrites one that an earlier row of the step still attends to.   Source: 3.4 items 3, 4
struct AppendArgs {
  StepView step;
  const float* kv = nullptr;           ///< [rows, d] before the norm
  const float* norm_weight = nullptr;  ///< [d]
  float eps = 0;
  const float* cos_sin = nullptr;  ///< [rows, n_pairs, 2]
  std::int32_t n_pairs = 0;
  std::int32_t d = 0;
  Rounding rounding = Rounding::none;
  RowStore ring;
};

/// Turns every chunk that ends in this step into one row, then keeps the state for the next step.
/// Columns: ratio 4 has two series, [0,d) for the previous chunk's place and [d,2d) for the own
/// one; ratio 128 has one. State ring: position % state_rows, state_rows = 2 * ratio (4) or ratio
/// (128). Source: 3.6
struct CompressArgs {
  StepView step;
  const float* kv = nullptr;    ///< [rows, c*d]
  const float* gate = nullptr;  ///< [rows, c*d]; ape not yet added
  const float* ape = nullptr;   ///< [ratio, c*d]
  float* state_kv = nullptr;    ///< [max_open, state_rows, c*d]
  float* state_gate = nullptr;  ///< the same shape; ape added
  std::int32_t ratio = 0;
  std::int32_t d = 0;
  std::int32_t overlap = 0;            ///< 1: two series (c = 2); 0: one
  const float* norm_weight = nullptr;  ///< [d]
  float eps = 0;
  const float* cos_sin = nullptr;  ///< [rows, n_pairs, 2] at pos - (ratio - 1)
  std::int32_t n_pairs = 0;
  Rounding rounding = Rounding::none;
  RowStore rows;    ///< chunk c is row c
  SlotStore slots;  ///< written too where the chunk has a slot
};

/// Chooses for every row the top_k visible chunks of largest
///   score[c] = sum_h weight[h] * weight_scale * max(0, q[h] . key[c])
/// (all that are allowed if there are no more than top_k; then scores are not needed). Ties to the
/// lower id, NaN counts as -inf. ids come out ascending; count[r] says how many.   Source: 3.7
struct SelectArgs {
  StepView step;
  const float* q = nullptr;       ///< [rows, n_heads, d]
  const float* weight = nullptr;  ///< [rows, n_heads]
  float weight_scale = 1;
  RowStore keys;
  std::int32_t n_heads = 0;
  std::int32_t d = 0;
  std::int32_t ratio = 0;
  std::int32_t top_k = 0;
  /// [max_open, keys.n_rows] 0: cannot be chosen for that sequence; nullptr: all can.
  const std::uint8_t* allowed = nullptr;
  std::int32_t* ids = nullptr;    ///< [rows, top_k] out
  std::int32_t* count = nullptr;  ///< [rows] out
};

/// One softmax per head over the window, the chosen (or all visible) chunks and the sink logit;
/// then the output's last 2 * n_pairs dims are rotated back by the query's position.
///   out[h] = sum_j p_j kv_j / (sum_j p_j + exp(sink[h] - m)),  p_j = exp(scale * q[h].kv_j - m)
/// Window: positions max(0, pos - window + 1) .. pos. Rows are visited in ascending order.
/// Source: 3.5
struct AttendArgs {
  StepView step;
  const float* q = nullptr;  ///< [rows, n_heads, d]; holds nothing of use afterwards
  RowStore ring;
  RowStore chunks;                      ///< data nullptr for a layer without chunks
  SlotStore slots;                      ///< of chunks
  const std::int32_t* ids = nullptr;    ///< [rows, top_k], nullptr: all visible chunks
  const std::int32_t* count = nullptr;  ///< [rows]
  std::int32_t top_k = 0;
  std::int32_t ratio = 0;
  std::int32_t window = 0;
  const float* sink = nullptr;  ///< [n_heads] logit, not scaled
  float scale = 1;
  const float* cos_sin = nullptr;  ///< [rows, n_pairs, 2] at pos
  std::int32_t n_pairs = 0;
  std::int32_t n_heads = 0;
  std::int32_t d = 0;
  float* out = nullptr;  ///< [rows, n_heads, d] out
};

}  // namespace ebb
