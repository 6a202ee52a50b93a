#define BOOST_TEST_MODULE deepseek4_config
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "modules/deepseek4/config.h"
#include "tests/loader/fake_model.h"
#include "tests/loader/gguf_bytes.h"

namespace ebb::deepseek4 {
namespace {

using test::error_of;
using test::FakeModel;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Config accepts(const FakeModel& model) {
  const Result<Config> config = read_config(model);
  BOOST_REQUIRE_MESSAGE(config, error_of(config));
  const Status tensors = check_tensors(model, *config);
  BOOST_REQUIRE_MESSAGE(tensors, error_of(tensors));
  return *config;
}

void refuses(const FakeModel& model, std::string_view start, std::string_view text) {
  const Result<Config> config = read_config(model);
  const std::string message = config ? error_of(check_tensors(model, *config)) : error_of(config);
  BOOST_TEST(message.starts_with(start), message << "\n  does not start with: " << start);
  BOOST_TEST(message.find(text) != std::string::npos, message << "\n  lacks: " << text);
}

template <class T>
void refuses_key(const std::string& key, T value, std::string_view text) {
  FakeModel model = FakeModel::valid();
  model.set("deepseek4." + key, value);
  refuses(model, "fake: key deepseek4." + key + ": ", text);
}

BOOST_AUTO_TEST_CASE(reads_every_field) {
  const Config config = accepts(FakeModel::valid());
  BOOST_TEST(config.n_layers == 3);
  BOOST_TEST(config.d_model == 16);
  BOOST_TEST(config.vocab_size == 40);
  BOOST_TEST(config.context_length == 4096);
  BOOST_TEST(config.n_heads == 2);
  BOOST_TEST(config.d_head == 96);
  BOOST_TEST(config.n_rot == 32);
  BOOST_TEST(config.q_rank == 24);
  BOOST_TEST(config.n_groups == 2);
  BOOST_TEST(config.group_rank == 8);
  BOOST_TEST(config.window == 8);
  BOOST_TEST((config.ratio == std::vector<std::int32_t>{0, 4, 128}));
  BOOST_TEST(config.n_index_heads == 4);
  BOOST_TEST(config.d_index == 64);
  BOOST_TEST(config.top_k == 8);
  BOOST_TEST(config.rope_base == 1e4);
  BOOST_TEST(config.compress_rope_base == 1.6e5);
  BOOST_TEST(config.yarn_factor == 16.0);
  BOOST_TEST(config.yarn_original_context == 256.0);
  BOOST_TEST(config.yarn_beta_fast == 32.0);
  BOOST_TEST(config.yarn_beta_slow == 1.0);
  BOOST_TEST(config.rms_eps == 1e-6f);
  BOOST_TEST(config.n_streams == 4);
  BOOST_TEST(config.sinkhorn_iterations == 20);
  BOOST_TEST(config.hc_eps == 1e-6f);
  BOOST_TEST(config.n_experts == 4);
  BOOST_TEST(config.n_experts_used == 2);
  BOOST_TEST(config.d_expert == 20);
  BOOST_TEST(config.normalise_weights);
  BOOST_TEST(config.expert_weight_scale == 1.5f);
  BOOST_TEST(config.n_hash_layers == 1);
  BOOST_TEST((config.clamp_routed == std::vector<float>{10, 9, 8}));
  BOOST_TEST((config.clamp_shared == config.clamp_routed));
}

BOOST_AUTO_TEST_CASE(accepts_what_producers_write_differently) {
  FakeModel model = FakeModel::valid();
  model.set("deepseek4.swiglu_clamp_exp", 7.0);
  model.set("deepseek4.swiglu_clamp_shexp", std::vector<double>{1, 2, 3});
  model.set("deepseek4.attention.compress_ratios", std::vector<std::int64_t>{0, 4, 128});
  model.set("deepseek4.nextn_predict_layers", std::int64_t{1});
  model.set("deepseek4.rope.freq_base_swa", 1.6e5);
  model.set("deepseek4.leading_dense_block_count", std::int64_t{0});
  model.set("deepseek4.expert_group_count", std::int64_t{0});
  model.add_tensor("unknown.weight", DType::f32, {3});
  for (const char* optional :
       {"vocab_size", "expert_gating_func", "expert_shared_count", "attention.value_length"}) {
    model.remove_key(std::string("deepseek4.") + optional);
  }
  const Config config = accepts(model);
  BOOST_TEST((config.clamp_routed == std::vector<float>{7, 7, 7}));
  BOOST_TEST((config.clamp_shared == std::vector<float>{1, 2, 3}));
  BOOST_TEST(config.n_layers == 3);
  BOOST_TEST(config.vocab_size == 40);
}

BOOST_AUTO_TEST_CASE(leaves_prediction_blocks_out_where_the_file_has_them) {
  FakeModel model = FakeModel::valid();
  model.set("deepseek4.block_count", std::int64_t{4});
  model.set("deepseek4.nextn_predict_layers", std::int64_t{1});
  model.add_tensor("blk.3.nextn.eh_proj.weight", DType::f32, {32, 16});
  BOOST_TEST(accepts(model).n_layers == 3);
  model.remove_tensor("blk.3.nextn.eh_proj.weight");
  refuses(model, "fake: key deepseek4.swiglu_clamp_exp: ", "3 elements are too short");
}

BOOST_AUTO_TEST_CASE(wants_the_architecture_exactly) {
  FakeModel model = FakeModel::valid();
  for (const char* other : {"llama", "deepseek41", "deepseek", "Deepseek4", ""}) {
    model.set("general.architecture", std::string(other));
    refuses(model, "fake: key general.architecture: ", "architecture");
  }
  model.set("general.architecture", std::string("deepseek4\0x", 11));
  refuses(model, "fake: key general.architecture: ", "deepseek4\\x00x");
  model.set("general.architecture", std::int64_t{4});
  refuses(model, "fake: key general.architecture: ", "wrong type");
  model.remove_key("general.architecture");
  refuses(model, "fake: key general.architecture: ", "missing");
}

BOOST_AUTO_TEST_CASE(names_each_missing_key) {
  for (const char* key : {"block_count",
                          "context_length",
                          "embedding_length",
                          "attention.head_count",
                          "attention.head_count_kv",
                          "attention.key_length",
                          "rope.dimension_count",
                          "attention.q_lora_rank",
                          "attention.output_group_count",
                          "attention.output_lora_rank",
                          "attention.sliding_window",
                          "attention.compress_ratios",
                          "attention.indexer.head_count",
                          "attention.indexer.key_length",
                          "attention.indexer.top_k",
                          "rope.freq_base",
                          "attention.compress_rope_freq_base",
                          "rope.scaling.type",
                          "rope.scaling.factor",
                          "rope.scaling.original_context_length",
                          "rope.scaling.yarn_beta_fast",
                          "rope.scaling.yarn_beta_slow",
                          "attention.layer_norm_rms_epsilon",
                          "hyper_connection.count",
                          "hyper_connection.sinkhorn_iterations",
                          "hyper_connection.epsilon",
                          "expert_count",
                          "expert_used_count",
                          "expert_feed_forward_length",
                          "expert_weights_norm",
                          "expert_weights_scale",
                          "hash_layer_count",
                          "swiglu_clamp_exp"}) {
    FakeModel model = FakeModel::valid();
    model.remove_key(std::string("deepseek4.") + key);
    refuses(model, std::string("fake: key deepseek4.") + key + ": ", "missing");
  }
}

BOOST_AUTO_TEST_CASE(bounds_every_integer) {
  for (const char* key : {"block_count",
                          "context_length",
                          "embedding_length",
                          "vocab_size",
                          "attention.head_count",
                          "attention.head_count_kv",
                          "attention.key_length",
                          "attention.value_length",
                          "rope.dimension_count",
                          "attention.q_lora_rank",
                          "attention.output_group_count",
                          "attention.output_lora_rank",
                          "attention.sliding_window",
                          "attention.indexer.head_count",
                          "attention.indexer.key_length",
                          "attention.indexer.top_k",
                          "rope.scaling.original_context_length",
                          "hyper_connection.count",
                          "hyper_connection.sinkhorn_iterations",
                          "expert_count",
                          "expert_used_count",
                          "expert_shared_count",
                          "expert_feed_forward_length",
                          "expert_gating_func"}) {
    refuses_key(key, std::int64_t{0}, "0 is ");
    refuses_key(key, std::int64_t{-1}, "-1 is ");
    refuses_key(key, std::int64_t{1} << 31, "2147483648 is ");
    refuses_key(key, std::int64_t{1} << 32 | 2, "4294967298 is ");
    refuses_key(key, ~std::uint64_t{0}, "18446744073709551615 is ");
    refuses_key(key, 2.0, "wrong type: a number, want an integer");
    refuses_key(key, std::string("2"), "wrong type: a string");
    refuses_key(key, std::vector<std::int64_t>{2, 2, 2}, "wrong type: an array");
  }
  refuses_key("hyper_connection.count", std::int64_t{9}, "9 is out of range 1..8");
  refuses_key("hash_layer_count", std::int64_t{4}, "4 is out of range 0..3");
  refuses_key("leading_dense_block_count", std::int64_t{1}, "1 is not supported");
  refuses_key("expert_group_count", std::int64_t{8}, "8 is out of range 0..1");
}

BOOST_AUTO_TEST_CASE(bounds_every_number) {
  for (const char* key :
       {"rope.freq_base", "attention.compress_rope_freq_base", "rope.scaling.factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "attention.layer_norm_rms_epsilon", "hyper_connection.epsilon", "expert_weights_scale",
        "swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    for (const double bad : {0.0, -1.0, kNan, kInfinity, -kInfinity}) {
      refuses_key(key, bad, "is out of range");
    }
    refuses_key(key, std::int64_t{1}, "wrong type: an integer");
  }
  refuses_key("swiglu_clamp_exp", std::vector<double>{1, kNan, 1}, "element 1: nan");
  refuses_key("swiglu_clamp_shexp", std::vector<double>{1, 1}, "2 elements are too short");
  refuses_key("expert_weights_norm", std::int64_t{1}, "want a bool");
}

BOOST_AUTO_TEST_CASE(checks_rules_between_keys) {
  refuses_key("attention.value_length", std::int64_t{64}, "64 is not supported, want 96");
  refuses_key("rope.dimension_count", std::int64_t{98}, "out of range 2..96");
  refuses_key("rope.dimension_count", std::int64_t{31}, "odd");
  refuses_key("attention.output_group_count", std::int64_t{3}, "out of range 1..2");
  refuses_key("attention.indexer.key_length", std::int64_t{96}, "not a power of two");
  refuses_key("attention.indexer.key_length", std::int64_t{16}, "out of range 32..");
  refuses_key("expert_used_count", std::int64_t{5}, "out of range 1..4");
  refuses_key("rope.scaling.type", std::string("linear"), "\"linear\" is not supported");
  refuses_key("rope.scaling.yarn_beta_fast", 0.5, "less than yarn_beta_slow");
  refuses_key("vocab_size", std::int64_t{41}, "41 tokens, but token_embd.weight has 40 rows");
  refuses_key("attention.compress_ratios", std::vector<std::int64_t>{0, 7, 128},
              "ratio 7 of layer 1");
  refuses_key("attention.compress_ratios", std::vector<std::int64_t>{0, 4}, "2 elements");
  refuses_key("attention.compress_ratios", std::vector<double>{0, 4, 128}, "wrong type");

  FakeModel model = FakeModel::valid();
  model.set("deepseek4.expert_count", std::int64_t{100});
  model.set("deepseek4.expert_used_count", std::int64_t{65});
  refuses(model, "fake: key deepseek4.expert_used_count: ", "65 is out of range 1..64");
  model = FakeModel::valid();
  model.set("deepseek4.attention.head_count", std::int64_t{3});
  refuses(model, "fake: key deepseek4.attention.output_group_count: ", "2 groups do not divide");
  model = FakeModel::valid();
  model.set("tokenizer.ggml.tokens", std::vector<std::string>(39));
  refuses(model, "fake: key tokenizer.ggml.tokens: ", "39 tokens, want one for each of the 40");
  model = FakeModel::valid();
  model.set("deepseek4.rope.dimension_count", std::int64_t{66});
  refuses(model, "fake: key deepseek4.attention.indexer.key_length: ", "66 rotated");
}

}  // namespace
}  // namespace ebb::deepseek4
