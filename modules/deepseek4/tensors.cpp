// The model's tensors follow from its configuration: one list of name, shape and kind of element is
// made for the whole model and compared with what the loader has. Only when all are there and fit
// are the contents of the expert tables read, since they index memory later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "modules/deepseek4/config.h"

namespace ebb::deepseek4 {
namespace {

/// Which element types a tensor may have.
enum class Elements {
  matrix,   ///< any float or quantised type
  vector,   ///< F32, F16 or BF16
  exact,    ///< F32
  indices,  ///< I32
};

bool allowed(Elements elements, DType type) noexcept {
  const bool plain = type == DType::f32 || type == DType::f16 || type == DType::bf16;
  switch (elements) {
    case Elements::matrix:
      return type != DType::i32;
    case Elements::vector:
      return plain;
    case Elements::exact:
      return type == DType::f32;
    case Elements::indices:
      return type == DType::i32;
  }
  return false;
}

const char* allowed_names(Elements elements) noexcept {
  switch (elements) {
    case Elements::matrix:
      return "a float or quantised type";
    case Elements::vector:
      return "F32, F16 or BF16";
    case Elements::exact:
      return "F32";
    case Elements::indices:
      return "I32";
  }
  return "";
}

using Shape = std::array<std::int64_t, 4>;  // GGUF order, padded with ones

std::string shown(const Shape& shape, int n_dims) {
  std::string text = "[";
  for (int i = 0; i < n_dims; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

class Checker {
 public:
  Checker(const Loader& loader, const Config& config) : loader_(loader), config_(config) {}

  Status check_all() {
    EBB_TRY(check_model());
    for (layer_ = 0; layer_ < config_.n_layers; ++layer_) {
      EBB_TRY(check_streams("attn"));
      EBB_TRY(check_streams("ffn"));
      EBB_TRY(check_attention());
      EBB_TRY(check_compressor());
      EBB_TRY(check_indexer());
      EBB_TRY(check_experts());
    }
    for (layer_ = 0; layer_ < config_.n_hash_layers; ++layer_) EBB_TRY(check_expert_table());
    return ok_status();
  }

  const WeightBytes& counted() const { return counted_; }

 private:
  Status check_model() {
    const std::int64_t d = config_.d_model, v = config_.vocab_size, s = config_.n_streams;
    EBB_TRY(check("token_embd.weight", Elements::matrix, {d, v, 1, 1}));
    EBB_TRY(check("output_norm.weight", Elements::vector, {d, 1, 1, 1}));
    EBB_TRY(check("output.weight", Elements::matrix, {d, v, 1, 1}));
    EBB_TRY(check("output_hc_fn.weight", Elements::matrix, {s * d, s, 1, 1}));
    EBB_TRY(check("output_hc_base.weight", Elements::exact, {s, 1, 1, 1}));
    return check("output_hc_scale.weight", Elements::exact, {1, 1, 1, 1});
  }

  Status check_streams(const char* half) {
    const std::int64_t d = config_.d_model, s = config_.n_streams, mixes = (2 + s) * s;
    EBB_TRY(layer(fmt::format("hc_{}_fn.weight", half), Elements::matrix, {s * d, mixes, 1, 1}));
    EBB_TRY(layer(fmt::format("hc_{}_base.weight", half), Elements::exact, {mixes, 1, 1, 1}));
    EBB_TRY(layer(fmt::format("hc_{}_scale.weight", half), Elements::exact, {3, 1, 1, 1}));
    return layer(fmt::format("{}_norm.weight", half), Elements::vector, {d, 1, 1, 1});
  }

  Status check_attention() {
    const std::int64_t d = config_.d_model, dh = config_.d_head, h = config_.n_heads,
                       rq = config_.q_rank;
    const std::int64_t latent = std::int64_t{config_.n_groups} * config_.group_rank;
    EBB_TRY(layer("attn_q_a.weight", Elements::matrix, {d, rq, 1, 1}));
    EBB_TRY(layer("attn_q_a_norm.weight", Elements::vector, {rq, 1, 1, 1}));
    EBB_TRY(layer("attn_q_b.weight", Elements::matrix, {rq, h * dh, 1, 1}));
    EBB_TRY(layer("attn_kv.weight", Elements::matrix, {d, dh, 1, 1}));
    EBB_TRY(layer("attn_kv_a_norm.weight", Elements::vector, {dh, 1, 1, 1}));
    EBB_TRY(layer("attn_sinks.weight", Elements::exact, {h, 1, 1, 1}));
    EBB_TRY(
        layer("attn_output_a.weight", Elements::matrix, {h / config_.n_groups * dh, latent, 1, 1}));
    return layer("attn_output_b.weight", Elements::matrix, {latent, d, 1, 1});
  }

  /// Ratio 4 keeps two series per chunk, the previous window's and its own, so its rows are
  /// doubled.
  Status check_compressor() {
    const std::int64_t ratio = config_.ratio[static_cast<std::size_t>(layer_)];
    if (ratio == 0) return ok_status();
    const std::int64_t d = config_.d_model, dh = config_.d_head, width = ratio == 4 ? 2 * dh : dh;
    EBB_TRY(layer("attn_compressor_kv.weight", Elements::matrix, {d, width, 1, 1}));
    EBB_TRY(layer("attn_compressor_gate.weight", Elements::matrix, {d, width, 1, 1}));
    EBB_TRY(layer("attn_compressor_ape.weight", Elements::vector, {width, ratio, 1, 1}));
    return layer("attn_compressor_norm.weight", Elements::vector, {dh, 1, 1, 1});
  }

  Status check_indexer() {
    if (config_.ratio[static_cast<std::size_t>(layer_)] != 4) return ok_status();
    const std::int64_t d = config_.d_model, hi = config_.n_index_heads, di = config_.d_index;
    EBB_TRY(layer("indexer.attn_q_b.weight", Elements::matrix, {config_.q_rank, hi * di, 1, 1}));
    EBB_TRY(layer("indexer.proj.weight", Elements::matrix, {d, hi, 1, 1}));
    EBB_TRY(layer("indexer_compressor_kv.weight", Elements::matrix, {d, 2 * di, 1, 1}));
    EBB_TRY(layer("indexer_compressor_gate.weight", Elements::matrix, {d, 2 * di, 1, 1}));
    EBB_TRY(layer("indexer_compressor_ape.weight", Elements::vector, {2 * di, 4, 1, 1}));
    return layer("indexer_compressor_norm.weight", Elements::vector, {di, 1, 1, 1});
  }

  Status check_experts() {
    const std::int64_t d = config_.d_model, e = config_.n_experts, f = config_.d_expert;
    EBB_TRY(layer("ffn_gate_inp.weight", Elements::matrix, {d, e, 1, 1}));
    if (layer_ < config_.n_hash_layers) {
      EBB_TRY(layer("ffn_gate_tid2eid.weight", Elements::indices,
                    {config_.n_experts_used, config_.vocab_size, 1, 1}));
    } else {
      EBB_TRY(layer("exp_probs_b.bias", Elements::vector, {e, 1, 1, 1}));
    }
    EBB_TRY(layer("ffn_gate_exps.weight", Elements::matrix, {d, f, e, 1}));
    EBB_TRY(layer("ffn_up_exps.weight", Elements::matrix, {d, f, e, 1}));
    EBB_TRY(layer("ffn_down_exps.weight", Elements::matrix, {f, d, e, 1}));
    EBB_TRY(layer("ffn_gate_shexp.weight", Elements::matrix, {d, f, 1, 1}));
    EBB_TRY(layer("ffn_up_shexp.weight", Elements::matrix, {d, f, 1, 1}));
    return layer("ffn_down_shexp.weight", Elements::matrix, {f, d, 1, 1});
  }

  /// Ids may repeat within a row; only ids that would reach outside the experts are refused.
  Status check_expert_table() const {
    const std::string name = layer_tensor(layer_, "ffn_gate_tid2eid.weight");
    const TensorView& table = *loader_.tensor(name);
    const std::int64_t n = table.ne[0] * table.ne[1];
    for (std::int64_t i = 0; i < n; ++i) {
      std::int32_t id = 0;  // the data may lie at any address
      std::memcpy(&id, table.data + i * std::int64_t{sizeof id}, sizeof id);
      if (id < 0 || id >= config_.n_experts) {
        return Error{Errc::invalid_argument,
                     fmt::format("{}: expert id {} of token {}, entry {}, is out of range 0..{}",
                                 loader_.where_tensor(name), id, i / table.ne[0], i % table.ne[0],
                                 config_.n_experts - 1)};
      }
    }
    return ok_status();
  }

  Status layer(std::string_view suffix, Elements elements, const Shape& want) {
    return check(layer_tensor(layer_, suffix), elements, want);
  }

  void count(std::string_view name, const TensorView& tensor) {
    if (tensor.ne[2] > 1) {
      counted_.routed += tensor.n_bytes;
    } else if (name == "token_embd.weight" || tensor.type == DType::i32) {
      counted_.per_row += static_cast<std::uint64_t>(row_bytes(tensor.type, tensor.ne[0]));
    } else {
      counted_.shared += tensor.n_bytes;
    }
  }

  Status check(const std::string& name, Elements elements, const Shape& want) {
    const TensorView* found = loader_.tensor(name);
    const int n_dims = want[2] > 1 ? 3 : want[1] > 1 ? 2 : 1;
    if (found == nullptr) {
      return Error{Errc::not_found, fmt::format("{}: missing, the model needs this tensor with "
                                                "shape {}",
                                                loader_.where_tensor(name), shown(want, n_dims))};
    }
    if (found->ne != want) {
      return Error{
          Errc::incompatible,
          fmt::format("{}: wrong shape {}, expected {}", loader_.where_tensor(name),
                      shown(found->ne, std::clamp(found->n_dims, 1, 4)), shown(want, n_dims))};
    }
    const DTypeTraits* traits = dtype_traits(found->type);
    if (traits == nullptr || !allowed(elements, found->type)) {
      return Error{
          Errc::incompatible,
          fmt::format("{}: type {} is not supported here, want {}", loader_.where_tensor(name),
                      traits == nullptr ? "?" : traits->name, allowed_names(elements))};
    }
    count(name, *found);
    return ok_status();
  }

  const Loader& loader_;
  const Config& config_;
  std::int32_t layer_ = 0;
  WeightBytes counted_;
};

}  // namespace

Status check_tensors(const Loader& loader, const Config& config) {
  return Checker(loader, config).check_all();
}

Result<WeightBytes> count_weights(const Loader& loader, const Config& config) {
  Checker checker(loader, config);
  EBB_TRY(checker.check_all());
  return checker.counted();
}

double step_weight_bytes(const WeightBytes& bytes, const Config& config, std::int64_t n_rows) {
  const auto rows = static_cast<double>(n_rows);
  const double used = static_cast<double>(config.n_experts_used) / config.n_experts;
  return static_cast<double>(bytes.shared) + rows * static_cast<double>(bytes.per_row) +
         static_cast<double>(bytes.routed) * (1 - std::pow(1 - used, rows));
}

}  // namespace ebb::deepseek4
