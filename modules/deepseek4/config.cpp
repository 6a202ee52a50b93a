// Every key is bounded on its own before any two are combined, with bounds far above real models
// but low enough that products of them fit their types: widths of at most 2^20, heads times head
// width at most 2^24, no loop of more than 1000 iterations. Then come the rules between keys. That
// the numbers describe the tensors is the business of check_tensors.
#include "modules/deepseek4/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "modules/deepseek4/metadata.h"

namespace ebb::deepseek4 {
namespace {

constexpr const char* kArchitectureKey = "general.architecture";
constexpr const char* kArchitecture = "deepseek4";
constexpr const char* kTokensKey = "tokenizer.ggml.tokens";

constexpr std::int32_t kMaxLayers = 4096;
constexpr std::int32_t kMaxWidth = 1 << 20;
constexpr std::int32_t kMaxHeads = 4096;
constexpr std::int32_t kMaxHeadWidth = 4096;
constexpr std::int32_t kMaxVocabulary = 1 << 24;
// What the ops can do (kernels/hyper.h, kernels/cpu/route.h); known here so that the key is named.
constexpr std::int32_t kMaxStreams = 8;
constexpr std::int32_t kMaxExpertsUsed = 64;

/// `text` from the file, harmless in a message.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 64)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  return text.size() > 64 ? result + "..." : result;
}

Status check_architecture(const Loader& loader) {
  const std::string place = loader.where_key(kArchitectureKey);
  const MetaValue* value = loader.meta(kArchitectureKey);
  if (value == nullptr) {
    return Error{Errc::not_found, place + ": missing, so the architecture is not known"};
  }
  const auto* name = std::get_if<std::string>(value);
  if (name == nullptr) return Error{Errc::invalid_argument, place + ": wrong type, want a string"};
  if (*name != kArchitecture) {
    return Error{Errc::incompatible,
                 fmt::format("{}: architecture \"{}\" is not supported, want {}", place,
                             shown(*name), kArchitecture)};
  }
  return ok_status();
}

/// block_count may include blocks for multi-token prediction at the end. The key that counts them
/// is also set in files that do not have them, so their tensors decide.
Status read_layers(const Loader& loader, const Metadata& metadata, Config& config) {
  EBB_TRY(metadata.read("block_count", 1, kMaxLayers, config.n_layers));
  std::int64_t n_predictors = 0;
  EBB_ASSIGN(n_predictors,
             metadata.integer_or("nextn_predict_layers", 0, 0, std::int64_t{kMaxLayers}));
  const std::string probe = layer_tensor(config.n_layers - 1, "nextn.eh_proj.weight");
  if (loader.tensor(probe) != nullptr) {
    n_predictors = std::max<std::int64_t>(n_predictors, 1);
    if (n_predictors >= config.n_layers) {
      return metadata.error(
          "nextn_predict_layers",
          fmt::format("{} is out of range, block_count is only {}", n_predictors, config.n_layers));
    }
    config.n_layers -= static_cast<std::int32_t>(n_predictors);
  }
  EBB_TRY(metadata.integer_or("leading_dense_block_count", 0, 0, 0));
  return metadata.read("hash_layer_count", 0, config.n_layers, config.n_hash_layers);
}

Status read_vocabulary(const Loader& loader, const Metadata& metadata, Config& config) {
  const TensorView* embedding = loader.tensor("token_embd.weight");
  if (embedding == nullptr) {
    return Error{Errc::not_found, loader.where_tensor("token_embd.weight") +
                                      ": missing, the model needs this tensor"};
  }
  const std::int64_t n_rows = embedding->ne[1];
  if (n_rows > kMaxVocabulary) {
    return Error{Errc::incompatible,
                 fmt::format("{}: a vocabulary of {} rows is out of range 1..{}; wrong shape",
                             loader.where_tensor("token_embd.weight"), n_rows, kMaxVocabulary)};
  }
  config.vocab_size = static_cast<std::int32_t>(n_rows);
  if (metadata.has("vocab_size")) {
    std::int64_t stated = 0;
    EBB_ASSIGN(stated, metadata.integer("vocab_size", 1, kMaxVocabulary));
    if (stated != n_rows) {
      return metadata.error(
          "vocab_size",
          fmt::format("{} tokens, but token_embd.weight has {} rows", stated, n_rows));
    }
  }
  const MetaValue* tokens = loader.meta(kTokensKey);
  if (tokens == nullptr) return ok_status();
  const auto* names = std::get_if<std::vector<std::string>>(tokens);
  if (names == nullptr || static_cast<std::int64_t>(names->size()) != n_rows) {
    return Error{Errc::incompatible,
                 fmt::format("{}: {}, want one for each of the {} rows of token_embd.weight",
                             loader.where_key(kTokensKey),
                             names == nullptr ? "wrong type, want an array of token strings"
                                              : fmt::format("{} tokens", names->size()),
                             n_rows)};
  }
  return ok_status();
}

Status read_widths(const Metadata& metadata, Config& config) {
  EBB_ASSIGN(config.context_length,
             metadata.integer("context_length", 1, std::numeric_limits<std::int32_t>::max()));
  EBB_TRY(metadata.read("embedding_length", 1, kMaxWidth, config.d_model));
  EBB_TRY(metadata.read("attention.head_count", 1, kMaxHeads, config.n_heads));
  EBB_TRY(metadata.integer("attention.head_count_kv", 1, 1));
  EBB_TRY(metadata.read("attention.key_length", 1, kMaxHeadWidth, config.d_head));
  EBB_TRY(
      metadata.integer_or("attention.value_length", config.d_head, config.d_head, config.d_head));
  EBB_TRY(metadata.read("rope.dimension_count", 2, config.d_head, config.n_rot));
  if (config.n_rot % 2 != 0) {
    return metadata.error("rope.dimension_count",
                          fmt::format("{} is odd, must be a multiple of 2", config.n_rot));
  }
  EBB_TRY(metadata.read("attention.q_lora_rank", 1, kMaxWidth, config.q_rank));
  EBB_TRY(metadata.read("attention.output_group_count", 1, config.n_heads, config.n_groups));
  if (config.n_heads % config.n_groups != 0) {
    return metadata.error("attention.output_group_count",
                          fmt::format("{} groups do not divide the {} heads evenly",
                                      config.n_groups, config.n_heads));
  }
  return metadata.read("attention.output_lora_rank", 1, kMaxWidth / config.n_groups,
                       config.group_rank);
}

Status read_attention(const Metadata& metadata, Config& config) {
  constexpr const char* kRatios = "attention.compress_ratios";
  constexpr const char* kIndexWidth = "attention.indexer.key_length";
  EBB_TRY(metadata.read("attention.sliding_window", 1, 1 << 16, config.window));
  std::vector<std::int64_t> ratios;
  EBB_ASSIGN(ratios, metadata.integers(kRatios, static_cast<std::size_t>(config.n_layers)));
  for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
    if (ratios[layer] != 0 && ratios[layer] != 4 && ratios[layer] != 128) {
      return metadata.error(kRatios, fmt::format("ratio {} of layer {} is not supported, want 0, 4 "
                                                 "or 128",
                                                 ratios[layer], layer));
    }
    config.ratio.push_back(static_cast<std::int32_t>(ratios[layer]));
  }
  EBB_TRY(metadata.read("attention.indexer.head_count", 1, kMaxHeads, config.n_index_heads));
  EBB_TRY(metadata.read(kIndexWidth, 32, kMaxHeadWidth, config.d_index));
  if (!std::has_single_bit(static_cast<std::uint32_t>(config.d_index))) {
    return metadata.error(kIndexWidth, fmt::format("{} is not a power of two", config.d_index));
  }
  if (config.d_index < config.n_rot) {
    return metadata.error(kIndexWidth, fmt::format("{} is less than the {} rotated dimensions "
                                                   "(rope.dimension_count), must be at least that",
                                                   config.d_index, config.n_rot));
  }
  return metadata.read("attention.indexer.top_k", 1, 1 << 20, config.top_k);
}

