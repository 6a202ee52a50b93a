#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "core/api/types.h"
#include "kernels/cuda/launch.h"

// Activations as the matrix units take them. A vector x of n_in values becomes one or two columns
// of f16 numbers: x * 2^e = high + low, where 2^e brings its largest magnitude into [2^13, 2^14),
// so that low keeps what high drops and the pair is as good as an f32 number. In fast mode there is
// high alone. Beside them go, for types with an offset, the sums of every 16 values, divided by 16.
//
// Where products are of integers, a column holds integers of 16 bits, an upper byte and a lower
// one: x * 2^e, rounded, and of what is left kDigitStep times as much. For Q2_K 2^e brings the
// largest magnitude into [2^14, 2^15), and the lower byte has no sign. For IQ2_XXS, whose products
// take both bytes alike, both have one, and 2^e brings the largest into [2^13, 2^14), so that 64
// products with weights of up to 43 * 31 fit 32 bits.
//
// Values are in the order in which a lane of a product wants them, which depends on how the weights
// are stored (Order): blocks of 256, in these octets o of 32, in these 8 for each of 4 lanes t.

namespace ebb::cuda {

/// How exact products are.
enum class Precision {
  exact,  ///< as good as f32 products
  fast,   ///< activations are rounded to f16, 11 bits, once
};

/// Which values of a block lane t wants in octet o; h is the half of its eight, i < 4.
enum class Order {
  octets,    ///< 32 o + 8 t + 4 h + i
  halves,    ///< 32 o + 16 h + 4 t + i
  chunks,    ///< 64 t + 8 o + 4 h + i
  quarters,  ///< of Q2_K: 128 (t / 2) + 16 (t % 2) + 32 (o / 2) + 8 (o % 2) + 4 h + i; integers:
             ///< of a lane's eight of an octet the upper bytes, then the lower ones
  signed_chunks,  ///< as chunks; integers whose bytes both have a sign
  signed_octets,  ///< as octets; the same
};

/// Whether columns hold integers.
__host__ __device__ constexpr bool holds_integers(Order order) {
  return order == Order::quarters || order == Order::signed_chunks || order == Order::signed_octets;
}

inline constexpr int kOrderBlock = 256;
/// What a vector's second column of integers is too large by.
inline constexpr float kDigitStep = 32768.0f;
inline constexpr int kSumValues = 16;

/// Columns of all vectors: vector v has columns [v * per_vector, (v + 1) * per_vector), each of
/// n_in values, as many sums / 16, and the factor that undoes its scale.
struct Columns {
  __half* values = nullptr;
  __half* sums = nullptr;
  float* inverse = nullptr;
  std::int32_t per_vector = 1;
};

constexpr std::int32_t columns_per_vector(Precision precision) {
  return precision == Precision::exact ? 2 : 1;
}

/// Bytes of the columns of `n` vectors, and their places at `memory`.
std::size_t columns_bytes(std::int64_t n, std::int64_t n_in, Precision precision);
Columns columns_at(std::byte* memory, std::int64_t n, std::int64_t n_in, Precision precision);

/// Vectors [first, first + n) of every `stride` that a row has.
struct RowVectors {
  std::int32_t stride = 1;
  std::int32_t first = 0;
  std::int32_t n = 1;
};

/// Which vectors are split in which order, and where to.
struct Split {
  Order order = Order::octets;
  RowVectors vectors;
  Columns columns;
};

/// One or two ways to split the vectors of a step.
struct Splits {
  Split of[2];

  Splits(const Split* splits, int n) {
    of[1].vectors.n = 0;
    for (int i = 0; i < n; ++i) of[i] = splits[i];
  }
};

inline constexpr int kSplitThreads = 256;
/// Thread blocks that share the vectors of max_rows rows well.
inline std::int64_t split_blocks(const Launch& launch, const Splits& splits,
                                 std::int64_t max_rows) {
  const std::int64_t vectors = max_rows * (splits.of[0].vectors.n + splits.of[1].vectors.n);
  return vectors < launch.n_sms * 8 ? vectors : std::int64_t{launch.n_sms} * 8;
}

/// Splits vectors of *n_rows rows, at most max_rows, in one or two ways (`n_splits`).
cudaError_t split_columns(const Launch& launch, const float* x, std::int32_t n_in,
                          const std::int32_t* n_rows, std::int64_t max_rows, const Split* splits,
                          int n_splits = 1);

}  // namespace ebb::cuda
