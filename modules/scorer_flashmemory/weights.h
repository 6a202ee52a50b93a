#pragma once

#include <cstdint>
#include <string>

#include "core/api/result.h"
#include "core/api/types.h"
#include "modules/safetensors/safetensors.h"

namespace ebb::flashmemory {

/// The tensors of one scorer, in the file's memory. d_model: width of a hidden vector, d: of an
/// index key.   Source: retriever reference 2.1, 2.5
struct StoredWeights {
  std::int64_t rank = 0;
  std::int32_t n_heads = 0;
  TensorView latent;   ///< wq_a.weight [rank, d_model]
  TensorView norm;     ///< q_norm_weight [rank]
  TensorView query;    ///< wq_b.weight [n_heads * d, rank]
  TensorView weights;  ///< weights_proj.weight [n_heads, d_model]
};

/// Finds them by the names prefix + "wq_a.weight" and so on; rank and heads are the file's, widths
/// the model's. Errors: not_found, incompatible; they name file, tensor, shape and wanted shape.
Result<StoredWeights> find_weights(const safetensors::File& file, const std::string& prefix,
                                   std::int64_t d_model, std::int32_t d);

}  // namespace ebb::flashmemory
