#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/planes.h"
#include "kernels/ops/dense.h"

// Products on the matrix units. An element is the sum, in order, of one term per 256 columns of its
// weight row; a term depends on those weights and activations alone (tensor_codec.cuh). So its bits
// depend neither on the other rows of a step, nor on which kernel forms it, nor on how that kernel
// cuts the columns.
//
// Kernels that stream weights past a few columns of activations, for steps that are bound by the
// memory: of one matrix (tensor_stream.cuh), of many pieces (tensor_pieces.cuh). Another forms
// tiles of many columns (tensor_tile.cuh).

namespace ebb::cuda {

/// One matrix (or one per group or expert) and what it writes.
struct TensorPart {
  Planes a;
  Planes b;  ///< of up, where the product is gated
  float* out = nullptr;
  std::int32_t n_out = 0;      ///< rows of one matrix
  std::int32_t tiles_end = 0;  ///< tiles of all parts up to this one; set by the launch
};

/// What is done to the one vector of a product before it is split: y = x / RMS(x) * weight.
struct InputNorm {
  const float* weight = nullptr;  ///< [n_in]; nullptr: nothing
  float* y = nullptr;             ///< [n_in] out, another place than x
  float eps = 0;
};

struct TensorProduct {
  Pieces pieces;
  const float* x = nullptr;  ///< vectors of n_in values
  Columns columns;           ///< of x; without values: x is split by every block for itself
  InputNorm norm;            ///< only where norms_input() holds
  const std::uint64_t* grid_iq2 = nullptr;
  std::int32_t n_in = 0;
  bool gated = false;  ///< out = gated(a x, b x)
  float clamp = 0;
  std::int32_t n_parts = 0;
  TensorPart parts[6];
};

/// Columns of a piece that every type's weights are streamed past.
inline constexpr std::int32_t kFewColumns = 8;
/// The largest number of columns that the streaming kernel takes at a time.
inline constexpr std::int32_t kStreamColumns = 16;
/// Columns of a tile.
inline constexpr std::int32_t kTileColumns = 64;
/// The widest vector that blocks split for themselves.
inline constexpr std::int32_t kMaxOwnSplit = 8192;

/// Shared memory that a block must be able to have, bytes, for any of this.
inline constexpr std::uint64_t kTensorShared = 165000;
/// What the system keeps of every block's shared memory, bytes: what a kernel takes begins behind
/// it. That kernels know it saves an addition for every look into a table.
inline constexpr std::uint64_t kReservedShared = 1024;

/// Whether a device can do any of this.
inline bool has_tensor_units(const cudaDeviceProp& device) {
  return device.major >= 8 && device.sharedMemPerBlockOptin >= kTensorShared &&
         device.reservedSharedMemPerBlock == kReservedShared;
}

/// Whether products with the weight can go through the matrix units of any device.
bool suits_tensor_units(const Weight& weight);
/// Whether products with the weight go through the matrix units; never depends on a step.
bool on_tensor_units(const Launch& launch, const Weight& weight);

/// Whether the product of one vector can do its input's norm, with the bits of the norm alone.
bool norms_input(DType type);

/// In which order the columns of the weight's products are, where they are split before.
Order tensor_order(DType type);

/// Rows of a piece, if a step has max_rows rows.
std::int32_t tensor_piece_rows(DType type, std::int64_t max_rows, std::int32_t columns_per_vector);

/// The product for pieces of up to piece_rows vectors.
cudaError_t tensor_product(const Launch& launch, DType type, const TensorProduct& p,
                           std::int64_t n_pieces, std::int32_t piece_rows);

/// Two products of one vector of their own each in one launch: with weights of F16, and of Q8_0.
cudaError_t tensor_products(const Launch& launch, const TensorProduct& f16,
                            const TensorProduct& q8_0);

}  // namespace ebb::cuda
