// Presets, manifest keys, and what follows from them. Weight scales are chosen so that activations
// stay finite and every mechanism is awake: the expert clamp fires now and then, router and index
// scores are spread, sinks matter (model reference 8.2).

#include "modules/loader_synthetic/shape.h"

#include <cmath>

#include "modules/loader_synthetic/blocks.h"

namespace ebb::synthetic {
namespace {

using deepseek4::Config;

Config v4_flash() {
  Config c;
  c.n_layers = 43;
  c.d_model = 4096;
  c.vocab_size = 129280;
  c.context_length = 1048576;
  c.n_heads = 64;
  c.d_head = 512;
  c.n_rot = 64;
  c.q_rank = 1024;
  c.n_groups = 8;
  c.group_rank = 1024;
  c.window = 128;
  c.n_index_heads = 64;
  c.d_index = 128;
  c.top_k = 512;
  c.rope_base = 10000;
  c.compress_rope_base = 160000;
  c.yarn_factor = 16;
  c.yarn_original_context = 65536;
  c.yarn_beta_fast = 32;
  c.yarn_beta_slow = 1;
  c.rms_eps = 1e-6F;
  c.n_streams = 4;
  c.sinkhorn_iterations = 20;
  c.hc_eps = 1e-6F;
  c.n_experts = 256;
  c.n_experts_used = 6;
  c.d_expert = 2048;
  c.expert_weight_scale = 1.5F;
  c.n_hash_layers = 3;
  return c;
}

Config eighth() {
  Config c = v4_flash();
  c.n_layers = 22;
  c.d_model = 2048;
  c.n_heads = 32;
  c.q_rank = 512;
  c.group_rank = 512;
  c.d_expert = 1024;
  return c;
}

Config tiny() {
  Config c = v4_flash();
  c.n_layers = 6;
  c.d_model = 256;
  c.vocab_size = 320;
  c.context_length = 65536;
  c.n_heads = 4;
  c.d_head = 256;
  c.q_rank = 256;
  c.n_groups = 2;
  c.group_rank = 128;
  c.window = 8;
  c.n_index_heads = 32;
  c.top_k = 8;
  c.n_experts = 8;
  c.n_experts_used = 2;
  c.d_expert = 256;
  c.n_hash_layers = 2;
  return c;
}

const char* const kTypeNames[] = {"F32",  "F16",  "BF16",    "Q8_0", "Q2_K",
                                  "Q4_K", "Q6_K", "IQ2_XXS", "MXFP4"};

DType read_type(Options& options, std::string_view key, std::size_t fallback) {
  const std::size_t choice = options.get_choice(
      key, fallback, std::vector<std::string_view>(std::begin(kTypeNames), std::end(kTypeNames)));
  for (const DTypeTraits& traits : kDTypes) {
    if (std::string_view(traits.name) == kTypeNames[choice]) return traits.type;
  }
  return DType::f32;
}

void read_count(Options& options, std::string_view key, std::int32_t& value, std::int64_t high) {
  const std::int64_t given = options.get_int(key, 0, 0, high);
  if (given > 0) value = static_cast<std::int32_t>(given);
}

void set_ratios(Config& config, const std::vector<std::int64_t>& given, bool two_window_layers) {
  for (std::int32_t i = 0; i < config.n_layers; ++i) {
    if (!given.empty()) {
      config.ratio.push_back(
          static_cast<std::int32_t>(given[static_cast<std::size_t>(i) % given.size()]));
    } else if (i == 0 || (i == 1 && two_window_layers)) {
      config.ratio.push_back(0);
    } else {
      config.ratio.push_back((i - (two_window_layers ? 2 : 1)) % 2 == 0 ? 4 : 128);
    }
  }
}

/// Adds the tensors of one compressor; `prefix` ends before "kv.weight".
void add_compressor(std::vector<Plan>& plans, const Shape& shape, const std::string& prefix,
                    std::int64_t ratio, std::int64_t d) {
  const std::int64_t in = shape.config.d_model;
  const std::int64_t out = ratio == 4 ? 2 * d : d;
  const float spread = 1 / std::sqrt(static_cast<float>(in));
  plans.push_back({prefix + "kv.weight", shape.other, {in, out}, spread});
  plans.push_back({prefix + "gate.weight", shape.other, {in, out}, spread});
  plans.push_back({prefix + "ape.weight", DType::f32, {out, ratio}, 0.7F});
  plans.push_back({prefix + "norm.weight", DType::f32, {d}, 0.2F, 1});
}

}  // namespace

Result<Shape> read_shape(Options& options) {
  Shape shape;
  const std::size_t preset = options.get_choice("preset", 0, {"tiny", "eighth", "v4_flash"});
  Config& c = shape.config = preset == 0 ? tiny() : preset == 1 ? eighth() : v4_flash();
  shape.seed = static_cast<std::uint64_t>(options.get_int("seed", 0, 0, std::int64_t{1} << 62));
  read_count(options, "n_layers", c.n_layers, 1024);
  read_count(options, "d_model", c.d_model, 65536);
  read_count(options, "vocab_size", c.vocab_size, 1048576);
  const std::int64_t context = options.get_int("context_length", 0, 0, std::int64_t{1} << 30);
  if (context > 0) c.context_length = context;
  read_count(options, "n_heads", c.n_heads, 1024);
  read_count(options, "d_head", c.d_head, 4096);
  read_count(options, "n_rot", c.n_rot, 4096);
  read_count(options, "q_rank", c.q_rank, 65536);
  read_count(options, "n_groups", c.n_groups, 1024);
  read_count(options, "group_rank", c.group_rank, 65536);
  read_count(options, "window", c.window, 65536);
  read_count(options, "n_index_heads", c.n_index_heads, 1024);
  read_count(options, "d_index", c.d_index, 4096);
  read_count(options, "top_k", c.top_k, 65536);
  read_count(options, "n_experts", c.n_experts, 4096);
  read_count(options, "n_experts_used", c.n_experts_used, 64);
  read_count(options, "d_expert", c.d_expert, 65536);
  const std::int64_t hash_layers = options.get_int("n_hash_layers", -1, -1, 1024);
  if (hash_layers >= 0) c.n_hash_layers = static_cast<std::int32_t>(hash_layers);
  set_ratios(c, options.get_int_list("ratios", {}, 0, 128), preset != 0);
  c.clamp_routed.assign(static_cast<std::size_t>(c.n_layers), 10.0F);
  c.clamp_shared = c.clamp_routed;
  shape.dense = read_type(options, "type_dense", 3);
  shape.experts_in = read_type(options, "type_experts_in", 7);
  shape.experts_down = read_type(options, "type_experts_down", 4);
  shape.other = read_type(options, "type_other", 1);
  EBB_TRY(options.finish());
  for (const Plan& plan : plan_tensors(shape)) {
    const DTypeTraits& traits = *dtype_traits(plan.type);
    if (plan.ne[0] % traits.block_values != 0) {
      return make_error(Errc::invalid_argument,
                        "loader_synthetic: tensor %s has rows of %lld values, and %s has blocks of "
                        "%d: choose another type or width",
                        plan.name.c_str(), static_cast<long long>(plan.ne[0]), traits.name,
                        traits.block_values);
    }
  }
  return shape;
}

std::vector<Plan> plan_tensors(const Shape& shape) {
  const Config& c = shape.config;
  const std::int64_t d = c.d_model;
  const std::int64_t s = c.n_streams;
  const std::int64_t heads = std::int64_t{c.n_heads} * c.d_head;
  const std::int64_t low = std::int64_t{c.n_groups} * c.group_rank;
  const auto spread = [](std::int64_t fan_in) { return 1 / std::sqrt(static_cast<float>(fan_in)); };
  std::vector<Plan> plans;
  plans.push_back({"token_embd.weight", shape.other, {d, c.vocab_size}, 1});
  plans.push_back({"output_norm.weight", DType::f32, {d}, 0.2F, 1});
  plans.push_back({"output.weight", shape.dense, {d, c.vocab_size}, spread(d)});
  plans.push_back({"output_hc_fn.weight", shape.other, {s * d, s}, 1.6F * spread(s * d)});
  plans.push_back({"output_hc_base.weight", DType::f32, {s}, 1});
  plans.push_back({"output_hc_scale.weight", DType::f32, {1}, 0.2F, 1});
  for (std::int32_t i = 0; i < c.n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    for (const char* part : {"hc_attn_", "hc_ffn_"}) {
      plans.push_back(
          {b + part + "fn.weight", shape.other, {s * d, (2 + s) * s}, 1.6F * spread(s * d)});
      plans.push_back({b + part + "base.weight", DType::f32, {(2 + s) * s}, 1});
      plans.push_back({b + part + "scale.weight", DType::f32, {3}, 0.2F, 1});
    }
    plans.push_back({b + "attn_norm.weight", DType::f32, {d}, 0.2F, 1});
    plans.push_back({b + "ffn_norm.weight", DType::f32, {d}, 0.2F, 1});
    plans.push_back({b + "attn_q_a.weight", shape.dense, {d, c.q_rank}, spread(d)});
    plans.push_back({b + "attn_q_a_norm.weight", DType::f32, {c.q_rank}, 0.2F, 1});
    plans.push_back({b + "attn_q_b.weight", shape.dense, {c.q_rank, heads}, spread(c.q_rank)});
    plans.push_back({b + "attn_kv.weight", shape.dense, {d, c.d_head}, spread(d)});
    plans.push_back({b + "attn_kv_a_norm.weight", DType::f32, {c.d_head}, 0.2F, 1.5F});
    plans.push_back({b + "attn_sinks.weight", DType::f32, {c.n_heads}, 1.5F});
    const std::int64_t group_in = heads / c.n_groups;
    plans.push_back({b + "attn_output_a.weight", shape.dense, {group_in, low}, spread(group_in)});
    plans.push_back({b + "attn_output_b.weight", shape.dense, {low, d}, spread(low)});
    plans.push_back({b + "ffn_gate_inp.weight", shape.other, {d, c.n_experts}, 2 * spread(d)});
    if (i < c.n_hash_layers) {
      plans.push_back(
          {b + "ffn_gate_tid2eid.weight", DType::i32, {c.n_experts_used, c.vocab_size}});
    } else {
      plans.push_back({b + "exp_probs_b.bias", DType::f32, {c.n_experts}, 0.3F});
    }
    for (const char* part : {"gate", "up"}) {
      plans.push_back({b + "ffn_" + part + "_exps.weight",
                       shape.experts_in,
                       {d, c.d_expert, c.n_experts},
                       3 * spread(d)});
      plans.push_back(
          {b + "ffn_" + part + "_shexp.weight", shape.dense, {d, c.d_expert}, 3 * spread(d)});
    }
    plans.push_back({b + "ffn_down_exps.weight",
                     shape.experts_down,
                     {c.d_expert, d, c.n_experts},
                     0.3F * spread(c.d_expert)});
    plans.push_back(
        {b + "ffn_down_shexp.weight", shape.dense, {c.d_expert, d}, 0.3F * spread(c.d_expert)});
    const std::int32_t ratio = c.ratio[static_cast<std::size_t>(i)];
    if (ratio == 0) continue;
    add_compressor(plans, shape, b + "attn_compressor_", ratio, c.d_head);
    if (ratio != 4) continue;
    add_compressor(plans, shape, b + "indexer_compressor_", ratio, c.d_index);
    plans.push_back({b + "indexer.attn_q_b.weight",
                     shape.other,
                     {c.q_rank, std::int64_t{c.n_index_heads} * c.d_index},
                     spread(c.q_rank)});
    plans.push_back({b + "indexer.proj.weight", shape.other, {d, c.n_index_heads}, spread(d)});
  }
  return plans;
}

std::vector<std::pair<std::string, MetaValue>> make_metadata(const Shape& shape) {
  const Config& c = shape.config;
  std::vector<std::pair<std::string, MetaValue>> meta;
  const auto add = [&meta](const char* key, MetaValue value) {
    meta.emplace_back(std::string("deepseek4.") + key, std::move(value));
  };
  const auto integer = [&add](const char* key, std::int64_t value) { add(key, value); };
  const auto number = [&add](const char* key, double value) { add(key, value); };
  meta.emplace_back("general.architecture", std::string("deepseek4"));
  meta.emplace_back("general.name", std::string("synthetic"));
  meta.emplace_back("tokenizer.ggml.model", std::string("none"));
  integer("block_count", c.n_layers);
  integer("context_length", c.context_length);
  integer("embedding_length", c.d_model);
  integer("vocab_size", c.vocab_size);
  integer("attention.head_count", c.n_heads);
  integer("attention.head_count_kv", 1);
  integer("attention.key_length", c.d_head);
  integer("attention.value_length", c.d_head);
  integer("rope.dimension_count", c.n_rot);
  integer("attention.q_lora_rank", c.q_rank);
  integer("attention.output_group_count", c.n_groups);
  integer("attention.output_lora_rank", c.group_rank);
  integer("attention.sliding_window", c.window);
  add("attention.compress_ratios", std::vector<std::int64_t>(c.ratio.begin(), c.ratio.end()));
  integer("attention.indexer.head_count", c.n_index_heads);
  integer("attention.indexer.key_length", c.d_index);
  integer("attention.indexer.top_k", c.top_k);
  number("rope.freq_base", c.rope_base);
  number("attention.compress_rope_freq_base", c.compress_rope_base);
  add("rope.scaling.type", std::string("yarn"));
  number("rope.scaling.factor", c.yarn_factor);
  integer("rope.scaling.original_context_length",
          static_cast<std::int64_t>(c.yarn_original_context));
  number("rope.scaling.yarn_beta_fast", c.yarn_beta_fast);
  number("rope.scaling.yarn_beta_slow", c.yarn_beta_slow);
  number("attention.layer_norm_rms_epsilon", static_cast<double>(c.rms_eps));
  integer("hyper_connection.count", c.n_streams);
  integer("hyper_connection.sinkhorn_iterations", c.sinkhorn_iterations);
  number("hyper_connection.epsilon", static_cast<double>(c.hc_eps));
  integer("expert_count", c.n_experts);
  integer("expert_used_count", c.n_experts_used);
  integer("expert_shared_count", 1);
  integer("expert_feed_forward_length", c.d_expert);
  add("expert_weights_norm", c.normalise_weights);
  number("expert_weights_scale", static_cast<double>(c.expert_weight_scale));
  integer("expert_gating_func", 4);
  integer("hash_layer_count", c.n_hash_layers);
  add("swiglu_clamp_exp", std::vector<double>(c.clamp_routed.begin(), c.clamp_routed.end()));
  add("swiglu_clamp_shexp", std::vector<double>(c.clamp_shared.begin(), c.clamp_shared.end()));
  return meta;
}

}  // namespace ebb::synthetic
