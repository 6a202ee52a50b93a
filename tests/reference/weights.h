#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference/compressor.h"
#include "tests/reference/hyper.h"
#include "tests/reference/linear.h"
#include "tests/reference/moe.h"

// The model's sizes and its weights as plain double matrices, filled from any source of tensors.

namespace ebb::reference {

/// Sizes as the model file states them; names as in core terms, symbols in brackets.
struct Config {
  int n_layers = 0;
  int d_model = 0;  ///< D
  int vocab_size = 0;
  int n_heads = 0;          ///< H
  int d_head = 0;           ///< dh
  int n_rot = 0;            ///< dr, the last dims of a head
  int q_rank = 0;           ///< Rq
  int n_groups = 0;         ///< G
  int group_rank = 0;       ///< Ro
  int window = 0;           ///< W, tokens, the query included
  std::vector<int> ratios;  ///< per layer 0, 4 or 128
  int n_index_heads = 0;    ///< Hi
  int d_index = 0;          ///< di
  int top_k = 0;            ///< Ki, chunks
  double rope_base = 0;
  double compress_rope_base = 0;
  Yarn yarn;
  HyperParams hyper;
  double rms_eps = 1e-6;
  int n_experts = 0;  ///< E
  int n_used = 0;     ///< K
  int d_expert = 0;   ///< F
  int n_hash_layers = 0;
  double expert_scale = 1.5;
  Vector clamp_routed;  ///< per layer
  Vector clamp_shared;  ///< per layer
};

struct LayerWeights {
  HyperWeights hyper_attention, hyper_ffn;
  Vector attention_norm, ffn_norm;
  Matrix q_a, q_b, kv;
  Vector q_a_norm, kv_norm, sinks;
  Matrix output_a, output_b;
  std::optional<CompressorWeights> compressor;        ///< ratio 4 and 128
  std::optional<CompressorWeights> index_compressor;  ///< ratio 4
  Matrix index_q, index_proj;                         ///< ratio 4
  MoeWeights moe;
};

struct Weights {
  Config config;
  Matrix embedding, output;  ///< [vocab, D]
  Vector output_norm;
  HyperWeights hyper_head;
  std::vector<LayerWeights> layers;
};

/// Values of the tensor `name` in stored order (a matrix [out, in] row by row). Asked only for
/// tensors that the configuration requires; throws if it has none.
using TensorSource = std::function<std::vector<double>(const std::string& name)>;

/// Reads every tensor. Throws std::invalid_argument where a size is not what the configuration
/// says.
inline Weights load_weights(const Config& c, const TensorSource& source) {
  const auto vector = [&](const std::string& name, std::int64_t n) {
    Vector v = source(name);
    if (static_cast<std::int64_t>(v.size()) != n) {
      throw std::invalid_argument(name + ": " + std::to_string(v.size()) + " values, expected " +
                                  std::to_string(n));
    }
    return v;
  };
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    return Matrix{rows, cols, vector(name, rows * cols)};
  };
  const auto hyper = [&](const std::string& prefix, std::int64_t n_mix, std::int64_t n_scale) {
    return HyperWeights{matrix(prefix + "_fn.weight", n_mix, c.hyper.n_streams * c.d_model),
                        vector(prefix + "_scale.weight", n_scale),
                        vector(prefix + "_base.weight", n_mix)};
  };
  const auto compressor = [&](const std::string& prefix, int ratio, int d) {
    const int width = ratio == 4 ? 2 * d : d;
    return CompressorWeights{matrix(prefix + "_kv.weight", width, c.d_model),
                             matrix(prefix + "_gate.weight", width, c.d_model),
                             matrix(prefix + "_ape.weight", ratio, width),
                             vector(prefix + "_norm.weight", d)};
  };
  const auto experts = [&](const std::string& prefix, const std::string& suffix, int n) {
    return ExpertWeights{matrix(prefix + "gate_" + suffix, n * c.d_expert, c.d_model),
                         matrix(prefix + "up_" + suffix, n * c.d_expert, c.d_model),
                         matrix(prefix + "down_" + suffix, n * c.d_model, c.d_expert)};
  };

  const int n_mix = c.hyper.n_streams * (2 + c.hyper.n_streams);
  Weights w;
  w.config = c;
  w.embedding = matrix("token_embd.weight", c.vocab_size, c.d_model);
  w.output = matrix("output.weight", c.vocab_size, c.d_model);
  w.output_norm = vector("output_norm.weight", c.d_model);
  w.hyper_head = hyper("output_hc", c.hyper.n_streams, 1);
  for (int n = 0; n < c.n_layers; ++n) {
    const auto at = static_cast<std::size_t>(n);
    const std::string blk = "blk." + std::to_string(n) + ".";
    LayerWeights l;
    l.hyper_attention = hyper(blk + "hc_attn", n_mix, 3);
    l.hyper_ffn = hyper(blk + "hc_ffn", n_mix, 3);
    l.attention_norm = vector(blk + "attn_norm.weight", c.d_model);
    l.ffn_norm = vector(blk + "ffn_norm.weight", c.d_model);
    l.q_a = matrix(blk + "attn_q_a.weight", c.q_rank, c.d_model);
    l.q_a_norm = vector(blk + "attn_q_a_norm.weight", c.q_rank);
    l.q_b = matrix(blk + "attn_q_b.weight", c.n_heads * c.d_head, c.q_rank);
    l.kv = matrix(blk + "attn_kv.weight", c.d_head, c.d_model);
    l.kv_norm = vector(blk + "attn_kv_a_norm.weight", c.d_head);
    l.sinks = vector(blk + "attn_sinks.weight", c.n_heads);
    l.output_a = matrix(blk + "attn_output_a.weight", c.n_groups * c.group_rank,
                        c.n_heads * c.d_head / c.n_groups);
    l.output_b = matrix(blk + "attn_output_b.weight", c.d_model, c.n_groups * c.group_rank);
    const int ratio = c.ratios[at];
    if (ratio > 0) l.compressor = compressor(blk + "attn_compressor", ratio, c.d_head);
    if (ratio == 4) {
      l.index_compressor = compressor(blk + "indexer_compressor", ratio, c.d_index);
      l.index_q = matrix(blk + "indexer.attn_q_b.weight", c.n_index_heads * c.d_index, c.q_rank);
      l.index_proj = matrix(blk + "indexer.proj.weight", c.n_index_heads, c.d_model);
    }
    l.moe.router = matrix(blk + "ffn_gate_inp.weight", c.n_experts, c.d_model);
    if (n < c.n_hash_layers) {
      const Vector ids = vector(blk + "ffn_gate_tid2eid.weight", c.vocab_size * c.n_used);
      l.moe.table.assign(ids.begin(), ids.end());
    } else {
      l.moe.bias = vector(blk + "exp_probs_b.bias", c.n_experts);
    }
    l.moe.experts = experts(blk + "ffn_", "exps.weight", c.n_experts);
    l.moe.shared = experts(blk + "ffn_", "shexp.weight", 1);
    l.moe.clamp_routed = c.clamp_routed[at];
    l.moe.clamp_shared = c.clamp_shared[at];
    w.layers.push_back(std::move(l));
  }
  return w;
}

}  // namespace ebb::reference
