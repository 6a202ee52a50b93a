#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "core/api/loader.h"
#include "core/api/types.h"
#include "tests/reference/quant.h"
#include "tests/reference/weights.h"

// The reference's configuration and weights out of a model file that something else has opened.

namespace ebb::reference {

/// Both return nullptr for what the file does not have.
struct ModelFile {
  std::function<const MetaValue*(const std::string& key)> meta;
  std::function<const TensorView*(const std::string& name)> tensor;
};

/// Borrows the loader.
inline ModelFile model_file(const Loader& loader) {
  return {[&loader](const std::string& key) { return loader.meta(key); },
          [&loader](const std::string& name) { return loader.tensor(name); }};
}

/// A number, or numbers, under `deepseek4.` + key. Throws if absent.
inline Vector read_numbers(const ModelFile& file, const std::string& key) {
  const MetaValue* const value = file.meta("deepseek4." + key);
  if (value == nullptr) throw std::invalid_argument("no key deepseek4." + key);
  if (const auto* n = std::get_if<std::int64_t>(value)) return {static_cast<double>(*n)};
  if (const auto* x = std::get_if<double>(value)) return {*x};
  if (const auto* list = std::get_if<std::vector<double>>(value)) return *list;
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(value)) {
    return {list->begin(), list->end()};
  }
  throw std::invalid_argument("deepseek4." + key + " is not numeric");
}

inline Config read_config(const ModelFile& file) {
  const auto number = [&](const std::string& key) { return read_numbers(file, key).front(); };
  const auto integer = [&](const std::string& key) { return static_cast<int>(number(key)); };
  Config c;
  c.n_layers = integer("block_count");
  c.d_model = integer("embedding_length");
  c.vocab_size = integer("vocab_size");
  c.n_heads = integer("attention.head_count");
  c.d_head = integer("attention.key_length");
  c.n_rot = integer("rope.dimension_count");
  c.q_rank = integer("attention.q_lora_rank");
  c.n_groups = integer("attention.output_group_count");
  c.group_rank = integer("attention.output_lora_rank");
  c.window = integer("attention.sliding_window");
  for (const double ratio : read_numbers(file, "attention.compress_ratios")) {
    c.ratios.push_back(static_cast<int>(ratio));
  }
  c.n_index_heads = integer("attention.indexer.head_count");
  c.d_index = integer("attention.indexer.key_length");
  c.top_k = integer("attention.indexer.top_k");
  c.rope_base = number("rope.freq_base");
  c.compress_rope_base = number("attention.compress_rope_freq_base");
  c.yarn = {number("rope.scaling.factor"), number("rope.scaling.original_context_length"),
            number("rope.scaling.yarn_beta_fast"), number("rope.scaling.yarn_beta_slow")};
  c.rms_eps = number("attention.layer_norm_rms_epsilon");
  c.hyper = {integer("hyper_connection.count"), integer("hyper_connection.sinkhorn_iterations"),
             number("hyper_connection.epsilon"), c.rms_eps};
  c.n_experts = integer("expert_count");
  c.n_used = integer("expert_used_count");
  c.d_expert = integer("expert_feed_forward_length");
  c.n_hash_layers = integer("hash_layer_count");
  c.expert_scale = number("expert_weights_scale");

  const auto per_layer = [&](Vector v) {
    if (v.size() == 1) v.resize(static_cast<std::size_t>(c.n_layers), v.front());
    return v;
  };
  c.clamp_routed = per_layer(read_numbers(file, "swiglu_clamp_exp"));
  const bool own_shared = file.meta("deepseek4.swiglu_clamp_shexp") != nullptr;
  c.clamp_shared =
      own_shared ? per_layer(read_numbers(file, "swiglu_clamp_shexp")) : c.clamp_routed;
  return c;
}

/// Configuration and dequantised weights. Throws std::invalid_argument if something is missing.
inline Weights load_weights(const ModelFile& file) {
  return load_weights(read_config(file), [&](const std::string& name) {
    const TensorView* const view = file.tensor(name);
    if (view == nullptr) throw std::invalid_argument("no tensor " + name);
    return dequantise(view->type, {view->data, static_cast<std::size_t>(view->n_bytes)});
  });
}

}  // namespace ebb::reference
