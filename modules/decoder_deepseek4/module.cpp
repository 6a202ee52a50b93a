// The layer recipe of DeepSeek-V4: four residual streams that hyper-connections mix before and
// after every sub-layer, low-rank queries, one shared key-value vector, grouped low-rank output
// projection, and a mixture of experts with one expert that always runs. Source: model
// reference 3.1 to 3.8.

#include <string>
#include <vector>

#include "core/api/comm.h"
#include "core/api/decoder.h"
#include "core/api/host.h"
#include "core/api/loader.h"
#include "kernels/ops/ops.h"
#include "modules/deepseek4/config.h"

namespace ebb {
namespace {

using deepseek4::Config;

struct Layer {
  HyperWeights attention_mix;
  HyperWeights ffn_mix;
  const float* attention_norm = nullptr;       // [D]
  const float* ffn_norm = nullptr;             // [D]
  Weight q_a;                                  // [Rq, D]
  const float* q_a_norm = nullptr;             // [Rq]
  Weight q_b;                                  // [H*dh, Rq]
  Weight kv;                                   // [dh, D]
  Weight output_a;                             // [G*Ro, H*dh/G], block-diagonal by group
  Weight output_b;                             // [D, G*Ro]
  Weight router;                               // [E, D]
  const float* router_bias = nullptr;          // [E], scored layers
  const std::int32_t* expert_table = nullptr;  // [vocab, K], hash layers
  ExpertWeights routed;
  ExpertWeights shared;
};

class DecoderDeepseek4 final : public Decoder {
 public:
  static Result<std::unique_ptr<DecoderDeepseek4>> create(Host& host, Options& options) {
    const bool qat_simulation = options.get_bool("qat_simulation", false);
    EBB_TRY(options.finish());
    if (host.loader() == nullptr || host.compute() == nullptr || host.attention() == nullptr ||
        host.comm() == nullptr) {
      return make_error(Errc::incompatible,
                        "decoder_deepseek4 needs loader, compute, comm and attention modules");
    }
    if (host.comm()->size() != 1) {
      return make_error(Errc::incompatible, "decoder_deepseek4 runs on one rank, comm has %d",
                        host.comm()->size());
    }
    EBB_ASSIGN(Config config, deepseek4::read_config(*host.loader()));
    EBB_ASSIGN(const deepseek4::WeightBytes weights,
               deepseek4::count_weights(*host.loader(), config));  // and checks them
    return std::make_unique<DecoderDeepseek4>(host, std::move(config), weights, qat_simulation);
  }

  DecoderDeepseek4(Host& host, Config config, const deepseek4::WeightBytes& weights,
                   bool qat_simulation)
      : loader_(*host.loader()),
        compute_(*host.compute()),
        attention_(*host.attention()),
        config_(std::move(config)),
        weight_bytes_(weights),
        qat_simulation_(qat_simulation) {}

  ModelShape shape() const noexcept override {
    return {config_.vocab_size, config_.n_layers, config_.context_length};
  }

  Status load() noexcept override {
    EBB_TRY(attention_.load(qat_simulation_));
    EBB_ASSIGN(embedding_, matrix("token_embd.weight"));
    EBB_ASSIGN(head_mix_, hyper("output_hc_"));
    EBB_ASSIGN(head_norm_, floats("output_norm.weight"));
    EBB_ASSIGN(head_, matrix("output.weight"));
    layers_.resize(static_cast<std::size_t>(config_.n_layers));
    for (std::int32_t i = 0; i < config_.n_layers; ++i) {
      EBB_TRY(load_layer(layers_[static_cast<std::size_t>(i)], i));
    }
    return ok_status();
  }

  void carve(Arena& arena, const SessionShape& shape) noexcept override {
    const std::int64_t rows = shape.max_rows;
    const std::int64_t d = config_.d_model;
    const std::int64_t s = config_.n_streams;
    const std::int64_t heads = std::int64_t{config_.n_heads} * config_.d_head;
    const std::int64_t used = config_.n_experts_used + 1;
    streams_ = arena.take<float>(rows * s * d, "streams");
    mix_ = arena.take<float>(rows * (2 + s) * s, "decoder scratch");
    post_ = arena.take<float>(rows * s, "decoder scratch");
    comb_ = arena.take<float>(rows * s * s, "decoder scratch");
    normed_ = arena.take<float>(rows * d, "decoder scratch");
    q_latent_ = arena.take<float>(rows * config_.q_rank, "decoder scratch");
    q_normed_ = arena.take<float>(rows * config_.q_rank, "decoder scratch");
    q_ = arena.take<float>(rows * heads, "decoder scratch");
    kv_ = arena.take<float>(rows * config_.d_head, "decoder scratch");
    attended_ = arena.take<float>(rows * heads, "decoder scratch");
    low_ = arena.take<float>(rows * config_.n_groups * config_.group_rank, "decoder scratch");
    sublayer_ = arena.take<float>(rows * d, "decoder scratch");
    router_logits_ = arena.take<float>(rows * config_.n_experts, "decoder scratch");
    expert_ids_ = arena.take<std::int32_t>(rows * config_.n_experts_used, "decoder scratch");
    expert_weights_ = arena.take<float>(rows * config_.n_experts_used, "decoder scratch");
    hidden_ = arena.take<float>(rows * used * config_.d_expert, "expert scratch");
    partial_ = arena.take<float>(rows * used * d, "expert scratch");
    const std::int64_t out = shape.max_out;
    head_flat_ = arena.take<float>(out * s * d, "decoder scratch");
    head_mix_scratch_ = arena.take<float>(out * s, "decoder scratch");
    head_in_ = arena.take<float>(out * d, "decoder scratch");
    logits_ = arena.take<float>(out * config_.vocab_size, "logits");
    argmax_ = arena.take<std::int32_t>(out, "logits");
    attention_.carve(arena, shape);
  }

