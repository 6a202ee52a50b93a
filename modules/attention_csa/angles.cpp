#include "modules/attention_csa/angles.h"

#include "kernels/rope.h"

namespace ebb {
namespace {

/// Radians per token of every rotated pair.
std::vector<double> frequencies(const RopeScaling& scaling, std::int32_t n_pairs) {
  std::vector<double> values(static_cast<std::size_t>(n_pairs));
  rope_frequencies(scaling, n_pairs, values.data());
  return values;
}

}  // namespace

AngleTables::AngleTables(const deepseek4::Config& config)
    : window_frequency_(frequencies({.base = config.rope_base}, config.n_rot / 2)),
      chunk_frequency_(
          frequencies({config.compress_rope_base, config.yarn_factor, config.yarn_original_context,
                       config.yarn_beta_fast, config.yarn_beta_slow},
                      config.n_rot / 2)) {}

void AngleTables::carve(Arena& arena, std::int64_t rows) {
  window_frequency_memory_ = arena.take<double>(n_pairs(), "rope tables");
  chunk_frequency_memory_ = arena.take<double>(n_pairs(), "rope tables");
  for (Angles* angles : {&window_, &query_, &csa_, &hca_}) {
    angles->frequency = angles == &window_ ? window_frequency_memory_ : chunk_frequency_memory_;
    angles->cos_sin = arena.take<float>(rows * n_pairs() * 2, "rope tables");
  }
  // A chunk's row stands at the chunk's first token; it is made by the row of its last.
  csa_.offset = -3;
  hca_.offset = -127;
}

Status AngleTables::upload(Compute& compute) const {
  const std::uint64_t bytes = window_frequency_.size() * sizeof(double);
  EBB_TRY(compute.write(window_frequency_memory_, window_frequency_.data(), bytes));
  return compute.write(chunk_frequency_memory_, chunk_frequency_.data(), bytes);
}

Status AngleTables::plan(Ops& ops, const StepView& step) const {
  for (const Angles* angles : {&window_, &query_, &csa_, &hca_}) {
    EBB_TRY(ops.rope_table({step, angles->frequency, n_pairs(), angles->offset, angles->cos_sin}));
  }
  return ok_status();
}

}  // namespace ebb
