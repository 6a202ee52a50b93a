#pragma once

#include "kernels/cuda/tensor_codec.cuh"

// IQ2_XXS as operands of the matrix units: eight values by a look into two tables, as signed bytes.
// Products are of integers; each group of 32 has an odd number that multiplies its sum.

namespace ebb::cuda {

/// The tables of IQ2_XXS. A value is 8, 25 or 43 with a sign, one of six bytes. A codeword's entry
/// has four bits for each of its eight values, which select the byte (`select_of`), and that of a
/// sign field what makes these select the negative one when it is added. Each entry stands once for
/// every lane, in the lane's own bank. The entry of codeword i and, kTableSigns behind it, that of
/// sign field i begin at byte 256 i: then one instruction puts a codeword's address together from
/// bytes.
inline constexpr int kTableCopies = kWarp;
inline constexpr int kTableStride = 256;  // bytes
inline constexpr int kTableSigns = kTableCopies * 4;
inline constexpr int kTableBytes = 256 * kTableStride;
inline constexpr std::uint32_t kTableBytesLow = 0x002b1908, kTableBytesHigh = 0x00d5e7f8;
inline constexpr std::uint32_t kTableSign = 4;

__device__ __forceinline__ std::uint32_t select_of(std::uint32_t magnitude) {
  return magnitude == 8 ? 0 : magnitude == 25 ? 1 : 2;
}

/// Where the lane's copies are, below kTableSigns.
struct Tables {
  std::uint32_t lane = 0;
  std::uint32_t low = 0;  ///< kTableBytesLow, in a register of its own

  /// Eight values of a codeword and a sign field, as bytes. `code` and `signs` are where their
  /// entries begin.
  __device__ __forceinline__ void look_up(std::uint32_t code, std::uint32_t signs,
                                          std::uint32_t (&bytes)[2]) const {
    const std::uint32_t select =
        shared_word<kReservedShared>(code) + shared_word<kReservedShared + kTableSigns>(signs);
    bytes[0] = pick_bytes(low, kTableBytesHigh, select);
    bytes[1] = pick_bytes(low, kTableBytesHigh, upper_half(select));
  }
};

/// What both ways to multiply IQ2_XXS share: d / 8 times an odd number is the scale of 32 values.
struct Iq2Defaults : TensorDefaults {
  static constexpr bool kTables = true;
  static constexpr int kBlock = 256, kFields = 2;
  static __host__ __device__ constexpr int bytes(int f) { return f == 0 ? 64 : 2; }
  // The seven bits of a sign field, where the tables' stride has them.
  static constexpr std::uint32_t kSignMask = 127u * kTableStride;
  static_assert(kTableStride == 1 << 8 && kTableSigns <= 1 << 7);

  static __device__ int swizzle(int field, int row, int piece) {
    return field == 0 ? piece ^ (row >> 1 & 3) : piece;
  }
  static __device__ __forceinline__ std::int32_t odd_of(std::uint32_t packed) {
    return static_cast<std::int32_t>(packed >> 27 & 30u | 1u);
  }
};

/// One or two columns (tensor_diagonal.cuh): a lane has groups 2 t and 2 t + 1 to itself.
template <>
struct TensorCodec<DType::iq2_xxs> : Iq2Defaults {
  static constexpr bool kDiagonal = true;
  static constexpr Order kOrder = Order::signed_chunks;
  /// The lane's two groups of a row: codes and what is packed, twice.
  static __device__ uint4 groups(const std::uint8_t* stage, int row, int t) {
    return staged<uint4>(stage + row * 64 + swizzle(0, row, t) * 16);
  }
  static __device__ float scale(const std::uint8_t* stage, int row, bool odd) {
    return staged_half(stage + field_offset<TensorCodec>(1) + row * 4, odd) * 0.125f;
  }
  /// Octet i of a group.
  static __device__ __forceinline__ void octet(std::uint32_t codes, std::uint32_t packed, int i,
                                               const Tables& tables, std::uint32_t (&bytes)[2]) {
    const std::uint32_t code =
        pick_bytes(codes, tables.lane, 0x5504u | static_cast<std::uint32_t>(i) << 4);
    const std::uint32_t signs = i < 2 ? packed << (8 - 7 * i) : packed >> (7 * i - 8);
    tables.look_up(code, (signs & kSignMask) | tables.lane, bytes);
  }
};

/// More columns: octet o is group o, whose four octets the lanes have.
struct Iq2Tile : Iq2Defaults {
  static constexpr bool kDigits = true, kOwnScales = true;
  static constexpr Order kOrder = Order::signed_octets;
  struct Row {
    const std::uint8_t* at;
    int lane;
    std::uint32_t select;  // the lane's code
    std::uint32_t turn;    // of its sign field
    bool odd;
    const std::uint8_t* d;  // wanted once a term
  };
  static __device__ Row open(const std::uint8_t* stage, int row, int t, bool odd) {
    return {stage + row * 64,
            (row >> 1 & 3) * 16,
            0x5504u | static_cast<std::uint32_t>(t) << 4,
            static_cast<std::uint32_t>(7 * t + 24) % 32,
            odd,
            stage + field_offset<Iq2Tile>(1) + row * 4};
  }
  static __device__ uint2 group(const Row& row, int o) {
    return staged<uint2>(row.at + (row.lane ^ o / 2 * 16) + o % 2 * 8);
  }
  static __device__ __forceinline__ void octet(const Row& row, int o, const Tables& tables,
                                               std::uint32_t (&bytes)[2]) {
    const uint2 q = group(row, o);
    const std::uint32_t code = pick_bytes(q.x, tables.lane, row.select);
    const std::uint32_t signs = __funnelshift_r(q.y, q.y, row.turn);
    tables.look_up(code, (signs & kSignMask) | tables.lane, bytes);
  }
  static __device__ std::int32_t odd(const Row& row, int o) { return odd_of(group(row, o).y); }
  static __device__ float scale(const Row& row, int, int) {
    return staged_half(row.d, row.odd) * 0.125f;
  }
};

/// How weights are unpacked for more columns than tensor_diagonal.cuh takes.
template <class C>
struct ManyColumns {
  using Codec = C;
};
template <>
struct ManyColumns<TensorCodec<DType::iq2_xxs>> {
  using Codec = Iq2Tile;
};
template <DType kType>
using TileCodec = typename ManyColumns<TensorCodec<kType>>::Codec;

}  // namespace ebb::cuda