  Status plan(Ops& ops, const StepView& step) noexcept override {
    EBB_TRY(ops.embed({step, embedding_, streams_, config_.n_streams}));
    EBB_TRY(attention_.plan_step(ops, step));
    for (std::int32_t i = 0; i < config_.n_layers; ++i) {
      const Layer& layer = layers_[static_cast<std::size_t>(i)];
      EBB_TRY(plan_hc_pre(ops, step, layer.attention_mix, layer.attention_norm));
      EBB_TRY(plan_attention(ops, step, layer, i));
      EBB_TRY(plan_hc_post(ops, step));
      EBB_TRY(plan_hc_pre(ops, step, layer.ffn_mix, layer.ffn_norm));
      EBB_TRY(plan_experts(ops, step, layer));
      EBB_TRY(plan_hc_post(ops, step));
    }
    EBB_TRY(ops.hc_head({step, streams_, head_mix_, head_norm_, head_mix_scratch_, head_flat_,
                         head_in_, config_.n_streams, config_.d_model}));
    EBB_TRY(product(ops, step.n_out, step.max_out, head_in_, {{head_, logits_}}));
    return ops.argmax({step.n_out, step.max_out, logits_, config_.vocab_size, argmax_});
  }

  StepResults results() const noexcept override { return {logits_, argmax_}; }

  double weight_bytes(std::int64_t n_rows) const noexcept override {
    return deepseek4::step_weight_bytes(weight_bytes_, config_, n_rows);
  }

 private:
  Result<Weight> matrix(const std::string& name) {
    return compute_.import_matrix(*loader_.tensor(name));
  }
  Result<const float*> floats(const std::string& name) {
    return compute_.import_floats(*loader_.tensor(name));
  }
  Result<HyperWeights> hyper(const std::string& prefix) {
    HyperWeights weights;
    EBB_ASSIGN(weights.fn, matrix(prefix + "fn.weight"));
    EBB_ASSIGN(weights.base, floats(prefix + "base.weight"));
    EBB_ASSIGN(weights.scale, floats(prefix + "scale.weight"));
    weights.rms_eps = config_.rms_eps;
    weights.hc_eps = config_.hc_eps;
    weights.sinkhorn_iterations = config_.sinkhorn_iterations;
    return weights;
  }

  Status load_layer(Layer& layer, std::int32_t index) {
    const auto name = [index](const char* suffix) {
      return deepseek4::layer_tensor(index, suffix);
    };
    EBB_ASSIGN(layer.attention_mix, hyper(name("hc_attn_")));
    EBB_ASSIGN(layer.ffn_mix, hyper(name("hc_ffn_")));
    EBB_ASSIGN(layer.attention_norm, floats(name("attn_norm.weight")));
    EBB_ASSIGN(layer.ffn_norm, floats(name("ffn_norm.weight")));
    EBB_ASSIGN(layer.q_a, matrix(name("attn_q_a.weight")));
    EBB_ASSIGN(layer.q_a_norm, floats(name("attn_q_a_norm.weight")));
    EBB_ASSIGN(layer.q_b, matrix(name("attn_q_b.weight")));
    EBB_ASSIGN(layer.kv, matrix(name("attn_kv.weight")));
    EBB_ASSIGN(layer.output_a, matrix(name("attn_output_a.weight")));
    EBB_ASSIGN(layer.output_b, matrix(name("attn_output_b.weight")));
    EBB_ASSIGN(layer.router, matrix(name("ffn_gate_inp.weight")));
    if (index < config_.n_hash_layers) {
      EBB_ASSIGN(layer.expert_table,
                 compute_.import_ints(*loader_.tensor(name("ffn_gate_tid2eid.weight"))));
    } else {
      EBB_ASSIGN(layer.router_bias, floats(name("exp_probs_b.bias")));
    }
    EBB_ASSIGN(layer.routed.gate, matrix(name("ffn_gate_exps.weight")));
    EBB_ASSIGN(layer.routed.up, matrix(name("ffn_up_exps.weight")));
    EBB_ASSIGN(layer.routed.down, matrix(name("ffn_down_exps.weight")));
    layer.routed.clamp = config_.clamp_routed[static_cast<std::size_t>(index)];
    EBB_ASSIGN(layer.shared.gate, matrix(name("ffn_gate_shexp.weight")));
    EBB_ASSIGN(layer.shared.up, matrix(name("ffn_up_shexp.weight")));
    EBB_ASSIGN(layer.shared.down, matrix(name("ffn_down_shexp.weight")));
    layer.shared.clamp = config_.clamp_shared[static_cast<std::size_t>(index)];
    return ok_status();
  }

