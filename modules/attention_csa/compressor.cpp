#include "modules/attention_csa/compressor.h"

#include "kernels/row_format.h"

namespace ebb {

Status Compressor::load(Compute& compute, const Loader& loader, std::int32_t layer,
                        const std::string& prefix) {
  const auto tensor = [&](const char* suffix) {
    return *loader.tensor(deepseek4::layer_tensor(layer, prefix + suffix));
  };
  EBB_ASSIGN(kv, compute.import_matrix(tensor("kv.weight")));
  EBB_ASSIGN(gate, compute.import_matrix(tensor("gate.weight")));
  EBB_ASSIGN(ape_, compute.import_floats(tensor("ape.weight")));
  EBB_ASSIGN(norm_, compute.import_floats(tensor("norm.weight")));
  return ok_status();
}

void Compressor::carve(Arena& arena, const SessionShape& shape, std::int32_t ratio,
                       std::int32_t d) {
  ratio_ = ratio;
  d_ = d;
  const std::int64_t values = shape.max_open * state_values();
  state_kv_ = arena.take<float>(values, "compressor state");
  state_gate_ = arena.take<float>(values, "compressor state");
}

Status Compressor::fill(RandomState& random, std::int32_t sequence) const {
  const std::int64_t values = state_values();
  EBB_TRY(random.fill(state_kv_ + sequence * values, values));
  return random.fill(state_gate_ + sequence * values, values);
}

Status Compressor::copy(Compute& compute, std::int32_t from, std::int32_t to,
                        std::int64_t n_tokens) const {
  const auto row_bytes = static_cast<std::uint64_t>(n_tokens / ratio_ * rows.row_bytes);
  EBB_TRY(compute.copy(row_at(rows, to, 0), row_at(rows, from, 0), row_bytes));
  const std::int64_t values = state_values();
  for (float* const state : {state_kv_, state_gate_}) {
    EBB_TRY(compute.copy(state + to * values, state + from * values,
                         static_cast<std::uint64_t>(values) * sizeof(float)));
  }
  return ok_status();
}

CompressArgs Compressor::args(const StepView& step, const deepseek4::Config& config,
                              const float* kv_products, const float* gate_products,
                              const Angles& angles, Rounding rounding) const {
  CompressArgs args{};
  args.step = step;
  args.kv = kv_products;
  args.gate = gate_products;
  args.ape = ape_;
  args.state_kv = state_kv_;
  args.state_gate = state_gate_;
  args.ratio = ratio_;
  args.d = d_;
  args.overlap = ratio_ == 4 ? 1 : 0;
  args.norm_weight = norm_;
  args.eps = config.rms_eps;
  args.cos_sin = angles.cos_sin;
  args.n_pairs = config.n_rot / 2;
  args.rounding = rounding;
  args.rows = rows;
  return args;
}

}  // namespace ebb
