#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "tests/reference/attention.h"
#include "tests/reference/compressor.h"
#include "tests/reference/hyper.h"
#include "tests/reference/indexer.h"
#include "tests/reference/linear.h"
#include "tests/reference/moe.h"
#include "tests/reference/norm_rope.h"
#include "tests/reference/numeric.h"
#include "tests/reference/weights.h"

// The whole model, one token at a time. All rows of the past are kept in double; the window is a
// matter of which of them are attended.

namespace ebb::reference {

/// Everything one layer computes for one token.
struct LayerTrace {
  Vector streams_in;  ///< [S, D]
  HyperMix attention_mix;
  Vector attention_in;               ///< [D] normed input a
  Vector q_latent;                   ///< [Rq] normed
  Vector q;                          ///< [H, dh] normed per head and rotated
  Vector kv_row;                     ///< [dh] as kept
  Vector chunk_row;                  ///< [dh] as kept, if this token completes a chunk; else empty
  Vector index_key;                  ///< [di] as kept, likewise, ratio 4
  Vector index_q;                    ///< [Hi, di] as scored, ratio 4
  Vector index_weights;              ///< [Hi] scaled, ratio 4
  Vector index_scores;               ///< [visible chunks], ratio 4
  std::vector<std::int32_t> chunks;  ///< attended chunks, ascending
  Vector heads;                      ///< [H, dh] attention output, rotated back
  Vector attention_out;              ///< [D]
  Vector streams_mid;                ///< [S, D]
  HyperMix ffn_mix;
  Vector ffn_in;  ///< [D] normed input f
  MoeRoute route;
  Vector ffn_out;      ///< [D]
  Vector streams_out;  ///< [S, D]
};

struct TokenTrace {
  std::vector<LayerTrace> layers;
  Vector head;    ///< [D] normed input of the output matrix
  Vector logits;  ///< [vocab]
};

class Model {
 public:
  /// Borrows the weights. With `qat_simulation` KV rows are rounded as an FP8 cache would, and
  /// index queries and keys to FP4 after a Hadamard transform, as the model was trained with.
  Model(const Weights& weights, bool qat_simulation) : w_(weights), simulate_(qat_simulation) {
    const Config& c = w_.config;
    window_frequencies_ = rope_frequencies(c.n_rot, c.rope_base);
    compress_frequencies_ = rope_frequencies_yarn(c.n_rot, c.compress_rope_base, c.yarn);
    for (const LayerWeights& l : w_.layers) {
      State& s = states_.emplace_back();
      if (l.compressor) s.compressor.emplace(*l.compressor, compress_frequencies_, c.rms_eps);
      if (l.index_compressor) {
        s.index_compressor.emplace(*l.index_compressor, compress_frequencies_, c.rms_eps);
      }
    }
  }
  Model(const Model&) = delete;  // the compressors borrow its frequencies
  Model& operator=(const Model&) = delete;

  /// Runs the next token and returns all it computed. The logits, the dearest part of a small
  /// model, are left out unless wanted.
  TokenTrace step(std::int32_t token, bool want_logits = true) {
    const Config& c = w_.config;
    TokenTrace trace;
    Vector streams;
    for (int s = 0; s < c.hyper.n_streams; ++s) {
      const std::span<const double> row = w_.embedding.row(token);
      streams.insert(streams.end(), row.begin(), row.end());
    }
    for (std::size_t n = 0; n < w_.layers.size(); ++n) {
      trace.layers.push_back(layer(n, std::move(streams), token));
      streams = trace.layers.back().streams_out;
    }
    if (want_logits) {
      trace.head = rms_norm(hyper_head(w_.hyper_head, streams, c.hyper), w_.output_norm, c.rms_eps);
      trace.logits = product(w_.output, trace.head);
    }
    ++position_;
    return trace;
  }

  /// Tokens run so far.
  std::int64_t position() const { return position_; }

 private:
  struct State {
    std::vector<Vector> kv_rows;     ///< per token, [dh]
    std::vector<Vector> chunk_rows;  ///< per chunk, [dh]
    std::vector<Vector> index_keys;  ///< per chunk, [di]
    std::optional<Compressor> compressor, index_compressor;
  };

  LayerTrace layer(std::size_t n, Vector streams, std::int32_t token) {
    const Config& c = w_.config;
    const LayerWeights& l = w_.layers[n];
    LayerTrace t;
    t.streams_in = std::move(streams);
    t.attention_mix = hyper_pre(l.hyper_attention, t.streams_in, c.hyper);
    t.attention_in = rms_norm(t.attention_mix.x, l.attention_norm, c.rms_eps);
    attention(n, t);
    t.streams_mid = hyper_post(t.attention_out, t.streams_in, t.attention_mix);

    t.ffn_mix = hyper_pre(l.hyper_ffn, t.streams_mid, c.hyper);
    t.ffn_in = rms_norm(t.ffn_mix.x, l.ffn_norm, c.rms_eps);
    t.route = route(l.moe, t.ffn_in, token, c.n_used, c.expert_scale);
    t.ffn_out = run_experts(l.moe, t.route, t.ffn_in);
    t.streams_out = hyper_post(t.ffn_out, t.streams_mid, t.ffn_mix);
    return t;
  }