  /// Products that share the input x [rows, n_groups * n_in].
  static Status product(Ops& ops, const std::int32_t* n_rows, std::int32_t max_rows, const float* x,
                        std::initializer_list<MatmulPart> parts, std::int32_t n_groups = 1,
                        bool exact = false) {
    MatmulArgs args{};
    args.n_rows = n_rows;
    args.max_rows = max_rows;
    args.x = x;
    args.n_groups = n_groups;
    args.exact = exact;
    for (const MatmulPart& part : parts) {
      args.parts[static_cast<std::size_t>(args.n_parts++)] = part;
    }
    return ops.matmul(args);
  }

  Status plan_hc_pre(Ops& ops, const StepView& step, const HyperWeights& hyper_weights,
                     const float* norm) {
    return ops.hc_pre({step, streams_, hyper_weights, norm, mix_, normed_, post_, comb_,
                       config_.n_streams, config_.d_model});
  }

  Status plan_hc_post(Ops& ops, const StepView& step) {
    return ops.hc_post(
        {step, sublayer_, post_, comb_, streams_, config_.n_streams, config_.d_model});
  }

  Status plan_attention(Ops& ops, const StepView& step, const Layer& layer, std::int32_t index) {
    EBB_TRY(product(ops, step.n_rows, step.max_rows, normed_,
                    {{layer.q_a, q_latent_}, {layer.kv, kv_}}));
    EBB_TRY(ops.rms_norm({step.n_rows, step.max_rows, q_latent_, layer.q_a_norm, q_normed_,
                          config_.q_rank, config_.rms_eps}));
    EBB_TRY(product(ops, step.n_rows, step.max_rows, q_normed_, {{layer.q_b, q_}}));
    EBB_TRY(attention_.plan_layer(ops, step, index, {normed_, q_normed_, q_, kv_, attended_}));
    EBB_TRY(product(ops, step.n_rows, step.max_rows, attended_, {{layer.output_a, low_}},
                    config_.n_groups));
    return product(ops, step.n_rows, step.max_rows, low_, {{layer.output_b, sublayer_}});
  }

  Status plan_experts(Ops& ops, const StepView& step, const Layer& layer) {
    // A rounded router would choose other experts: its product is exact in every precision.
    EBB_TRY(product(ops, step.n_rows, step.max_rows, normed_, {{layer.router, router_logits_}}, 1,
                    true));
    EBB_TRY(ops.route({step, router_logits_, layer.router_bias, layer.expert_table,
                       config_.n_experts, config_.n_experts_used, config_.normalise_weights,
                       config_.expert_weight_scale, expert_ids_, expert_weights_}));
    return ops.experts({step, normed_, expert_ids_, expert_weights_, layer.routed, layer.shared,
                        config_.n_experts_used, hidden_, partial_, sublayer_});
  }

  const Loader& loader_;
  Compute& compute_;
  Attention& attention_;
  const Config config_;
  const deepseek4::WeightBytes weight_bytes_;
  const bool qat_simulation_;

  Weight embedding_;  // [vocab, D]
  HyperWeights head_mix_;
  const float* head_norm_ = nullptr;  // [D]
  Weight head_;                       // [vocab, D]
  std::vector<Layer> layers_;

  // Compute memory, f32 unless said; one set for all layers.
  float* streams_ = nullptr;        // [rows, S, D]
  float* mix_ = nullptr;            // [rows, (2+S)*S]
  float* post_ = nullptr;           // [rows, S]
  float* comb_ = nullptr;           // [rows, S, S]
  float* normed_ = nullptr;         // [rows, D] input of the sub-layer
  float* q_latent_ = nullptr;       // [rows, Rq]
  float* q_normed_ = nullptr;       // [rows, Rq] a place of its own: products norm for themselves
  float* q_ = nullptr;              // [rows, H, dh]
  float* kv_ = nullptr;             // [rows, dh]
  float* attended_ = nullptr;       // [rows, H, dh]
  float* low_ = nullptr;            // [rows, G*Ro]
  float* sublayer_ = nullptr;       // [rows, D] output of the sub-layer
  float* router_logits_ = nullptr;  // [rows, E]
  std::int32_t* expert_ids_ = nullptr;  // [rows, K] i32
  float* expert_weights_ = nullptr;     // [rows, K]
  float* hidden_ = nullptr;             // [rows, K+1, F]
  float* partial_ = nullptr;            // [rows, K+1, D]
  float* head_flat_ = nullptr;          // [out rows, S*D]
  float* head_mix_scratch_ = nullptr;   // [out rows, S]
  float* head_in_ = nullptr;            // [out rows, D]
  float* logits_ = nullptr;             // [out rows, vocab]
  std::int32_t* argmax_ = nullptr;      // [out rows] i32
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Decoder, ebb::DecoderDeepseek4, "decoder_deepseek4", EBB_VERSION);
