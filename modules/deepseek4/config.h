#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/api/loader.h"

namespace ebb::deepseek4 {

/// The configuration of one DeepSeek-V4 model, read from metadata and checked as a whole.
/// Names in brackets are the symbols of the model's description; widths count values, not bytes.
struct Config {
  std::int32_t n_layers = 0;
  std::int32_t d_model = 0;  ///< D
  std::int32_t vocab_size = 0;
  std::int64_t context_length = 0;  ///< positions the model was made for
  std::int32_t n_heads = 0;         ///< H
  std::int32_t d_head = 0;          ///< dh
  std::int32_t n_rot = 0;       ///< dr: the LAST n_rot dims of a head (and of an index key) rotate
  std::int32_t q_rank = 0;      ///< Rq
  std::int32_t n_groups = 0;    ///< G: output groups
  std::int32_t group_rank = 0;  ///< Ro
  std::int32_t window = 0;      ///< W, tokens, the query included
  std::vector<std::int32_t> ratio;  ///< per layer: 0 window, 4 CSA, 128 HCA
  std::int32_t n_index_heads = 0;   ///< Hi
  std::int32_t d_index = 0;         ///< di
  std::int32_t top_k = 0;           ///< Ki, chunks
  double rope_base = 0;             ///< ratio-0 layers
  double compress_rope_base = 0;    ///< ratio-4 and ratio-128 layers
  double yarn_factor = 0;
  double yarn_original_context = 0;
  double yarn_beta_fast = 0;
  double yarn_beta_slow = 0;
  float rms_eps = 0;
  std::int32_t n_streams = 0;  ///< S: hyper-connection streams
  std::int32_t sinkhorn_iterations = 0;
  float hc_eps = 0;
  std::int32_t n_experts = 0;       ///< E
  std::int32_t n_experts_used = 0;  ///< K
  std::int32_t d_expert = 0;        ///< F
  bool normalise_weights = true;
  float expert_weight_scale = 0;
  std::int32_t n_hash_layers = 0;   ///< layers 0..n-1 take their experts from a table by token id
  std::vector<float> clamp_routed;  ///< per layer
  std::vector<float> clamp_shared;  ///< per layer
};

/// Reads and checks every key (integers of any width; arrays or scalars where producers differ).
/// Ranges are bounded so that no later size overflows or allocates more than the tensors justify.
/// Errors: incompatible / invalid_argument, beginning with loader.where_key(...).
Result<Config> read_config(const Loader& loader);

/// Checks presence, type class and shape of every tensor the model needs, and that expert tables
/// hold valid ids, before anything is copied or computed.
/// Errors begin with loader.where_tensor(...), and name expected and found shape or type.
Status check_tensors(const Loader& loader, const Config& config);

/// Bytes of stored weights, by who reads them.
struct WeightBytes {
  std::uint64_t shared = 0;   ///< every step, once
  std::uint64_t per_row = 0;  ///< every row: its own rows of the embedding and the expert tables
  std::uint64_t routed = 0;   ///< all routed experts together
};

/// Counts what check_tensors() checks. Errors: the same.
Result<WeightBytes> count_weights(const Loader& loader, const Config& config);

/// Bytes that a step of `n_rows` rows reads. Rows are taken to choose their experts evenly and
/// independently: of E experts, K to a row, E * (1 - (1 - K/E)^n_rows) are expected to be in use.
double step_weight_bytes(const WeightBytes& bytes, const Config& config, std::int64_t n_rows);

/// Tensor name of a layer: layer_tensor(3, "attn_kv.weight") = "blk.3.attn_kv.weight".
std::string layer_tensor(std::int32_t layer, std::string_view suffix);

}  // namespace ebb::deepseek4