Status read_rope(const Metadata& metadata, Config& config) {
  constexpr double kLeastBase = 1.001;  // its logarithm is a divisor
  constexpr double kMostBase = 1e12;
  EBB_ASSIGN(config.rope_base, metadata.number("rope.freq_base", kLeastBase, kMostBase));
  EBB_ASSIGN(config.compress_rope_base,
             metadata.number("attention.compress_rope_freq_base", kLeastBase, kMostBase));
  std::string type;
  EBB_ASSIGN(type, metadata.text("rope.scaling.type"));
  if (type != "yarn") {
    return metadata.error("rope.scaling.type",
                          fmt::format("\"{}\" is not supported, want yarn", shown(type)));
  }
  EBB_ASSIGN(config.yarn_factor, metadata.number("rope.scaling.factor", 1, 1e6));
  std::int64_t original = 0;
  EBB_ASSIGN(original, metadata.integer("rope.scaling.original_context_length", 1,
                                        std::numeric_limits<std::int32_t>::max()));
  config.yarn_original_context = static_cast<double>(original);
  constexpr double kLeastBeta = 1e-3;
  constexpr double kMostBeta = 1e6;
  EBB_ASSIGN(config.yarn_beta_fast,
             metadata.number("rope.scaling.yarn_beta_fast", kLeastBeta, kMostBeta));
  EBB_ASSIGN(config.yarn_beta_slow,
             metadata.number("rope.scaling.yarn_beta_slow", kLeastBeta, kMostBeta));
  if (config.yarn_beta_fast < config.yarn_beta_slow) {
    return metadata.error(
        "rope.scaling.yarn_beta_fast",
        fmt::format("{:g} is less than yarn_beta_slow, {:g}, must be at least that",
                    config.yarn_beta_fast, config.yarn_beta_slow));
  }
  return ok_status();
}

