#include "modules/attention_csa/selections.h"

#include "kernels/ops/ops.h"

namespace ebb {

void Selections::carve(Arena& arena, std::int64_t rows, std::int32_t top_k, Staging* staging,
                       std::int32_t n_staged) {
  top_k_ = top_k;
  staging_ = staging;
  n_staged_ = n_staged;
  ids_ = arena.take<std::int32_t>(rows * top_k_, "attention scratch");
  count_ = arena.take<std::int32_t>(rows, "attention scratch");
  if (n_staged_ > 0) log_ = arena.take<std::int32_t>(n_staged_ * log_values(), "selection log");
}

SelectionLog Selections::of(std::int32_t staged, const StepView& step) const {
  if (!is_logged(staged, step)) return {ids_, count_};
  std::int32_t* const ids = log_ + staged * log_values();
  return {ids, ids + std::int64_t{staging_->max_log_rows()} * top_k_};
}

Status Selections::plan_log(Ops& ops, const StepView& step, std::int32_t staged) const {
  if (!is_logged(staged, step)) return ok_status();
  const std::uint64_t bytes = static_cast<std::uint64_t>(log_values()) * sizeof(std::int32_t);
  if (staging_->mode() == StagingMode::zero_copy) {
    if (staged + 1 < n_staged_) return ok_status();
    return ops.copy({staging_->log(0).ids, log_, static_cast<std::uint64_t>(n_staged_) * bytes});
  }
  EBB_TRY(ops.copy({staging_->log(staged).ids, of(staged, step).ids, bytes}));
  EBB_TRY(ops.host_call({[](void* staging, std::int32_t layer) noexcept {
                           static_cast<Staging*>(staging)->resolve(layer);
                         },
                         staging_, staged}));
  return ops.move_rows({staging_->layer_moves(staged)});
}

}  // namespace ebb