  void attention(std::size_t n, LayerTrace& t) {
    const Config& c = w_.config;
    const LayerWeights& l = w_.layers[n];
    State& s = states_[n];
    const Vector& f = c.ratios[n] == 0 ? window_frequencies_ : compress_frequencies_;

    t.q_latent = rms_norm(product(l.q_a, t.attention_in), l.q_a_norm, c.rms_eps);
    t.q = product(l.q_b, t.q_latent);
    for (int h = 0; h < c.n_heads; ++h) {
      rms_normalise(piece(t.q, h, c.d_head), c.rms_eps);
      rotate(piece(t.q, h, c.d_head), f, position_);
    }
    t.kv_row = rms_norm(product(l.kv, t.attention_in), l.kv_norm, c.rms_eps);
    rotate(t.kv_row, f, position_);
    keep_row(t.kv_row);
    s.kv_rows.push_back(t.kv_row);

    // A chunk that this token completes is visible to the token itself.
    if (s.compressor) {
      if (std::optional<Vector> row = s.compressor->push(t.attention_in)) {
        keep_row(*row);
        t.chunk_row = *row;
        s.chunk_rows.push_back(*std::move(row));
      }
    }
    if (s.index_compressor) {
      if (std::optional<Vector> key = s.index_compressor->push(t.attention_in)) {
        keep_index(*key);
        t.index_key = *key;
        s.index_keys.push_back(*std::move(key));
      }
      score_chunks(n, f, t);
      t.chunks = top_k(t.index_scores, c.top_k);
    } else {
      for (std::size_t chunk = 0; chunk < s.chunk_rows.size(); ++chunk) {
        t.chunks.push_back(static_cast<std::int32_t>(chunk));
      }
    }

    std::vector<std::span<const double>> rows;
    const std::int64_t first = std::max<std::int64_t>(0, position_ - c.window + 1);
    for (auto p = static_cast<std::size_t>(first); p < s.kv_rows.size(); ++p) {
      rows.emplace_back(s.kv_rows[p]);
    }
    for (const std::int32_t chunk : t.chunks) {
      rows.emplace_back(s.chunk_rows[static_cast<std::size_t>(chunk)]);
    }
    t.heads = attend(t.q, rows, l.sinks);
    for (int h = 0; h < c.n_heads; ++h) rotate(piece(t.heads, h, c.d_head), f, position_, -1);
    t.attention_out = project_output(l.output_a, l.output_b, t.heads, c.n_groups);
  }

  void score_chunks(std::size_t n, const Vector& f, LayerTrace& t) {
    const Config& c = w_.config;
    const LayerWeights& l = w_.layers[n];
    t.index_q = product(l.index_q, t.q_latent);
    for (int h = 0; h < c.n_index_heads; ++h) {
      const std::span<double> head = piece(t.index_q, h, c.d_index);
      rotate(head, f, position_);
      keep_index(head);
    }
    t.index_weights = product(l.index_proj, t.attention_in);
    for (double& weight : t.index_weights) {
      weight /= std::sqrt(static_cast<double>(c.d_index) * c.n_index_heads);
    }
    for (const Vector& key : states_[n].index_keys) {
      t.index_scores.push_back(index_score(t.index_q, t.index_weights, key));
    }
  }

  /// Rounds what a KV cache would round: the dims that do not rotate.
  void keep_row(std::span<double> row) const {
    const auto n_rot = static_cast<std::size_t>(w_.config.n_rot);
    if (simulate_) simulate_fp8(row.first(row.size() - n_rot));
  }
  /// The transform is orthonormal and cancels in the scores unless something is rounded after it.
  void keep_index(std::span<double> head) const {
    if (!simulate_) return;
    hadamard(head);
    simulate_fp4(head);
  }

  const Weights& w_;
  bool simulate_;
  std::int64_t position_ = 0;
  Vector window_frequencies_, compress_frequencies_;
  std::deque<State> states_;  ///< per layer
};

/// Logits of the last of `tokens`.
inline Vector last_logits(const Weights& weights, std::span<const std::int32_t> tokens,
                          bool qat_simulation) {
  Model model(weights, qat_simulation);
  Vector logits;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    logits = model.step(tokens[i], i + 1 == tokens.size()).logits;
  }
  return logits;
}

}  // namespace ebb::reference
