#include "tests/loader/fake_model.h"

#include <cstdint>

namespace ebb::test {

FakeModel FakeModel::valid() {
  FakeModel model;
  const std::string a = "deepseek4.";
  model.set("general.architecture", std::string("deepseek4"));
  const std::map<std::string, std::int64_t> integers{{"block_count", 3},
                                                     {"context_length", 4096},
                                                     {"embedding_length", 16},
                                                     {"vocab_size", 40},
                                                     {"attention.head_count", 2},
                                                     {"attention.head_count_kv", 1},
                                                     {"attention.key_length", 96},
                                                     {"attention.value_length", 96},
                                                     {"rope.dimension_count", 32},
                                                     {"attention.q_lora_rank", 24},
                                                     {"attention.output_group_count", 2},
                                                     {"attention.output_lora_rank", 8},
                                                     {"attention.sliding_window", 8},
                                                     {"attention.indexer.head_count", 4},
                                                     {"attention.indexer.key_length", 64},
                                                     {"attention.indexer.top_k", 8},
                                                     {"rope.scaling.original_context_length", 256},
                                                     {"hyper_connection.count", 4},
                                                     {"hyper_connection.sinkhorn_iterations", 20},
                                                     {"expert_count", 4},
                                                     {"expert_used_count", 2},
                                                     {"expert_shared_count", 1},
                                                     {"expert_feed_forward_length", 20},
                                                     {"expert_gating_func", 4},
                                                     {"hash_layer_count", 1},
                                                     {"nextn_predict_layers", 0}};
  for (const auto& [key, value] : integers) model.set(a + key, value);
  const std::map<std::string, double> numbers{{"rope.freq_base", 1e4},
                                              {"attention.compress_rope_freq_base", 1.6e5},
                                              {"rope.scaling.factor", 16},
                                              {"rope.scaling.yarn_beta_fast", 32},
                                              {"rope.scaling.yarn_beta_slow", 1},
                                              {"attention.layer_norm_rms_epsilon", 1e-6},
                                              {"hyper_connection.epsilon", 1e-6},
                                              {"expert_weights_scale", 1.5}};
  for (const auto& [key, value] : numbers) model.set(a + key, value);
  model.set(a + "rope.scaling.type", std::string("yarn"));
  model.set(a + "expert_weights_norm", true);
  model.set(a + "attention.compress_ratios", std::vector<std::int64_t>{0, 4, 128, 0});
  model.set(a + "swiglu_clamp_exp", std::vector<double>{10, 9, 8});

  const auto f32 = [&](const std::string& name, const std::vector<std::int64_t>& ne) {
    model.add_tensor(name, DType::f32, ne);
  };
  f32("token_embd.weight", {16, 40});
  f32("output_norm.weight", {16});
  f32("output.weight", {16, 40});
  f32("output_hc_fn.weight", {64, 4});
  f32("output_hc_base.weight", {4});
  f32("output_hc_scale.weight", {1});
  for (const int layer : {0, 1, 2}) {
    const std::string b = "blk." + std::to_string(layer) + ".";
    for (const std::string half : {"attn", "ffn"}) {
      f32(b + "hc_" + half + "_fn.weight", {64, 24});
      f32(b + "hc_" + half + "_base.weight", {24});
      f32(b + "hc_" + half + "_scale.weight", {3});
      f32(b + half + "_norm.weight", {16});
    }
    f32(b + "attn_q_a.weight", {16, 24});
    f32(b + "attn_q_a_norm.weight", {24});
    f32(b + "attn_q_b.weight", {24, 192});
    f32(b + "attn_kv.weight", {16, 96});
    f32(b + "attn_kv_a_norm.weight", {96});
    f32(b + "attn_sinks.weight", {2});
    f32(b + "attn_output_a.weight", {96, 16});
    f32(b + "attn_output_b.weight", {16, 16});
    f32(b + "ffn_gate_inp.weight", {16, 4});
    f32(b + "ffn_gate_exps.weight", {16, 20, 4});
    f32(b + "ffn_up_exps.weight", {16, 20, 4});
    f32(b + "ffn_down_exps.weight", {20, 16, 4});
    f32(b + "ffn_gate_shexp.weight", {16, 20});
    f32(b + "ffn_up_shexp.weight", {16, 20});
    f32(b + "ffn_down_shexp.weight", {20, 16});
    if (layer > 0) f32(b + "exp_probs_b.bias", {4});
  }
  model.add_tensor("blk.0.ffn_gate_tid2eid.weight", DType::i32, {2, 40});
  model.set_ids("blk.0.ffn_gate_tid2eid.weight", std::vector<std::int32_t>(80, 3));
  f32("blk.1.attn_compressor_kv.weight", {16, 192});
  f32("blk.1.attn_compressor_gate.weight", {16, 192});
  f32("blk.1.attn_compressor_ape.weight", {192, 4});
  f32("blk.1.attn_compressor_norm.weight", {96});
  f32("blk.1.indexer.attn_q_b.weight", {24, 256});
  f32("blk.1.indexer.proj.weight", {16, 4});
  f32("blk.1.indexer_compressor_kv.weight", {16, 128});
  f32("blk.1.indexer_compressor_gate.weight", {16, 128});
  f32("blk.1.indexer_compressor_ape.weight", {128, 4});
  f32("blk.1.indexer_compressor_norm.weight", {64});
  f32("blk.2.attn_compressor_kv.weight", {16, 96});
  f32("blk.2.attn_compressor_gate.weight", {16, 96});
  f32("blk.2.attn_compressor_ape.weight", {96, 128});
  f32("blk.2.attn_compressor_norm.weight", {96});
  return model;
}

void FakeModel::add_tensor(const std::string& name, DType type,
                           const std::vector<std::int64_t>& ne) {
  TensorView view;
  view.type = type;
  view.n_dims = static_cast<std::int32_t>(ne.size());
  for (std::size_t i = 0; i < ne.size(); ++i) view.ne[i] = ne[i];
  view.n_bytes = static_cast<std::uint64_t>(row_bytes(type, view.ne[0]) * view.ne[1] * view.ne[2]);
  tensors_[name] = view;
}

void FakeModel::set_ids(const std::string& name, std::vector<std::int32_t> ids) {
  std::vector<std::int32_t>& held = ids_[name] = std::move(ids);
  tensors_.at(name).data = reinterpret_cast<const std::byte*>(held.data());
}

const MetaValue* FakeModel::meta(std::string_view key) const noexcept {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const TensorView* FakeModel::tensor(std::string_view name) const noexcept {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string FakeModel::where_key(std::string_view key) const noexcept {
  return "fake: key " + std::string(key);
}

std::string FakeModel::where_tensor(std::string_view name) const noexcept {
  return "fake: tensor " + std::string(name);
}

}  // namespace ebb::test