Status read_streams(const Metadata& metadata, Config& config) {
  constexpr double kLeastEpsilon = 1e-20;
  double epsilon = 0;
  EBB_ASSIGN(epsilon, metadata.number("attention.layer_norm_rms_epsilon", kLeastEpsilon, 1));
  config.rms_eps = static_cast<float>(epsilon);
  EBB_TRY(metadata.read("hyper_connection.count", 1, kMaxStreams, config.n_streams));
  EBB_TRY(
      metadata.read("hyper_connection.sinkhorn_iterations", 1, 1000, config.sinkhorn_iterations));
  EBB_ASSIGN(epsilon, metadata.number("hyper_connection.epsilon", kLeastEpsilon, 1));
  config.hc_eps = static_cast<float>(epsilon);
  return ok_status();
}

Status read_experts(const Metadata& metadata, Config& config) {
  constexpr std::int64_t kSqrtSoftplus = 4;  // the format's number of the score function
  EBB_TRY(metadata.read("expert_count", 1, 1 << 16, config.n_experts));
  EBB_TRY(metadata.read("expert_used_count", 1, std::min(config.n_experts, kMaxExpertsUsed),
                        config.n_experts_used));
  EBB_TRY(metadata.integer_or("expert_shared_count", 1, 1, 1));
  EBB_TRY(metadata.read("expert_feed_forward_length", 1, kMaxWidth, config.d_expert));
  EBB_TRY(metadata.integer_or("expert_gating_func", kSqrtSoftplus, kSqrtSoftplus, kSqrtSoftplus));
  EBB_TRY(metadata.integer_or("expert_group_count", 0, 0, 1));  // one group is no groups
  EBB_TRY(metadata.integer_or("expert_group_used_count", 0, 0, 1));
  EBB_ASSIGN(config.normalise_weights, metadata.boolean("expert_weights_norm"));
  double scale = 0;
  EBB_ASSIGN(scale, metadata.number("expert_weights_scale", 1e-6, 1e6));
  config.expert_weight_scale = static_cast<float>(scale);

  constexpr double kLeastClamp = 1e-6;
  constexpr double kMostClamp = 1e30;
  const auto n_layers = static_cast<std::size_t>(config.n_layers);
  EBB_ASSIGN(config.clamp_routed,
             metadata.numbers("swiglu_clamp_exp", n_layers, kLeastClamp, kMostClamp));
  config.clamp_shared = config.clamp_routed;
  if (metadata.has("swiglu_clamp_shexp")) {
    EBB_ASSIGN(config.clamp_shared,
               metadata.numbers("swiglu_clamp_shexp", n_layers, kLeastClamp, kMostClamp));
  }
  return ok_status();
}

}  // namespace

Result<Config> read_config(const Loader& loader) {
  EBB_TRY(check_architecture(loader));
  const Metadata metadata(loader);
  Config config;
  EBB_TRY(read_layers(loader, metadata, config));
  EBB_TRY(read_widths(metadata, config));
  EBB_TRY(read_attention(metadata, config));
  EBB_TRY(read_rope(metadata, config));
  EBB_TRY(read_streams(metadata, config));
  EBB_TRY(read_experts(metadata, config));
  EBB_TRY(read_vocabulary(loader, metadata, config));
  return config;
}

std::string layer_tensor(std::int32_t layer, std::string_view suffix) {
  return fmt::format("blk.{}.{}", layer, suffix);
}

}  // namespace ebb::deepseek4
