#define BOOST_TEST_MODULE deepseek4_tensors
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "modules/deepseek4/config.h"
#include "tests/loader/fake_model.h"
#include "tests/loader/gguf_bytes.h"

namespace ebb::deepseek4 {
namespace {

using test::error_of;
using test::FakeModel;

std::string check(const FakeModel& model) {
  const Result<Config> config = read_config(FakeModel::valid());
  BOOST_REQUIRE_MESSAGE(config, error_of(config));
  return error_of(check_tensors(model, *config));
}

void refuses(const FakeModel& model, const std::string& tensor, std::string_view text) {
  const std::string message = check(model);
  BOOST_TEST(message.starts_with("fake: tensor " + tensor + ": "), message);
  BOOST_TEST(message.find(text) != std::string::npos, message << "\n  lacks: " << text);
}

const std::vector<std::string> kEveryKindOfTensor{"token_embd.weight",
                                                  "output_norm.weight",
                                                  "output.weight",
                                                  "output_hc_fn.weight",
                                                  "output_hc_base.weight",
                                                  "output_hc_scale.weight",
                                                  "blk.0.hc_attn_fn.weight",
                                                  "blk.1.hc_ffn_fn.weight",
                                                  "blk.2.hc_attn_base.weight",
                                                  "blk.0.hc_ffn_base.weight",
                                                  "blk.1.hc_attn_scale.weight",
                                                  "blk.2.hc_ffn_scale.weight",
                                                  "blk.0.attn_norm.weight",
                                                  "blk.1.ffn_norm.weight",
                                                  "blk.2.attn_q_a.weight",
                                                  "blk.0.attn_q_a_norm.weight",
                                                  "blk.1.attn_q_b.weight",
                                                  "blk.2.attn_kv.weight",
                                                  "blk.0.attn_kv_a_norm.weight",
                                                  "blk.1.attn_sinks.weight",
                                                  "blk.2.attn_output_a.weight",
                                                  "blk.0.attn_output_b.weight",
                                                  "blk.1.ffn_gate_inp.weight",
                                                  "blk.2.exp_probs_b.bias",
                                                  "blk.0.ffn_gate_tid2eid.weight",
                                                  "blk.2.ffn_gate_exps.weight",
                                                  "blk.0.ffn_up_exps.weight",
                                                  "blk.1.ffn_down_exps.weight",
                                                  "blk.2.ffn_gate_shexp.weight",
                                                  "blk.0.ffn_up_shexp.weight",
                                                  "blk.1.ffn_down_shexp.weight",
                                                  "blk.1.attn_compressor_kv.weight",
                                                  "blk.2.attn_compressor_gate.weight",
                                                  "blk.2.attn_compressor_ape.weight",
                                                  "blk.1.attn_compressor_norm.weight",
                                                  "blk.1.indexer.attn_q_b.weight",
                                                  "blk.1.indexer.proj.weight",
                                                  "blk.1.indexer_compressor_kv.weight",
                                                  "blk.1.indexer_compressor_gate.weight",
                                                  "blk.1.indexer_compressor_ape.weight",
                                                  "blk.1.indexer_compressor_norm.weight"};

BOOST_AUTO_TEST_CASE(names_each_missing_tensor) {
  BOOST_TEST(check(FakeModel::valid()) == "");
  for (const std::string& name : kEveryKindOfTensor) {
    FakeModel model = FakeModel::valid();
    model.remove_tensor(name);
    refuses(model, name, "missing");
  }
}

BOOST_AUTO_TEST_CASE(refuses_each_wrong_shape) {
  for (const std::string& name : kEveryKindOfTensor) {
    FakeModel model = FakeModel::valid();
    const TensorView view = *model.tensor(name);
    std::vector<std::int64_t> ne(view.ne.begin(), view.ne.begin() + view.n_dims);
    ne.back() += 1;
    model.add_tensor(name, view.type, ne);
    refuses(model, name, "wrong shape");
  }
  FakeModel model = FakeModel::valid();
  model.add_tensor("blk.1.attn_q_b.weight", DType::f32, {192, 24});
  refuses(model, "blk.1.attn_q_b.weight", "wrong shape [192, 24], expected [24, 192]");
}

BOOST_AUTO_TEST_CASE(takes_the_types_that_files_have) {
  const auto retyped = [](const std::string& name, DType type) {
    FakeModel model = FakeModel::valid();
    const TensorView view = *model.tensor(name);
    model.add_tensor(name, type, {view.ne.begin(), view.ne.begin() + view.n_dims});
    return model;
  };
  for (const DType type : {DType::f16, DType::bf16, DType::q8_0, DType::mxfp4}) {
    BOOST_TEST(check(retyped("blk.0.ffn_gate_exps.weight", type)) == "");
  }
  for (const DType type : {DType::f16, DType::bf16}) {
    BOOST_TEST(check(retyped("blk.1.attn_compressor_ape.weight", type)) == "");
    BOOST_TEST(check(retyped("output_norm.weight", type)) == "");
  }
  refuses(retyped("output_norm.weight", DType::q8_0), "output_norm.weight", "type Q8_0");
  refuses(retyped("blk.0.attn_sinks.weight", DType::f16), "blk.0.attn_sinks.weight", "want F32");
  refuses(retyped("output_hc_base.weight", DType::bf16), "output_hc_base.weight", "want F32");
  refuses(retyped("output.weight", DType::i32), "output.weight", "type I32");
  refuses(retyped("blk.0.ffn_gate_tid2eid.weight", DType::f32), "blk.0.ffn_gate_tid2eid.weight",
          "want I32");
}

BOOST_AUTO_TEST_CASE(checks_the_ids_of_expert_tables) {
  const std::string table = "blk.0.ffn_gate_tid2eid.weight";
  for (const std::int32_t bad : {4, -1, std::numeric_limits<std::int32_t>::min()}) {
    FakeModel model = FakeModel::valid();
    std::vector<std::int32_t> ids(80, 0);  // ids that repeat within a row are fine
    ids[79] = bad;
    model.set_ids(table, ids);
    refuses(model, table, "expert id " + std::to_string(bad) + " of token 39, entry 1");
  }
}

BOOST_AUTO_TEST_CASE(counts_weights_by_who_reads_them) {
  FakeModel model = FakeModel::valid();
  model.add_tensor("blk.3.attn_kv.weight", DType::f32, {16, 96});  // no layer of the model
  const Result<Config> config = read_config(model);
  BOOST_REQUIRE(config);
  const Result<WeightBytes> bytes = count_weights(model, *config);
  BOOST_REQUIRE(bytes);
  BOOST_TEST(bytes->routed == 3U * 3 * (16 * 20 * 4) * 4);
  BOOST_TEST(bytes->per_row == (16U + 2) * 4);
  // Model; per layer streams, attention, router with shared expert; two biases; compressors.
  const std::uint64_t streams = 2 * (64 * 24 + 24 + 3 + 16);
  const std::uint64_t attention = 16 * 24 + 24 + 24 * 192 + 16 * 96 + 96 + 2 + 96 * 16 + 16 * 16;
  const std::uint64_t experts = 16 * 4 + 3 * 16 * 20;
  const std::uint64_t csa =
      2 * 16 * 192 + 192 * 4 + 96 + 24 * 256 + 16 * 4 + 2 * 16 * 128 + 128 * 4 + 64;
  const std::uint64_t hca = 2 * 16 * 96 + 96 * 128 + 96;
  BOOST_TEST(bytes->shared == 4 * (16 + 16 * 40 + 64 * 4 + 4 + 1 +
                                   3 * (streams + attention + experts) + 2 * 4 + csa + hca));
  model.remove_tensor("output.weight");
  BOOST_TEST(!count_weights(model, *config));
}

BOOST_AUTO_TEST_CASE(more_rows_are_expected_to_use_more_experts) {
  const WeightBytes bytes{.shared = 1000, .per_row = 10, .routed = 400};
  Config config;
  config.n_experts = 4;
  config.n_experts_used = 2;
  BOOST_TEST(step_weight_bytes(bytes, config, 1) == 1000 + 10 + 200);
  BOOST_TEST(step_weight_bytes(bytes, config, 2) == 1000 + 20 + 300);
  BOOST_TEST(step_weight_bytes(bytes, config, 100) == 1000 + 1000 + 400);
}

BOOST_AUTO_TEST_CASE(joins_names_of_layers) {
  BOOST_TEST(layer_tensor(3, "attn_kv.weight") == "blk.3.attn_kv.weight");
}

}  // namespace
}  // namespace ebb::deepseek4
